package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
)

const (
	pingTimeout = 3 * time.Second
	// labels of our containers: the run's id, and the cache directory that has its lock.
	labelRun   = "slimctl.run"
	labelCache = "slimctl.cache"
	// loadedName is the repository of images that a run loaded into Docker; the tag is the run's id.
	loadedName = "slimctl-run"
)

// engine chooses the engine.
func (r Runner) engine(ctx context.Context, s *Sandbox) (engine, error) {
	switch r.Runtime {
	case Runc:
		return r.runc(ctx, s)
	case Docker:
		if s.plan.netns != "" {
			return nil, errors.New("network path: with Docker a container can't join a network namespace by its file; use --runtime runc")
		}
		return r.docker(ctx, s)
	case Auto, "":
		if s.plan.netns == "" {
			if e, err := r.docker(ctx, s); err == nil {
				return e, nil
			}
		}
		return r.runc(ctx, s)
	}
	return nil, fmt.Errorf("runtime %q: want docker, runc or auto", r.Runtime)
}

// dockerEngine runs a container by the Docker Engine API.
type dockerEngine struct {
	s      *Sandbox
	api    *client.Client
	id     string // the container's
	loaded bool
	exit   client.ContainerWaitResult
	output chan struct{} // closed when all that the container printed has been read
}

func (r Runner) docker(ctx context.Context, s *Sandbox) (engine, error) {
	api, err := client.New(client.FromEnv)
	if err != nil {
		return nil, fmt.Errorf("docker: %w", err)
	}
	e := &dockerEngine{s: s, api: api}
	ping, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	if _, err := api.Ping(ping, client.PingOptions{NegotiateAPIVersion: true}); err != nil {
		api.Close()
		return nil, fmt.Errorf("docker at %s doesn't answer: %w", api.DaemonHost(), err)
	}
	info, err := api.Info(ctx, client.InfoOptions{})
	if err != nil {
		api.Close()
		return nil, fmt.Errorf("docker: %w", err)
	}
	s.evident.Engine.Name, s.evident.Engine.Version, s.evident.Engine.RootFS = Docker, info.Info.ServerVersion, info.Info.Driver
	return e, nil
}

// sweep removes the container and the image of a run, and what it has on this machine.
func (e *dockerEngine) sweep(id, dir string) error {
	ctx := context.Background()
	_, err := e.api.ContainerRemove(ctx, namePrefix+id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if errdefs.IsNotFound(err) {
		err = nil
	}
	_, ierr := e.api.ImageRemove(ctx, loadedName+":"+id, client.ImageRemoveOptions{PruneChildren: true})
	if errdefs.IsNotFound(ierr) {
		ierr = nil
	}
	return errors.Join(err, ierr, sweepHost(id, dir))
}

// sweepContainers removes those whose run isn't there any more: its directory was swept while Docker did not answer.
func (e *dockerEngine) sweepContainers(ctx context.Context) error {
	list, err := e.api.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: client.Filters{}.Add("label", labelCache+"="+e.s.runner.CacheDir),
	})
	if err != nil {
		return err
	}
	for _, c := range list.Items {
		if id := c.Labels[labelRun]; !alive(e.s.runner.CacheDir, id) {
			_, rerr := e.api.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
			_, _ = e.api.ImageRemove(ctx, loadedName+":"+id, client.ImageRemoveOptions{PruneChildren: true}) // most have none
			err = errors.Join(err, rerr)
		}
	}
	return err
}

func (e *dockerEngine) start(ctx context.Context, s *Sandbox) error {
	if err := e.sweepContainers(ctx); err != nil {
		s.note("containers that a killed process left: " + err.Error())
	}
	ref, err := e.imageID(ctx)
	if err != nil {
		return err
	}
	config, host, err := e.config(ref)
	if err != nil {
		return err
	}
	made, err := e.api.ContainerCreate(ctx, client.ContainerCreateOptions{Config: config, HostConfig: host, Name: s.run.name()})
	if err != nil {
		return dockerStartError(err)
	}
	e.id = made.ID
	s.notApplied(made.Warnings...)
	life := context.WithoutCancel(ctx) // it is ended by signals
	streams, err := e.api.ContainerAttach(life, e.id, client.ContainerAttachOptions{Stream: true, Stdout: true, Stderr: true})
	if err != nil {
		return fmt.Errorf("docker: %w", err)
	}
	e.output = make(chan struct{})
	go func() {
		defer close(e.output)
		defer streams.Close()
		_, _ = stdcopy.StdCopy(s.logs.tee(s.runner.Stdout), s.logs.tee(s.runner.Stderr), streams.Reader) // ends with the container
	}()
	e.exit = e.api.ContainerWait(life, e.id, client.ContainerWaitOptions{Condition: container.WaitConditionNextExit})
	if _, err := e.api.ContainerStart(ctx, e.id, client.ContainerStartOptions{}); err != nil {
		return dockerStartError(err)
	}
	return e.published(ctx)
}

