// Package need says what a test needs of the machine it runs on. Where that is missing the test is skipped; in CI
// (CI=true) it fails, since there nothing may be missing.
package need

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// Program gives the path of a program.
func Program(t testing.TB, name string) string {
	t.Helper()
	if p, err := exec.LookPath(name); err == nil {
		return p
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} { // where Debian has nginx, outside of a user's PATH
		if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return p
		}
	}
	Missing(t, "%s is not installed", name)
	return ""
}

// Missing ends a test that lacks something.
func Missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// Chromium gives the path of a real browser, for a long test.
func Chromium(t testing.TB) string {
	t.Helper()
	long(t, "with a real Chromium")
	return Program(t, "chromium")
}

// Containers is for a long test that boots images: it needs root and runc.
func Containers(t testing.TB) {
	t.Helper()
	long(t, "in real containers")
	if os.Geteuid() != 0 {
		Missing(t, "containers need root")
	}
	Program(t, "runc")
}

// long skips tests that take minutes, unless SLIMCTL_LONG_TESTS=1 or in CI.
func long(t testing.TB, how string) {
	t.Helper()
	if os.Getenv("SLIMCTL_LONG_TESTS") != "1" && os.Getenv("CI") != "true" {
		Missing(t, "set SLIMCTL_LONG_TESTS=1 to run it %s", how)
	}
}

// SDKClient installs the pinned MCP SDKs of a directory with package.json, package-lock.json and client.mjs, once a machine.
// It returns the path of client.mjs beside them.
func SDKClient(t testing.TB, source string) string {
	t.Helper()
	npm := Program(t, "npm")
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "slimctl", "e2e-client")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	fresh := true
	for _, name := range []string{"package.json", "package-lock.json", "client.mjs"} {
		text, err := os.ReadFile(filepath.Join(source, name))
		if err != nil {
			t.Fatal(err)
		}
		old, _ := os.ReadFile(filepath.Join(dir, name)) // not there: not the same
		if string(old) == string(text) {
			continue
		}
		fresh = fresh && name == "client.mjs"
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "node_modules", ".package-lock.json")); err == nil && fresh {
		return filepath.Join(dir, "client.mjs")
	}
	cmd := exec.CommandContext(t.Context(), npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
	return filepath.Join(dir, "client.mjs")
}

// AgentBrowser gives the program of one agent-browser version, which npm installs once a machine. The versions before 0.20
// need node.
func AgentBrowser(t testing.TB, version string) string {
	t.Helper()
	arch := map[string]string{"amd64": "x64", "arm64": "arm64"}[runtime.GOARCH]
	return installed(t, filepath.Join("agent-browser-tested", version), "agent-browser@"+version, "agent-browser/bin/agent-browser-linux-"+arch)
}

// FilesystemServer gives the script of an MCP server for node that reads and writes files of the directories named in its
// arguments, one of the protocol's own. npm installs it once a machine.
func FilesystemServer(t testing.TB) string {
	t.Helper()
	const server, version = "@modelcontextprotocol/server-filesystem", "2026.8.31"
	Program(t, "node")
	return installed(t, "mcp-server-filesystem-"+version, server+"@"+version, server+"/dist/index.js")
}

// DebianPackage returns the directory into which a package of this machine's Debian is unpacked, once a machine.
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
		if _, err := run(apt, "-q", "download", name); err != nil { // on a new machine apt has no lists yet
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

// installed returns the path of a file of an npm package, which it installs into dir of the cache if it isn't there.
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
		if err := os.Chmod(filepath.Join(tmp, file), 0o755); err != nil { // npm gives agent-browser without the execute bit
			t.Fatal(err)
		}
	})
	return filepath.Join(dir, file)
}

// cached returns a directory of slimctl's cache, which fill makes when file isn't in it.
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
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "new-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tmp)
	fill(tmp)
	if err := os.Rename(tmp, dir); err != nil { // another test may have been faster
		if _, serr := os.Stat(filepath.Join(dir, file)); serr != nil {
			t.Fatal(err)
		}
	}
	return dir
}
