package sandbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
)

const (
	pingTimeout = 3 * time.Second
	// Labels of our containers: the run's id, and the owner of the directory with its lock. An image may have labels of
	// these names, too, but doesn't know the owner.
	labelRun   = "slimctl.run"
	labelOwner = "slimctl.owner"
	// loadedName is the repository of images that runs load into Docker and keep for later runs. The tag is the digest
	// of the image's config, in hexadecimal.
	loadedName = "slimctl-run"
	// keepLoaded is the time for which such an image is kept after its last start.
	keepLoaded = 7 * 24 * time.Hour
)

// dockerEngine runs a container with the Docker Engine API.
type dockerEngine struct {
	s      *Sandbox
	api    *client.Client
	id     string // the container's
	exit   client.ContainerWaitResult
	output chan struct{} // closed when all of the container's output has been read
}

func (r Runner) docker(ctx context.Context, s *Sandbox) (engine, error) {
	api, err := newDockerClient()
	if err != nil {
		return nil, fmt.Errorf("docker: %w", err)
	}
	e := &dockerEngine{s: s, api: api}
	ping, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	if _, err := api.Ping(ping, client.PingOptions{NegotiateAPIVersion: true}); err != nil {
		api.Close()
		return nil, pingError(api.DaemonHost(), err)
	}
	info, err := api.Info(ctx, client.InfoOptions{})
	if err != nil {
		api.Close()
		return nil, fmt.Errorf("docker: %w", err)
	}
	s.evident.Engine.Name, s.evident.Engine.Version, s.evident.Engine.RootFS = Docker, info.Info.ServerVersion, info.Info.Driver
	return e, nil
}

// pingError returns what to do about a daemon that can't be used. The client's error for a refused socket can be told
// by its words alone.
func pingError(host string, err error) error {
	switch {
	case strings.Contains(err.Error(), "permission denied"):
		return fmt.Errorf("docker at %s refuses this user: join its group by `sudo usermod -aG docker $USER`, and log in again", host)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("docker at %s didn't answer within %s: restart it, or name another by DOCKER_HOST or `docker context use`", host, pingTimeout)
	}
	return fmt.Errorf("docker at %s doesn't answer; DOCKER_HOST or `docker context use` names another: %w", host, err)
}

// sweep removes the containers of a run, and its remains on this machine. The first container is removed last, together
// with the volumes.
func (e *dockerEngine) sweep(ctx context.Context, id, dir string) error {
	var errs []error
	for _, name := range []string{namePrefix + id + secondSuffix, namePrefix + id} {
		_, err := e.api.ContainerRemove(ctx, name, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		if !errdefs.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, sweepHost(id, dir))...)
}