func dockerStartError(err error) error {
	return &StartError{startCode(err.Error()), fmt.Errorf("docker: %w", err)}
}

// imageID gives a name of the image in Docker, and loads it there when it isn't.
func (e *dockerEngine) imageID(ctx context.Context) (string, error) {
	img := e.s.image
	config, err := img.ConfigName()
	if err != nil {
		return "", err
	}
	manifest, err := img.Digest()
	if err != nil {
		return "", err
	}
	for _, id := range []string{config.String(), manifest.String()} { // by what the daemon's image store numbers them
		if found, err := e.api.ImageInspect(ctx, id); err == nil {
			return found.ID, nil
		}
	}
	tag, err := name.NewTag(loadedName + ":" + e.s.run.id)
	if err != nil {
		return "", err
	}
	r, w := io.Pipe()
	defer r.Close()
	go func() { w.CloseWithError(tarball.Write(tag, img, w)) }()
	e.loaded = true
	answer, err := e.api.ImageLoad(ctx, r, client.ImageLoadWithQuiet(true))
	if err != nil {
		return "", fmt.Errorf("load the image into docker: %w", err)
	}
	defer answer.Close()
	for dec := json.NewDecoder(answer); ; {
		var message struct{ Error string }
		if err := dec.Decode(&message); errors.Is(err, io.EOF) {
			return loadedName + ":" + e.s.run.id, nil
		} else if err != nil {
			return "", fmt.Errorf("load the image into docker: %w", err)
		}
		if message.Error != "" {
			return "", fmt.Errorf("load the image into docker: %s", message.Error)
		}
	}
}

func (e *dockerEngine) config(ref string) (*container.Config, *container.HostConfig, error) {
	p := e.s.plan
	c := &container.Config{
		Image: ref, User: p.User, Cmd: p.Command, Hostname: e.s.run.name(), AttachStdout: true, AttachStderr: true,
		Env:    environment(nil, nil, p.Env),
		Labels: map[string]string{labelRun: e.s.run.id, labelCache: e.s.runner.CacheDir},
		// What an image's health check would print and use isn't part of the run.
		Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
	}
	if p.Network != "none" {
		c.ExposedPorts = network.PortSet{}
	}
	h := &container.HostConfig{
		NetworkMode: container.NetworkMode(p.Network), ReadonlyRootfs: p.ReadOnly, ShmSize: p.ShmSize,
		CapDrop: []string{"ALL"}, CapAdd: p.caps, Tmpfs: map[string]string{}, PortBindings: network.PortMap{},
		LogConfig: container.LogConfig{Type: "none"}, // they are read as they come
		Resources: container.Resources{
			Memory: p.Memory, MemorySwap: p.Memory, NanoCPUs: int64(p.CPUs * 1e9),
			Ulimits: []*container.Ulimit{{Name: "core"}},
		},
	}
	if p.PIDs > 0 {
		h.PidsLimit = &p.PIDs
	}
	if p.NoNewPrivileges {
		h.SecurityOpt = []string{"no-new-privileges"}
	}
	for _, t := range p.tmpfs {
		h.Tmpfs[t.path] = strings.Join(t.options, ",")
	}
	bind := func(source, target string, readOnly bool) {
		h.Mounts = append(h.Mounts, mount.Mount{
			Type: mount.TypeBind, Source: source, Target: target, ReadOnly: readOnly,
			BindOptions: &mount.BindOptions{NonRecursive: true},
		})
	}
	if p.Work != "" {
		bind(p.Work, "/work", true)
	}
	if p.Output != "" {
		who := p.User
		if config, err := e.s.image.ConfigFile(); err == nil && who == "" {
			who = config.Config.User
		}
		if err := giveTo(outputDir(e.s.run.dir), who); err != nil {
			return nil, nil, err
		}
		bind(outputDir(e.s.run.dir), "/output", false)
	}
	if p.Network == "none" {
		return c, h, nil // what is published is led into its network by ourselves
	}
	for _, pub := range p.publish {
		port, _ := network.PortFrom(pub.Port, network.TCP) // never an error for tcp
		c.ExposedPorts[port] = struct{}{}
		h.PortBindings[port] = append(h.PortBindings[port], network.PortBinding{
			HostIP: pub.Host.Addr(), HostPort: strconv.Itoa(int(pub.Host.Port())),
		})
	}
	return c, h, nil
}

