//go:build linux && docker

package sandbox

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
)

// dockerEngineUnderTest needs root and a Docker Engine that runs already: `go test -tags docker ./inspect/sandbox`. These
// tests are not part of the usual ones, since the engine that must work everywhere is runc, and a Docker daemon takes over a
// machine's firewall.
func dockerEngineUnderTest(t testing.TB) engineUnderTest {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("what these tests look at in a container's network and processes needs root")
	}
	api, err := client.New(client.FromEnv)
	if err != nil {
		t.Fatalf("no Docker: %v", err)
	}
	defer api.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := api.Ping(ctx, client.PingOptions{}); err != nil {
		t.Fatalf("no Docker Engine answers (set DOCKER_HOST to test with one): %v", err)
	}
	e := engineUnderTest{Runner{Runtime: Docker, CacheDir: t.TempDir()}, t}
	t.Cleanup(func() { noContainerLeft(t, e.CacheDir) })
	return e
}

// noContainerLeft checks that Docker has no container and no image of the runs of a cache directory.
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
	images, err := api.ImageList(ctx, client.ImageListOptions{})
	if err != nil {
		t.Error(err)
	}
	for _, i := range images.Items {
		if strings.Contains(strings.Join(i.RepoTags, " "), loadedName+":") {
			t.Errorf("image left: %q", i.RepoTags)
		}
	}
}

// The same tests as with runc, one after another: the images of one are not there in the next.
func TestDocker(t *testing.T) {
	for name, test := range map[string]func(*testing.T, engineUnderTest){
		"closed": testClosed, "user": testUser, "end": testEnd, "no start": testNoStart, "network": testNetwork, "exec": testExec,
		"limits": testLimits, "output": testOutput, "events": testEvents, "audit": testAuditLasts, "audit of a killed process": testAuditOfKilledProcess,
	} {
		t.Run(name, func(t *testing.T) { test(t, dockerEngineUnderTest(t)) })
	}
}

// TestDockerSweep: a container whose run is gone is ended by the next run.
func TestDockerSweep(t *testing.T) {
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