// sweepContainers removes containers without a run: their directory was swept while Docker did not answer, or while it
// was still creating them.
func (e *dockerEngine) sweepContainers(ctx context.Context) error {
	work := e.s.newEnding(ctx)
	defer work.giveUp()
	return work.runStep(func(ctx context.Context) error {
		for {
			creating, err := e.sweepOnce(ctx)
			if err != nil || !creating {
				return err
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
}

// sweepOnce reports whether Docker is still creating such containers: it lists them, and can't remove them yet.
func (e *dockerEngine) sweepOnce(ctx context.Context) (creating bool, err error) {
	list, err := e.api.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: client.Filters{}.Add("label", labelOwner+"="+e.s.run.owner),
	})
	if err != nil {
		return false, err
	}
	for _, c := range list.Items {
		if isAlive(e.s.runner.CacheDir, c.Labels[labelRun]) {
			continue
		}
		_, rerr := e.api.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		if errdefs.IsNotFound(rerr) {
			creating = true
		} else {
			err = errors.Join(err, rerr)
		}
	}
	return creating, err
}

func (e *dockerEngine) start(ctx context.Context, s *Sandbox) (io.ReadWriteCloser, error) {
	if err := e.sweepContainers(ctx); err != nil {
		s.addNote("containers that a killed process left: " + err.Error())
	}
	ref, err := e.imageID(ctx)
	if err != nil {
		return nil, err
	}
	config, host, err := e.config(ref)
	if err != nil {
		return nil, err
	}
	made, err := e.create(ctx, client.ContainerCreateOptions{Config: config, HostConfig: host, Name: s.run.name()})
	if err != nil {
		return nil, dockerStartError(err)
	}
	e.id = made.ID
	s.addNotApplied(made.Warnings...)
	if err := e.giveVolumes(ctx, ref); err != nil {
		return nil, err
	}
	if len(s.plan.keeps) > 0 {
		s.addNotApplied("size of /output and the audit log: Docker sets no limit for a volume")
	}
	if !s.plan.ReadOnly {
		s.addNotApplied("size of the root file system and the image's VOLUMEs: Docker sets no limit for what is written there")
	}
	if s.runner.Strict && len(s.Evidence().NotApplied) > 0 {
		return nil, nil // the caller adds the error
	}
	life := context.WithoutCancel(ctx) // the container is ended by signals
	streams, err := e.api.ContainerAttach(life, e.id, client.ContainerAttachOptions{Stream: true, Stdin: s.tethered, Stdout: true, Stderr: true})
	if err != nil {
		return nil, fmt.Errorf("docker: %w", err)
	}
	e.output = make(chan struct{})
	stdout := s.tee(s.runner.Stdout)
	var conn io.ReadWriteCloser
	var tied *io.PipeWriter
	if s.tethered {
		r, w := io.Pipe()
		conn, tied, stdout = &attached{r, streams.HijackedResponse}, w, w
	}
	go func() {
		defer close(e.output)
		defer streams.Close()
		_, err := stdcopy.StdCopy(stdout, s.tee(s.runner.Stderr), streams.Reader) // ends with the container
		if tied != nil {
			tied.CloseWithError(err) // nil means io.EOF
		}
	}()
	go e.sweepImages(life)
	e.exit = e.api.ContainerWait(life, e.id, client.ContainerWaitOptions{Condition: container.WaitConditionNextExit})
	if _, err := e.api.ContainerStart(ctx, e.id, client.ContainerStartOptions{}); err != nil {
		return nil, dockerStartError(err)
	}
	return conn, e.published(ctx)
}

// attached is the standard input and output of a container.
type attached struct {
	*io.PipeReader
	streams client.HijackedResponse
}

func (a *attached) Write(b []byte) (int, error) { return a.streams.Conn.Write(b) }

func (a *attached) Close() error {
	a.streams.Close()
	return a.PipeReader.Close()
}

func dockerStartError(err error) error {
	return &StartError{startCode(err.Error()), fmt.Errorf("docker: %w", err)}
}

func (e *dockerEngine) wait() (int, error) {
	select {
	case r := <-e.exit.Result:
		<-e.output
		if r.Error != nil {
			return int(r.StatusCode), errors.New("docker: " + r.Error.Message)
		}
		return int(r.StatusCode), nil
	case err := <-e.exit.Error:
		return -1, fmt.Errorf("docker: %w", err)
	}
}

func (e *dockerEngine) signal(ctx context.Context, signal string) error {
	_, err := e.api.ContainerKill(ctx, e.id, client.ContainerKillOptions{Signal: signal})
	return err
}

func (e *dockerEngine) exec(ctx context.Context, argv []string, o ExecOptions, stdout, stderr io.Writer) (int, error) {
	made, err := e.api.ExecCreate(ctx, e.id, client.ExecCreateOptions{
		User: o.User, Cmd: argv, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return -1, fmt.Errorf("docker: %w", err)
	}
	// It starts the program, which only its number can end; so it isn't broken off.
	streams, err := e.api.ExecAttach(context.WithoutCancel(ctx), made.ID, client.ExecAttachOptions{})
	if err != nil {
		return startCode(err.Error()), nil
	}
	defer streams.Close()
	stop := context.AfterFunc(ctx, func() {
		e.killExec(context.WithoutCancel(ctx), made.ID)
		streams.Close()
	})
	defer stop()
	if _, err := stdcopy.StdCopy(stdout, stderr, streams.Reader); err != nil && ctx.Err() == nil {
		return -1, fmt.Errorf("docker: %w", err)
	}
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), cmp.Or(e.s.runner.answerTime, answerTime))
	defer cancel()
	end, err := e.api.ExecInspect(after, made.ID, client.ExecInspectOptions{})
	if err != nil {
		return -1, fmt.Errorf("docker: %w", err)
	}
	return end.ExitCode, nil
}

// killExec kills a program, as soon as it has a number, if the engine's processes are this machine's.
func (e *dockerEngine) killExec(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(e.s.runner.answerTime, answerTime))
	defer cancel()
	for ; ; time.Sleep(execInterval) {
		now, err := e.api.ExecInspect(ctx, id, client.ExecInspectOptions{})
		if err != nil || now.ExitCode != 0 { // it can't be started, or has ended
			return
		}
		if now.PID == 0 {
			continue
		}
		if p, err := os.FindProcess(now.PID); err == nil && now.Running && belongsTo(now.PID, e.id) {
			_ = p.Kill() // fails if it has ended
		}
		return
	}
}