// giveTo lets USER[:GROUP] write to a directory: numbers become its owner; a name, which only the image can tell, means that
// everybody may. The directory above is closed to others of this machine.
func giveTo(dir, user string) error {
	u, g, _ := strings.Cut(user, ":")
	uid, uerr := strconv.Atoi(u + map[bool]string{true: "0"}[u == ""])
	gid, gerr := strconv.Atoi(g + map[bool]string{true: "0"}[g == ""])
	if uerr == nil && gerr == nil && os.Chown(dir, uid, gid) == nil {
		return nil
	}
	return os.Chmod(dir, 0o777|os.ModeSticky)
}

// published asks which ports Docker chose.
func (e *dockerEngine) published(ctx context.Context) error {
	if e.s.plan.Network == "none" || len(e.s.plan.publish) == 0 {
		return nil
	}
	info, err := e.api.ContainerInspect(ctx, e.id, client.ContainerInspectOptions{})
	if err != nil {
		return fmt.Errorf("docker: %w", err)
	}
	taken := map[netip.AddrPort]bool{}
	for _, pub := range e.s.plan.publish {
		port, _ := network.PortFrom(pub.Port, network.TCP)
		for _, b := range info.Container.NetworkSettings.Ports[port] {
			n, err := strconv.ParseUint(b.HostPort, 10, 16)
			host := netip.AddrPortFrom(b.HostIP, uint16(n))
			if err == nil && b.HostIP == pub.Host.Addr() && !taken[host] && (pub.Host.Port() == 0 || pub.Host.Port() == uint16(n)) {
				taken[host] = true
				e.s.ports = append(e.s.ports, &forward{Publication: Publication{host, pub.Port}})
				break
			}
		}
	}
	return nil
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
		User: o.User, Env: o.Env, WorkingDir: o.Dir, Cmd: argv, AttachStdin: o.Stdin != nil, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return -1, fmt.Errorf("docker: %w", err)
	}
	streams, err := e.api.ExecAttach(ctx, made.ID, client.ExecAttachOptions{})
	if err != nil {
		return startCode(err.Error()), nil
	}
	defer streams.Close()
	stop := context.AfterFunc(ctx, func() {
		if now, err := e.api.ExecInspect(context.WithoutCancel(ctx), made.ID, client.ExecInspectOptions{}); err == nil && now.Running {
			e.kill(now.PID)
		}
		streams.Close()
	})
	defer stop()
	if o.Stdin != nil {
		go func() {
			_, _ = io.Copy(streams.Conn, o.Stdin) // the program may not want it all
			_ = streams.CloseWrite()
		}()
	}
	if _, err := stdcopy.StdCopy(stdout, stderr, streams.Reader); err != nil && ctx.Err() == nil {
		return -1, fmt.Errorf("docker: %w", err)
	}
	end, err := e.api.ExecInspect(context.WithoutCancel(ctx), made.ID, client.ExecInspectOptions{})
	if err != nil {
		return -1, fmt.Errorf("docker: %w", err)
	}
	return end.ExitCode, nil
}

// kill kills a process of the container, when the engine's processes are this machine's.
func (e *dockerEngine) kill(pid int) {
	if !belongs(pid, e.id) {
		return
	}
	if p, err := os.FindProcess(pid); err == nil {
		_ = p.Kill() // fails when it has ended
	}
}

func (e *dockerEngine) pids(ctx context.Context) ([]int, error) {
	info, err := e.api.ContainerInspect(ctx, e.id, client.ContainerInspectOptions{})
	if err != nil {
		return nil, fmt.Errorf("docker: %w", err)
	}
	if info.Container.State == nil || !info.Container.State.Running || !belongs(info.Container.State.Pid, e.id) {
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

func (e *dockerEngine) remove(context.Context) error {
	defer e.api.Close()
	return e.sweep(e.s.run.id, e.s.run.dir)
}

// startCode gives what a shell, and docker run, make of a program that can't be started.
func startCode(why string) int {
	in := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(why, p) })
	}
	switch {
	case !in("exec"):
		return 125
	case in("executable file not found", "no such file or directory"):
		return 127
	case in("permission denied", "is a directory", "exec format error"):
		return 126
	}
	return 125
}
