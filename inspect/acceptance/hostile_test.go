//go:build linux

package acceptance

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/moby/client"

	"github.com/slimctl/slimctl/inspect/expect"
	"github.com/slimctl/slimctl/inspect/sandbox"
	"github.com/slimctl/slimctl/inspect/sandbox/sandboxtest"
	"github.com/slimctl/slimctl/internal/dockerd"
	"github.com/slimctl/slimctl/internal/need"
)

// TestHostileImageInDocker guards that an image which does what it likes ends in findings, and leaves nothing in Docker.
func TestHostileImageInDocker(t *testing.T) {
	if os.Geteuid() != 0 {
		need.Missing(t, "what runs in a container is seen by root alone")
	}
	t.Setenv("DOCKER_HOST", dockerd.Host(t))
	for name, c := range map[string]struct {
		does   string
		health []string
	}{
		"a health check that hangs":       {"deaf", []string{"/guest", "deaf"}},
		"a health check without end":      {"flood", []string{"/guest", "flood"}},
		"a health check that isn't there": {"mess", []string{"/nowhere"}},
		"processes, and a false answer":   {"fork 30", []string{"/guest", "both"}},
		"a tether that is none":           {"garbage", []string{"/guest", "both"}},
		"an answer without end":           {"serve 127.0.0.1:8080", []string{"/guest", "both"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := sandboxtest.Tethered
			config.Env = []string{"GUEST=" + c.does, "LD_PRELOAD=/guest", "PATH=/", "DOCKER_HOST=unix:///nowhere"}
			config.Healthcheck = &v1.HealthConfig{Test: append([]string{"CMD"}, c.health...), Interval: 1, Retries: 1}
			config.StopSignal, config.Labels = "SIGNOTHING", map[string]string{"test": t.TempDir()}
			config.Volumes = map[string]struct{}{"/data": {}}
			img := sandboxtest.Image(t, config, sandboxtest.GuestLayer(t), sandboxtest.Layer(t, sandboxtest.Symlink("usr/bin/supervisorctl", "/guest")))
			artifacts := t.TempDir()
			result, err := Run(t.Context(), Options{
				Image:  sandbox.Image{Reference: "hostile", Image: img},
				Expect: &expect.Expect{Profile: "l0", Platform: "linux/amd64", Programs: []string{"browser"}},
				Runner: sandbox.Runner{Runtime: sandbox.Docker, CacheDir: t.TempDir(), StopGrace: time.Second}, Artifacts: artifacts, Patience: 5 * time.Second, Log: t.Logf,
			})
			if err != nil {
				t.Fatal(err)
			}
			if len(result.Findings) == 0 {
				t.Error("nothing is found")
			}
			runs, _ := filepath.Glob(filepath.Join(artifacts, "*"))
			evidence, _ := filepath.Glob(filepath.Join(artifacts, "*", "evidence.json"))
			if len(runs) == 0 || len(runs) != len(evidence) {
				t.Errorf("%d runs, evidence of %d", len(runs), len(evidence))
			}
			api, err := client.New(client.FromEnv)
			if err != nil {
				t.Fatal(err)
			}
			defer api.Close()
			list, err := api.ContainerList(context.Background(), client.ContainerListOptions{All: true})
			if err != nil {
				t.Fatal(err)
			}
			for _, left := range list.Items {
				if slices.ContainsFunc(runs, func(r string) bool { return slices.Contains(left.Names, "/slimctl-"+filepath.Base(r)) }) {
					t.Errorf("left: %s", strings.Join(left.Names, " "))
				}
			}
		})
	}
}
