//go:build linux

package sandbox

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/moby/client"

	"github.com/slimctl/slimctl/inspect/sandbox/sandboxtest"
	"github.com/slimctl/slimctl/internal/need"
)

// useDocker makes the test and those below it use a daemon of this machine. They need root to look at a container's network
// and processes.
func useDocker(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		need.Missing(t, "what these tests look at in a container's network and processes needs root")
	}
	t.Setenv("DOCKER_HOST", need.Docker(t))
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
	api, err := client.New(client.FromEnv)
	if err != nil {
		t.Fatal(err)
	}
	defer api.Close()
	ctx := context.Background()
	list, err := api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("label", labelCache+"="+cacheDir)})
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

// countedImage counts how often its layers are asked for.
type countedImage struct {
	v1.Image
	loads *atomic.Int32
}

func (c countedImage) Layers() ([]v1.Layer, error) {
	c.loads.Add(1)
	return c.Image.Layers()
}

// TestDockerKeepsImage guards the second start: an image that Docker doesn't have is loaded once, and removed when no run
// has used it for a while.
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
	finish(t, e.start(img, settings("exit", "0")))
	first := loads.Load()
	before := time.Now()
	sb := e.start(img, settings("sleep"))
	until(t, "ready", says(sb, "ready"))
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
	api, err := client.New(client.FromEnv)
	if err != nil {
		t.Fatal(err)
	}
	defer api.Close()
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

// TestDockerEvidenceFirst guards the evidence of a slimctl that is killed while Docker removes its container: it was written
// before.
func TestDockerEvidenceFirst(t *testing.T) {
	useDocker(t)
	e := dockerEngineUnderTest(t)
	network, address, _ := strings.Cut(os.Getenv("DOCKER_HOST"), "://")
	daemon := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", "docker" },
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, address)
		}},
	}
	s := settings("exit", "3")
	s.Output = t.TempDir()
	var there, removed atomic.Bool
	watch := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if files, _ := filepath.Glob(filepath.Join(s.Output, "*", "evidence.json")); r.Method == http.MethodDelete && strings.Contains(r.URL.Path, "/containers/") && !removed.Swap(true) && len(files) == 1 {
			text, _ := os.ReadFile(files[0])
			there.Store(strings.Contains(string(text), `"exit_code": 3`))
		}
		daemon.ServeHTTP(w, r)
	}))
	defer watch.Close()
	t.Setenv("DOCKER_HOST", "tcp://"+watch.Listener.Addr().String())
	if st := finish(t, e.start(guestImage(t), s)); st.ExitCode != 3 || !removed.Load() || !there.Load() {
		t.Errorf("%+v; a container was removed: %v, and the evidence was there: %v", st, removed.Load(), there.Load())
	}
}