// execInterval is the interval of looking for the number of a program that Docker is starting.
const execInterval = 20 * time.Millisecond

func (e *dockerEngine) pids(ctx context.Context) ([]int, error) {
	info, err := e.api.ContainerInspect(ctx, e.id, client.ContainerInspectOptions{})
	if err != nil {
		return nil, fmt.Errorf("docker: %w", err)
	}
	if info.Container.State == nil || !info.Container.State.Running || !belongsTo(info.Container.State.Pid, e.id) {
		return nil, nil
	}
	top, err := e.api.ContainerTop(ctx, e.id, client.ContainerTopOptions{Arguments: []string{"-o", "pid"}})
	if err != nil {
		return nil, fmt.Errorf("docker: %w", err)
	}
	out := []int{info.Container.State.Pid}
	for _, line := range top.Processes {
		if len(line) == 0 {
			continue
		}
		if pid, err := strconv.Atoi(line[0]); err == nil && !slices.Contains(out, pid) {
			out = append(out, pid)
		}
	}
	return out, nil
}

func (e *dockerEngine) memory(ctx context.Context) (Memory, error) {
	info, err := e.api.ContainerInspect(ctx, e.id, client.ContainerInspectOptions{})
	if err != nil {
		return Memory{}, fmt.Errorf("docker: %w", err)
	}
	var m Memory
	if info.Container.State != nil && info.Container.State.OOMKilled {
		m.OOMKills = 1
	}
	if info.Container.State == nil || !info.Container.State.Running {
		return m, nil
	}
	answer, err := e.api.ContainerStats(ctx, e.id, client.ContainerStatsOptions{})
	if err != nil {
		return m, fmt.Errorf("docker: %w", err)
	}
	defer answer.Body.Close()
	var stats container.StatsResponse
	if err := json.NewDecoder(answer.Body).Decode(&stats); err != nil {
		return m, fmt.Errorf("docker: %w", err)
	}
	m.Current, m.Peak = int64(stats.MemoryStats.Usage), int64(stats.MemoryStats.MaxUsage)
	for _, key := range slices.Sorted(maps.Keys(stats.MemoryStats.Stats)) {
		if key == "anon" || key == "total_rss" { // cgroup version 2, version 1
			m.RSS = int64(stats.MemoryStats.Stats[key])
		}
	}
	return m, nil
}

// collect reads a volume through Docker, which may be on another machine.
func (e *dockerEngine) collect(ctx context.Context, id, _ string, k *keep, file string, c *collector) error {
	files, err := e.api.CopyFromContainer(ctx, namePrefix+id, client.CopyFromContainerOptions{SourcePath: path.Join(k.From, file)})
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("docker: copy %s: %w", k.From, err)
	}
	defer files.Content.Close()
	return c.collectArchive(files.Content, file)
}

func (e *dockerEngine) remove(ctx context.Context) error {
	defer e.api.Close()
	return e.sweep(ctx, e.s.run.id, e.s.run.dir)
}
