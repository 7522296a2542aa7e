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
	"time"

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
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
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

// envsubstLine is a rendering in a start script, of one file whose name is written out.
var envsubstLine = regexp.MustCompile(`envsubst '([^']*)' (?:\\\n\s*)?<(/opt/gem/[^\s"$]+) >(/opt/gem/[^\s"$]+)`)

// TestNginxTakesTheBuiltConfiguration renders /opt/gem of the built image by the envsubst lines of its own start scripts
// and with its own environment, and lets the real nginx check the result.
func TestNginxTakesTheBuiltConfiguration(t *testing.T) {
	t.Parallel()
	nginx, envsubst := need.Program(t, "nginx"), need.Program(t, "envsubst")
	for _, line := range []string{"A", "B", "C"} {
		for _, auth := range []string{"with", "without"} {
			t.Run(line+" "+auth+" auth", func(t *testing.T) {
				t.Parallel()
				img := builtImage(t, line, "linux/amd64")
				dir := t.TempDir()
				tree := mutate.Extract(img)
				defer tree.Close()
				if err := unpack(tree, dir, "opt/gem/"); err != nil {
					t.Fatal(err)
				}
				gem := filepath.Join(dir, "opt", "gem")
				render(t, img, gem, envsubst, auth)
				for _, d := range []string{"body", "novnc", "novnc/app"} {
					if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
						t.Fatal(err)
					}
				}
				move := strings.NewReplacer("/opt/gem/", gem+"/", "/opt/novnc/", dir+"/novnc/", "/var/lib/nginx/", dir+"/",
					"/var/run/nginx.pid", dir+"/nginx.pid", "/dev/stderr", dir+"/error.log", "/dev/stdout", dir+"/access.log")
				confs, err := filepath.Glob(filepath.Join(gem, "nginx*.conf"))
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range confs {
					data, err := os.ReadFile(f)
					if err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(f, []byte(move.Replace(string(data))), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				out, err := exec.Command(nginx, "-t", "-p", dir, "-c", filepath.Join(gem, "nginx.conf")).CombinedOutput()
				if err != nil {
					t.Errorf("nginx -t: %v\n%s", err, out)
				}
				dump, err := exec.Command(nginx, "-T", "-p", dir, "-c", filepath.Join(gem, "nginx.conf")).Output()
				if err != nil {
					t.Fatal(err)
				}
				if n := len(regexp.MustCompile(`(?m)^\s*server\s*\{`).FindAll(dump, -1)); n != 1 {
					t.Errorf("%d servers, want one public one", n)
				}
			})
		}
	}
}

// render does what the image's start scripts do to the files of /opt/gem, which lies in gem here.
func render(t *testing.T, img v1.Image, gem, envsubst, auth string) {
	t.Helper()
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	done := map[string]bool{}
	for _, script := range []string{"run.sh", "entrypoint.sh", "gem_init.sh"} {
		text, err := os.ReadFile(filepath.Join(gem, script))
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range envsubstLine.FindAllStringSubmatch(string(text), -1) {
			vars, from, to := m[1], strings.Replace(m[2], "/opt/gem", gem, 1), strings.Replace(m[3], "/opt/gem", gem, 1)
			if strings.Contains(from, "-auth.conf") && !strings.Contains(from, "-"+auth+"-auth") {
				continue
			}
			in, err := os.Open(from)
			if os.IsNotExist(err) && strings.Contains(string(text), "[ -f "+m[2]) || strings.HasSuffix(from, "mcp-hub.json.template") || strings.HasSuffix(from, "nginx.mcp.conf") {
				continue // only rendered when something that L0 removes is there
			}
			if err != nil {
				t.Fatalf("%s reads %s: %v", script, m[2], err)
			}
			cmd := exec.Command(envsubst, vars)
			cmd.Env, cmd.Stdin = config.Config.Env, in
			out, err := cmd.Output()
			in.Close()
			if err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(to, out, 0o644); err != nil {
				t.Fatal(err)
			}
			done[filepath.Base(to)] = true
		}
	}
	if !done["nginx-server-active.conf"] {
		t.Fatalf("the start scripts render no nginx-server-active.conf: %v", done)
	}
}
