package sandbox

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/internal/need"
)

// TestDockerClient checks that run and mcp find the daemon that the docker program finds: build --load uses that.
func TestDockerClient(t *testing.T) {
	need.Program(t, "docker")
	dir := t.TempDir()
	for _, name := range []string{"DOCKER_HOST", "DOCKER_CONTEXT"} {
		t.Setenv(name, "")
		os.Unsetenv(name)
	}
	t.Setenv("DOCKER_CONFIG", dir)
	for _, args := range [][]string{
		{"context", "create", "laptop", "--docker", "host=unix:///laptop.sock"},
		{"context", "create", "far", "--docker", "host=tcp://far.example:2376"},
		{"context", "use", "laptop"},
	} {
		if out, err := exec.CommandContext(t.Context(), "docker", args...).CombinedOutput(); err != nil {
			t.Fatalf("docker %s: %v\n%s", args, err, out)
		}
	}
	for name, c := range map[string]struct{ variable, value, want string }{
		"the context in use":  {"DOCKER_CONFIG", dir, "unix:///laptop.sock"},
		"DOCKER_CONTEXT":      {"DOCKER_CONTEXT", "far", "tcp://far.example:2376"},
		"the default context": {"DOCKER_CONTEXT", "default", "unix:///var/run/docker.sock"},
		"DOCKER_HOST":         {"DOCKER_HOST", "unix:///mine.sock", "unix:///mine.sock"},
		"no configuration":    {"DOCKER_CONFIG", t.TempDir(), "unix:///var/run/docker.sock"},
		"no such context":     {"DOCKER_CONTEXT", "lost", "context \"lost\" isn't there; `docker context ls`"},
		"DOCKER_HOST by ssh":  {"DOCKER_HOST", "ssh://far.example", "http://docker.example.com"}, // what ssh's connections are for
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(c.variable, c.value)
			api, err := newDockerClient()
			switch {
			case err != nil && !strings.Contains(err.Error(), c.want):
				t.Errorf("got %v, want %s", err, c.want)
			case err == nil && api.DaemonHost() != c.want:
				t.Errorf("got %s, want %s", api.DaemonHost(), c.want)
			}
		})
	}
}
