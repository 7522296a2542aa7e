//go:build linux

package sandbox

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/inspect/sandbox/sandboxtest"
	"github.com/slimctl/slimctl/internal/dockerd"
	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/server/audit"
)

// useDocker makes the test and those below it use a daemon of this machine. They need root to look at a container's network
// and processes.
func useDocker(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		need.Missing(t, "what these tests look at in a container's network and processes needs root")
	}
	t.Setenv("DOCKER_HOST", dockerd.Host(t))
}

func dockerEngineUnderTest(t testing.TB) engineUnderTest {
	t.Helper()
	e := engineUnderTest{Runner{Runtime: Docker, CacheDir: t.TempDir()}, t}
	t.Cleanup(func() { noContainerLeft(t, e.CacheDir) })
	return e
}

// noContainerLeft checks that Docker has no container of the runs of a cache directory.
func noContainerLeft(t testing.TB, cacheDir string) {
	t.Helper()
	owner, err := readOwner(filepath.Join(cacheDir, "runs"))
	if err != nil {
		t.Fatal(err)
	}
	api := dockerClient(t)
	ctx := context.Background()
	list, err := api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("label", labelOwner+"="+owner)})
	if err != nil || len(list.Items) > 0 {
		t.Errorf("containers left: %+v, %v", list.Items, err)
	}
}

// TestDocker is the same tests as with runc.
func TestDocker(t *testing.T) {
	useDocker(t)
	for name, test := range map[string]func(*testing.T, engineUnderTest){
		"closed": testClosed, "user": testUser, "end": testEnd, "no start": testNoStart, "network": testNetwork, "exec": testExec,
		"limits": testLimits, "output": testOutput, "events": testEvents, "audit": testAuditLasts, "audit of a killed process": testAuditOfKilledProcess,
		"egress": testEgress, "network none": testNetworkNone, "hostile tether": testHostileTether, "policy file": testPolicyFile,
		"hostile image": testHostileImage, "bad images": testBadImages, "flood": testFlood, "planted output": testPlantedOutput, "mirror": testMirror,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, dockerEngineUnderTest(t))
		})
	}
}

// TestDockerSweep: a container whose run is gone is ended by the next run.
func TestDockerSweep(t *testing.T) {
	useDocker(t)
	e := dockerEngineUnderTest(t)
	sb, err := e.Start(t.Context(), guestImage(t), settings("deaf"))
	if err != nil {
		t.Fatal(err)
	}
	until(t, "ready", says(sb, "ready"))
	if err := sb.run.lock.Unlock(); err != nil { // as if its process had been killed
		t.Fatal(err)
	}
	next := e.start(guestImage(t), settings("exit", "0"))
	finish(t, next)
	if st, _ := sb.Wait(t.Context()); st.ExitCode != 137 { // its own cleaning up finds nothing, or the other one's at it
		t.Errorf("%+v", st)
	}
	noContainerLeft(t, e.CacheDir)
}

