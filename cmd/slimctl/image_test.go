package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/internal/need"
)

// built is the L0 image of a line, built once by the CLI.
var built = map[string]func() (string, error){"A": buildOnce("A"), "B": buildOnce("B"), "C": buildOnce("C")}

func buildOnce(line string) func() (string, error) {
	return sync.OnceValues(func() (string, error) {
		if _, err := shared(); err != nil {
			return "", err
		}
		out := filepath.Join(scratch, "line-"+line)
		code, _, stderr := slimctl(testContext, "build", "--base", "standin:"+line, "--output", "type=oci,dest="+out)
		if code != exitOK {
			return "", fmt.Errorf("exit code %d: %s", code, stderr)
		}
		return out, nil
	})
}

func builtImage(t *testing.T, line, platform string) v1.Image {
	t.Helper()
	dir, err := built[line]()
	if err != nil {
		t.Fatal(err)
	}
	img, ok := imagesOf(t, "oci:"+dir, "")[platform]
	if !ok {
		t.Fatalf("no %s in %s", platform, dir)
	}
	return img
}

// TestToolOfTheBuiltImage takes the browser-shell out of the image and asks it for its tools.
func TestToolOfTheBuiltImage(t *testing.T) {
	t.Parallel()
	data, err := fileIn(builtImage(t, "B", "linux/"+runtime.GOARCH), "/usr/local/bin/browser-shell")
	if err != nil {
		t.Fatal(err)
	}
	policy, err := fileIn(builtImage(t, "B", "linux/"+runtime.GOARCH), "/etc/agent-browser/browser-shell.policy.json")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "browser-shell")
	if err := os.WriteFile(program, data, 0o755); err != nil {
		t.Fatal(err)
	}
	policyFile := filepath.Join(dir, "policy.json")
	if err := os.WriteFile(policyFile, policy, 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), need.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "mcp")
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + dir}
	cmd.Stderr = os.Stderr
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	session, err := client.Connect(ctx, &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	list, err := session.ListTools(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
	}
	if len(names) != 1 || names[0] != "browser-shell" {
		t.Errorf("tools %q, want browser-shell and no other", names)
	}
}

// TestNginxTakesTheBuiltConfiguration lets the real nginx check the configuration as it lies in the built image.
func TestNginxTakesTheBuiltConfiguration(t *testing.T) {
	t.Parallel()
	nginx := need.Program(t, "nginx")
	for _, line := range []string{"A", "B", "C"} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			tree := mutate.Extract(builtImage(t, line, "linux/amd64"))
			defer tree.Close()
			if err := unpack(tree, dir, "opt/gem/"); err != nil {
				t.Fatal(err)
			}
			gem := filepath.Join(dir, "opt", "gem")
			move := strings.NewReplacer("/opt/gem/", gem+"/", "/opt/novnc/", dir+"/novnc/", "/run/nginx/", dir+"/", "/dev/stdout", dir+"/access.log",
				"user nobody browser-shell;", "user nobody nogroup;")
			confs, err := filepath.Glob(filepath.Join(gem, "nginx*.conf"))
			if err != nil {
				t.Fatal(err)
			}
			mains := 0
			for _, f := range confs {
				data, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(f, []byte(move.Replace(string(data))), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			for _, f := range confs {
				if data, err := os.ReadFile(f); err != nil || !strings.Contains(string(data), "\nhttp {") {
					continue
				}
				mains++
				dump, err := exec.Command(nginx, "-T", "-p", dir, "-c", f).CombinedOutput()
				if err != nil {
					t.Errorf("%s: %v\n%s", filepath.Base(f), err, dump)
				}
				if n := len(regexp.MustCompile(`(?m)^\s*server\s*\{`).FindAll(dump, -1)); n != 1 {
					t.Errorf("%s: %d servers, want one", filepath.Base(f), n)
				}
			}
			if mains != 4 {
				t.Errorf("%d main files, want 4", mains)
			}
		})
	}
}
