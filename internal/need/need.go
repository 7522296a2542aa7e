// Package need provides what tests need from the machine. If it is missing, the test is skipped; in CI (CI=true) it
// fails.
package need

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/gofrs/flock"
)

// Program returns the path of a program.
func Program(t testing.TB, name string) string {
	t.Helper()
	if p, err := exec.LookPath(name); err == nil {
		return p
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} { // Debian's place of nginx, which users don't have in PATH
		if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return p
		}
	}
	Missing(t, "%s is not installed", name)
	return ""
}

// Missing skips a test that lacks something, or fails it in CI.
func Missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// Chromium returns the path of a real browser. The test must be a long one.
func Chromium(t testing.TB) string {
	t.Helper()
	requireLong(t, "with a real Chromium")
	return Program(t, "chromium")
}

// Containers requires root and runc. The test must be a long one.
func Containers(t testing.TB) {
	t.Helper()
	requireLong(t, "in real containers")
	if os.Geteuid() != 0 {
		Missing(t, "containers need root")
	}
	Program(t, "runc")
}

// requireLong skips tests that take minutes, unless SLIMCTL_LONG_TESTS=1 or CI is set.
func requireLong(t testing.TB, how string) {
	t.Helper()
	if os.Getenv("SLIMCTL_LONG_TESTS") != "1" && os.Getenv("CI") != "true" {
		Missing(t, "set SLIMCTL_LONG_TESTS=1 to run it %s", how)
	}
}

// SDKClient returns the path of client.mjs beside the MCP SDKs pinned in source (package.json, package-lock.json). npm
// installs them once per machine.
func SDKClient(t testing.TB, source string) string {
	t.Helper()
	npm := Program(t, "npm")
	files, sum := map[string][]byte{}, sha256.New()
	for _, name := range []string{"package.json", "package-lock.json", "client.mjs"} {
		text, err := os.ReadFile(filepath.Join(source, name))
		if err != nil {
			t.Fatal(err)
		}
		files[name] = text
		fmt.Fprintf(sum, "%d %s", len(text), text)
	}
	dir := cached(t, fmt.Sprintf("e2e-client-%.8x", sum.Sum(nil)), filepath.Join("node_modules", ".package-lock.json"), func(tmp string) {
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(tmp, name), text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		cmd := exec.CommandContext(t.Context(), npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund")
		cmd.Dir = tmp
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("npm ci: %v\n%s", err, out)
		}
	})
	return filepath.Join(dir, "client.mjs")
}

// AgentBrowser returns the program of an agent-browser version. npm installs it once per machine. Versions before 0.20
// need node.
func AgentBrowser(t testing.TB, version string) string {
	t.Helper()
	arch := map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH]
	return installed(t, filepath.Join("agent-browser-tested", version), "agent-browser@"+version, "agent-browser/bin/agent-browser-linux-"+arch)
}

// FilesystemServer returns the script of an MCP server for node, one of the protocol's own, that accesses the
// directories in its arguments. npm installs it once per machine.
func FilesystemServer(t testing.TB) string {
	t.Helper()
	const server, version = "@modelcontextprotocol/server-filesystem", "2026.8.31"
	Program(t, "node")
	return installed(t, "mcp-server-filesystem-"+version, server+"@"+version, server+"/dist/index.js")
}

// DebianPackage returns a directory with the unpacked content of a Debian package. It downloads the package once per
// machine.
func DebianPackage(t testing.TB, name string) string {
	t.Helper()
	apt, dpkg := Program(t, "apt-get"), Program(t, "dpkg-deb")
	return cached(t, filepath.Join("debian", name), "usr", func(dir string) {
		run := func(argv ...string) (string, error) {
			cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			return string(out), err
		}
		if _, err := run(apt, "-q", "download", name); err != nil { // a new machine has no package lists
			_, _ = run(apt, "-q", "update")
			if out, err := run(apt, "-q", "download", name); err != nil {
				Missing(t, "apt-get download %s: %v\n%s", name, err, out)
			}
		}
		debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
		if err != nil || len(debs) != 1 {
			t.Fatalf("apt-get download %s left %q: %v", name, debs, err)
		}
		if out, err := run(dpkg, "--extract", debs[0], dir); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if err := os.Remove(debs[0]); err != nil {
			t.Fatal(err)
		}
	})
}

// installed returns the path of a file of an npm package. It installs the package in dir of the cache if the file isn't
// there.
func installed(t testing.TB, dir, pkg, file string) string {
	t.Helper()
	npm := Program(t, "npm")
	file = filepath.Join("node_modules", filepath.FromSlash(file))
	dir = cached(t, dir, file, func(tmp string) {
		cmd := exec.CommandContext(t.Context(), npm, "install", "--prefix", tmp, "--ignore-scripts", "--omit=dev", "--no-audit", "--no-fund", pkg)
		cmd.Dir = tmp
		if out, err := cmd.CombinedOutput(); err != nil {
			Missing(t, "npm install %s: %v\n%s", pkg, err, out)
		}
		if err := os.Chmod(filepath.Join(tmp, file), 0o755); err != nil { // agent-browser's package has no execute bit
			t.Fatal(err)
		}
	})
	return filepath.Join(dir, file)
}

// cached returns a directory of slimctl's cache. If file isn't in it, fill creates the content; others wait meanwhile.
func cached(t testing.TB, name, file string, fill func(dir string)) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "slimctl", name)
	if _, err := os.Stat(filepath.Join(dir, file)); err == nil {
		return dir
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	defer Alone(t, dir+".lock")()
	if _, err := os.Stat(filepath.Join(dir, file)); err == nil { // another one has made it
		return dir
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "new-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tmp)
	fill(tmp)
	if err := os.Rename(tmp, dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Alone waits until no other test of this machine holds the lock in file, and returns what frees it. A process that ends
// frees its locks.
func Alone(t testing.TB, file string) (free func()) {
	t.Helper()
	lock := flock.New(file)
	if _, err := lock.TryLockContext(t.Context(), 50*time.Millisecond); err != nil {
		t.Fatalf("lock %s: %v", file, err)
	}
	return func() { _ = lock.Unlock() }
}