// TestDockerSpareContainers: a run ends no container but those of its own cache directory whose run is gone. An image may carry
// any label, and another job with the same daemon may have a cache directory of the same path, or a copy of it.
func TestDockerSpareContainers(t *testing.T) {
	useDocker(t)
	e := dockerEngineUnderTest(t)
	own := sandboxtest.Guest
	finish(t, e.start(guestImage(t), settings("exit", "0"))) // the cache directory has all that it keeps
	own.Labels = map[string]string{labelRun: "20260101t000000-00000000", labelOwner: e.CacheDir}
	img := build(t, own, sandboxtest.GuestLayer(t))
	finish(t, e.start(img, settings("exit", "0"))) // loads it
	api := dockerClient(t)
	id, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	users, err := api.ContainerCreate(t.Context(), client.ContainerCreateOptions{Config: &container.Config{Image: id.String()}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, err := api.ContainerRemove(context.Background(), users.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true}); err != nil {
			t.Errorf("the user's container: %v", err)
		}
	}()

	other, err := e.Start(t.Context(), guestImage(t), settings("deaf"))
	if err != nil {
		t.Fatal(err)
	}
	until(t, "ready", says(other, "ready"))
	moved := filepath.Join(t.TempDir(), "cache") // where its job sees it
	if err := errors.Join(os.Rename(e.CacheDir, moved), os.CopyFS(e.CacheDir, os.DirFS(moved))); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(e.CacheDir, "runs", other.ID)); err != nil {
		t.Fatal(err)
	}
	finish(t, e.start(guestImage(t), settings("exit", "0")))
	running, err := api.ContainerInspect(t.Context(), other.run.name(), client.ContainerInspectOptions{})
	if err != nil || !running.Container.State.Running {
		t.Errorf("another job's container: %+v, %v", running.Container.State, err)
	}
	if err := errors.Join(os.RemoveAll(e.CacheDir), os.Rename(moved, e.CacheDir)); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestDockerImageVolumes: what an image declares as its volumes is no place on Docker's disk past a read-only root: it is memory,
// which the container's limit counts. Nothing of them is left.
func TestDockerImageVolumes(t *testing.T) {
	useDocker(t)
	e := dockerEngineUnderTest(t)
	e.Strict = true
	before := dockerVolumes(t)
	own := sandboxtest.Guest
	own.Volumes = map[string]struct{}{"/data": {}, "/tmp": {}, "/tmp/below": {}, "/etc/../srv/": {}, "/output": {}}
	img := build(t, own, sandboxtest.GuestLayer(t))
	got := e.report(img, settings(), "/data", "/tmp", "/tmp/below", "/srv", "/output", "/etc")
	for _, dir := range []string{"/data", "/tmp", "/tmp/below", "/srv", "/output"} {
		if !strings.Contains(got.Mounts, "tmpfs "+dir+" tmpfs rw,nosuid,nodev,noexec,") || got.Writable[dir] != "<nil>" {
			t.Errorf("%s: written with %s; mounts:\n%s", dir, got.Writable[dir], got.Mounts)
		}
	}
	if got.Writable["/etc"] == "<nil>" {
		t.Error("/etc can be written")
	}
	e.Strict = false // as to the size of /output
	s := settings("mess")
	s.Output, s.User = t.TempDir(), "1000:1000"
	finish(t, e.start(img, s))
	if after := dockerVolumes(t); !slices.Equal(before, after) {
		t.Errorf("volumes left: %q, before %q", after, before)
	}
	for name, volumes := range map[string][]string{"a relative path": {"data"}, "the root": {"/"}, "many": strings.Fields(strings.Repeat("/v ", 1000))} {
		own.Volumes = map[string]struct{}{}
		for i, v := range volumes {
			own.Volumes[v+strings.Repeat("x", i)] = struct{}{}
		}
		var start *StartError
		if sb, err := e.Start(t.Context(), build(t, own, sandboxtest.GuestLayer(t)), settings("sleep")); !errors.As(err, &start) {
			t.Errorf("%s: %v", name, err)
			if err == nil {
				_, _ = sb.Stop(t.Context())
			}
		}
	}
}

