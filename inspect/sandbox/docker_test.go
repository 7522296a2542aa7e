//go:build linux

package sandbox

import (
	"context"
	"os"
	"testing"

	"github.com/moby/moby/client"

	"github.com/slimctl/slimctl/internal/need"
)

// dockerEngineUnderTest needs root on the daemon's machine, to look at a container's network and processes.
func dockerEngineUnderTest(t testing.TB) engineUnderTest {
	t.Helper()
	if os.Geteuid() != 0 {
		need.Missing(t, "what these tests look at in a container's network and processes needs root")
	}
	t.Setenv("DOCKER_HOST", need.Docker(t))
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
	for name, test := range map[string]func(*testing.T, engineUnderTest){
		"closed": testClosed, "user": testUser, "end": testEnd, "no start": testNoStart, "network": testNetwork, "exec": testExec,
		"limits": testLimits, "output": testOutput, "events": testEvents, "audit": testAuditLasts, "audit of a killed process": testAuditOfKilledProcess,
		"egress": testEgress, "network none": testNetworkNone, "hostile tether": testHostileTether,
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