// TestDockerSweepsVolumes: of a slimctl that is killed while a second container gives /output to the image's user nothing is left.
func TestDockerSweepsVolumes(t *testing.T) {
	useDocker(t)
	e := dockerEngineUnderTest(t)
	before := dockerVolumes(t)
	s := settings("sleep")
	s.Output, s.User = t.TempDir(), "1000:1000"
	sb, err := e.Start(t.Context(), guestImage(t), s)
	if err != nil {
		t.Fatal(err)
	}
	docker := sb.engine.(*dockerEngine)
	ref, err := docker.imageID(t.Context())
	if err == nil {
		_, err = docker.createSecond(t.Context(), ref)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if after := dockerVolumes(t); !slices.Equal(before, after) {
		t.Errorf("volumes left: %q, before %q", after, before)
	}
}

func dockerVolumes(t testing.TB) (names []string) {
	t.Helper()
	list, err := dockerClient(t).VolumeList(context.Background(), client.VolumeListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range list.Items {
		names = append(names, v.Name)
	}
	slices.Sort(names)
	return names
}

func dockerClient(t testing.TB) *client.Client {
	t.Helper()
	api, err := client.New(client.FromEnv)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { api.Close() })
	return api
}

// countedImage counts how often its layers are asked for.
type countedImage struct {
	v1.Image
	loads *atomic.Int32
}

func (c countedImage) Layers() ([]v1.Layer, error) {
	c.loads.Add(1)
	return c.Image.Layers()
}

// tasks records the names of tasks.
type tasks []string

func (p *tasks) Task(name string, _ int64) image.Task {
	*p = append(*p, name)
	return image.NoProgress.Task(name, 0)
}

// TestDockerKeepsImage guards the second start: an image that Docker doesn't have is loaded once, which is said, and
// removed when no run has used it for a while.
func TestDockerKeepsImage(t *testing.T) {
	useDocker(t)
	e := dockerEngineUnderTest(t)
	own := sandboxtest.Guest
	own.Labels = map[string]string{"test": e.CacheDir} // no other test's image
	var loads atomic.Int32
	img := build(t, own, sandboxtest.GuestLayer(t))
	img.Image = countedImage{img.Image, &loads}
	config, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	tag := loadedName + ":" + config.Hex
	var said tasks
	e.Progress = &said
	finish(t, e.start(img, settings("exit", "0")))
	first := loads.Load()
	before := time.Now()
	sb := e.start(img, settings("sleep"))
	until(t, "ready", says(sb, "ready"))
	if want := "load " + img.Reference + " into Docker"; len(said) != 1 || said[0] != want {
		t.Errorf("said is %q, not %q", said, want)
	}
	if first == 0 || loads.Load() != first {
		t.Errorf("the first start loads the image %d times, both %d", first, loads.Load())
	}
	docker := sb.engine.(*dockerEngine)
	if err := docker.sweepImage(t.Context(), tag, before); err != nil {
		t.Errorf("an image that was just used: %v", err)
	}
	if err := docker.sweepImage(t.Context(), tag, time.Now().Add(time.Hour)); !errdefs.IsConflict(err) {
		t.Errorf("an image that runs: %v", err)
	}
	if _, err := sb.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	api := dockerClient(t)
	docker = &dockerEngine{api: api}
	if err := docker.sweepImage(t.Context(), tag, before); err != nil {
		t.Error(err)
	}
	if _, err := api.ImageInspect(t.Context(), tag); err != nil {
		t.Errorf("the image is not kept: %v", err)
	}
	if err := docker.sweepImage(t.Context(), tag, time.Now().Add(time.Hour)); err != nil {
		t.Error(err)
	}
	if _, err := api.ImageInspect(t.Context(), tag); !errdefs.IsNotFound(err) {
		t.Errorf("an image that wasn't used for long is still there: %v", err)
	}
}

// TestDockerLoadEnds guards that Docker unpacks nothing of an image that holds too much.
func TestDockerLoadEnds(t *testing.T) {
	useDocker(t)
	e := dockerEngineUnderTest(t)
	if sb, err := e.Start(t.Context(), guestImage(t, sparseLayer(t, maxLoadedBytes)), settings("exit", "0")); err == nil || !strings.Contains(err.Error(), "Docker would write all of them") {
		t.Errorf("%v", err)
		if err == nil {
			finish(t, sb)
		}
	}
}

// TestDockerFalseTag guards against an archive that was loaded into Docker with the name that a run would give another image.
func TestDockerFalseTag(t *testing.T) {
	useDocker(t)
	e := dockerEngineUnderTest(t)
	own := sandboxtest.Guest
	own.Labels = map[string]string{"test": e.CacheDir}
	good := build(t, own, sandboxtest.GuestLayer(t))
	config, err := good.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(loadedName + ":" + config.Hex)
	if err != nil {
		t.Fatal(err)
	}
	entrypoint, layers := own, own
	entrypoint.Entrypoint = []string{"/guest", "exit", "1"}
	for what, bad := range map[string]Image{
		"entrypoint": build(t, entrypoint, sandboxtest.GuestLayer(t)),
		"layers":     build(t, layers, sandboxtest.GuestLayer(t), sandboxtest.Layer(t, sandboxtest.File("more", ""))),
	} {
		if err := (&dockerEngine{s: &Sandbox{image: bad}, api: dockerClient(t)}).load(t.Context(), tag, func(int64) {}); err != nil {
			t.Fatal(err)
		}
		sb := e.start(good, settings("cat", "/more"))
		if st := finish(t, sb); !strings.Contains(string(sb.Logs()), "no such file") {
			t.Errorf("%s: another image was run: %+v, %s", what, st, sb.Logs())
		}
		if _, err := dockerClient(t).ImageRemove(t.Context(), config.String(), client.ImageRemoveOptions{Force: true}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDockerEvidenceFirst guards the evidence of a slimctl that is killed while Docker removes its container: it was written
// before.
func TestDockerEvidenceFirst(t *testing.T) {
	useDocker(t)
	e := dockerEngineUnderTest(t)
	s := settings("exit", "3")
	s.Output = t.TempDir()
	var there, removed atomic.Bool
	watchDocker(t, func(r *http.Request) {
		if files, _ := filepath.Glob(filepath.Join(s.Output, "*", "evidence.json")); r.Method == http.MethodDelete && strings.Contains(r.URL.Path, "/containers/") && !removed.Swap(true) && len(files) == 1 {
			text, _ := os.ReadFile(files[0])
			there.Store(strings.Contains(string(text), `"exit_code": 3`))
		}
	})
	if st := finish(t, e.start(guestImage(t), s)); st.ExitCode != 3 || !removed.Load() || !there.Load() {
		t.Errorf("%+v; a container was removed: %v, and the evidence was there: %v", st, removed.Load(), there.Load())
	}
}

// TestDockerHangs guards the end of a run whose daemon doesn't answer any more: it says so, and the next run saves the audit log
// and removes the container.
func TestDockerHangs(t *testing.T) {
	useDocker(t)
	e := dockerEngineUnderTest(t)
	direct := os.Getenv("DOCKER_HOST")
	var hung atomic.Bool
	watchDocker(t, func(r *http.Request) {
		if hung.Load() {
			<-r.Context().Done()
		}
	})
	e.answerTime = time.Second
	s := settings("log", "audit.jsonl="+chain(t, 2))
	s.Audit = t.TempDir()
	sb, err := e.Start(t.Context(), guestImage(t), s)
	if err != nil {
		t.Fatal(err)
	}
	until(t, "ready", says(sb, "ready"))
	hung.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), need.Patience)
	defer cancel()
	_, err = sb.Stop(ctx)
	if want := "docker didn't answer within 1s, and container " + sb.run.name() + " may still run"; err == nil || errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	t.Setenv("DOCKER_HOST", direct)
	e.answerTime = 0
	finish(t, e.start(guestImage(t), settings("exit", "0"))) // and no container is left
	if r, err := audit.Verify("", filepath.Join(s.Audit, sb.ID, "audit.jsonl")); err != nil || !r.OK || r.Lines != 2 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestDockerCreatesLate guards that a start which is ended while Docker creates the container leaves none.
func TestDockerCreatesLate(t *testing.T) {
	useDocker(t)
	e := dockerEngineUnderTest(t)
	ctx, cancel := context.WithCancel(t.Context())
	watchDocker(t, func(r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/containers/create") {
			return
		}
		body, err := io.ReadAll(r.Body) // or the server doesn't see that the client goes
		if err != nil {
			t.Error(err)
		}
		cancel()
		select {
		case <-r.Context().Done():
			time.Sleep(time.Second) // in which it removes what isn't there yet
		case <-time.After(time.Second):
		}
		went, stop := context.WithCancel(context.WithoutCancel(r.Context())) // Docker creates it all the same
		t.Cleanup(stop)
		*r = *r.WithContext(went)
		r.Body = io.NopCloser(bytes.NewReader(body))
	})
	if sb, err := e.Start(ctx, guestImage(t), settings("exit", "0")); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v", sb, err)
	}
}

// TestDockerSweepsLate guards that a container which Docker lists before it can be removed is removed all the same.
func TestDockerSweepsLate(t *testing.T) {
	useDocker(t)
	e := dockerEngineUnderTest(t)
	img := guestImage(t)
	finish(t, e.start(img, settings("exit", "0"))) // loads it
	owner, err := readOwner(filepath.Join(e.CacheDir, "runs"))
	if err != nil {
		t.Fatal(err)
	}
	id, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	left, err := dockerClient(t).ContainerCreate(t.Context(), client.ContainerCreateOptions{Config: &container.Config{
		Image: id.String(), Labels: map[string]string{labelRun: "20260101t000000-00000000", labelOwner: owner},
	}})
	if err != nil {
		t.Fatal(err)
	}
	var early atomic.Bool
	watchDocker(t, func(r *http.Request) {
		if r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, left.ID) && early.CompareAndSwap(false, true) {
			r.URL.Path += "0" // which Docker doesn't have
		}
	})
	finish(t, e.start(img, settings("exit", "0")))
	if !early.Load() {
		t.Error("nobody removed it")
	}
}

// TestDockerPortTaken guards that a port which is taken is said before the image is loaded, which takes minutes.
func TestDockerPortTaken(t *testing.T) {
	useDocker(t)
	e := dockerEngineUnderTest(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	var images atomic.Int32
	watchDocker(t, func(r *http.Request) {
		if strings.Contains(r.URL.Path, "/images/") {
			images.Add(1)
		}
	})
	s := tetheredSettings("both")
	s.Publish = []string{taken.Addr().String() + ":8080"}
	sb, err := e.Start(t.Context(), tetheredImage(t), s)
	if err == nil {
		finish(t, sb)
	}
	if want := "address already in use; choose another port: -p 9000:8080"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	if n := images.Load(); n != 0 {
		t.Errorf("Docker was asked %d times for the image", n)
	}
}

// watchDocker has see look at each request to the daemon before that gets it.
func watchDocker(t *testing.T, see func(*http.Request)) {
	t.Helper()
	network, address, _ := strings.Cut(os.Getenv("DOCKER_HOST"), "://")
	daemon := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", "docker" },
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, address)
		}},
	}
	watch := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		see(r)
		daemon.ServeHTTP(w, r)
	}))
	t.Cleanup(watch.Close)
	t.Setenv("DOCKER_HOST", "tcp://"+watch.Listener.Addr().String())
}

// TestDockerStrict guards that a container doesn't even start which lacks a limit.
func TestDockerStrict(t *testing.T) {
	useDocker(t)
	e := dockerEngineUnderTest(t)
	e.Strict = true
	var started atomic.Bool
	watchDocker(t, func(r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/start") {
			started.Store(true)
		}
	})
	output, root := settings("both"), settings("both")
	output.Output, root.ReadOnly = t.TempDir(), false
	for want, s := range map[string]Settings{"size of /output": output, "size of the root file system": root} {
		sb, err := e.Start(t.Context(), guestImage(t), s)
		if err == nil || !strings.Contains(err.Error(), want) || started.Load() {
			t.Errorf("%v, want %s; started: %v", err, want, started.Load())
		}
		if err == nil {
			finish(t, sb)
		}
	}
}
