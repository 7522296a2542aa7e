package overlays

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/internal/need"
)

func read(t *testing.T, f image.File) []byte {
	t.Helper()
	r, err := f.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if int64(len(data)) != f.Size {
		t.Errorf("%s: %d bytes, entry says %d", f.Path, len(data), f.Size)
	}
	return data
}

// TestTamperedCache: whatever is changed in a cached payload, Fetch gives the true content again.
func TestTamperedCache(t *testing.T) {
	p := fetched(t, nodeVersion, nodeSum)
	npm := npmFrom(t, p).Npm
	daemon := filepath.Join("dist", "daemon.js")
	for name, tamper := range map[string]func(t *testing.T, dir string){
		"changed": func(t *testing.T, dir string) { put(t, filepath.Join(dir, daemon), "evil()") },
		"changed, list too": func(t *testing.T, dir string) {
			put(t, filepath.Join(dir, daemon), "evil()")
			m, err := describe(dir, nodeSum)
			if err != nil {
				t.Fatal(err)
			}
			put(t, filepath.Join(dir, manifestName), string(m.encode()))
		},
		"added":          func(t *testing.T, dir string) { put(t, filepath.Join(dir, "dist", "evil.js"), "") },
		"missing":        func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, daemon))) },
		"bad list":       func(t *testing.T, dir string) { put(t, filepath.Join(dir, manifestName), "{") },
		"no list":        func(t *testing.T, dir string) { must(t, os.Remove(filepath.Join(dir, manifestName))) },
		"file to link":   func(t *testing.T, dir string) { relink(t, dir, daemon) },
		"folder to link": func(t *testing.T, dir string) { relink(t, dir, "dist") },
		"whole to link":  func(t *testing.T, dir string) { relink(t, filepath.Dir(dir), filepath.Base(dir)) },
	} {
		t.Run(name, func(t *testing.T) {
			o, dir := privateCache(t, p)
			o.Npm = npm
			tamper(t, dir)
			again, err := Fetch(context.Background(), nodeVersion, nodeSum, o)
			if err != nil {
				t.Fatal(err)
			}
			if again.Digest != p.Digest {
				t.Errorf("digest %s, want %s", again.Digest, p.Digest)
			}
			if err := lockManifest(t).verify(dir); err != nil {
				t.Error(err)
			}
			noLeftovers(t, o.CacheDir, "payload", filepath.Base(dir))
		})
	}
}

func lockManifest(t *testing.T) manifest {
	t.Helper()
	l, err := findLock(nodeVersion, "")
	must(t, err)
	return *l.manifest
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// relink replaces name in dir by a link to a copy of it elsewhere.
func relink(t *testing.T, dir, name string) {
	t.Helper()
	away := filepath.Join(t.TempDir(), "away")
	must(t, os.Rename(filepath.Join(dir, name), away))
	must(t, os.Symlink(away, filepath.Join(dir, name)))
}

func TestChangedAfterFetch(t *testing.T) {
	o, dir := privateCache(t, fetched(t, nodeVersion, nodeSum))
	p, err := Fetch(context.Background(), nodeVersion, nodeSum, o)
	must(t, err)
	files, err := p.Files("amd64")
	must(t, err)
	daemon := find(t, files, "/opt/agent-browser/dist/daemon.js")
	good := read(t, daemon)
	for name, bad := range map[string]string{
		"same length": strings.Repeat("x", len(good)), "shorter": "x", "longer": string(good) + "x",
	} {
		put(t, filepath.Join(dir, "dist", "daemon.js"), bad)
		r, err := daemon.Open()
		must(t, err)
		if _, err := io.ReadAll(r); !errors.Is(err, ErrIntegrity) {
			t.Errorf("%s: error %v, want ErrIntegrity", name, err)
		}
		r.Close()
	}
	if err := p.Export(filepath.Join(t.TempDir(), "out")); !errors.Is(err, ErrIntegrity) {
		t.Errorf("Export: error %v, want ErrIntegrity", err)
	}
}

// TestFromCacheWithoutNpm: a payload in the cache needs no npm.
func TestFromCacheWithoutNpm(t *testing.T) {
	o, _ := privateCache(t, fetched(t, nodeVersion, nodeSum))
	t.Setenv("PATH", "")
	if _, err := Fetch(context.Background(), nodeVersion, nodeSum, o); err != nil {
		t.Error(err)
	}
	o.CacheDir = t.TempDir()
	_, err := Fetch(context.Background(), nodeVersion, nodeSum, o)
	if !errors.Is(err, ErrNoTool) || !strings.Contains(err.Error(), "--payload DIR") {
		t.Errorf("error %v, want ErrNoTool and a way out", err)
	}
	noLeftovers(t, o.CacheDir, "payload")
}

// fakeNpm writes a program that answers as npm would.
func fakeNpm(t *testing.T, script string) Options {
	t.Helper()
	npm := filepath.Join(t.TempDir(), "npm")
	must(t, os.WriteFile(npm, []byte("#!/bin/sh\n"+script), 0o755))
	return Options{CacheDir: t.TempDir(), Npm: npm, Log: t.Logf}
}

// npmFrom is an npm that installs p again, without a registry.
func npmFrom(t *testing.T, p *Payload) Options {
	t.Helper()
	need.Program(t, "sh")
	return fakeNpm(t, fmt.Sprintf(`set -e
cd '%s'
mkdir -p "$OLDPWD/node_modules/agent-browser"
cp -r node_modules/. "$OLDPWD/node_modules/"
cp -r bin dist package.json LICENSE "$OLDPWD/node_modules/agent-browser/"
cp "$OLDPWD/package-lock.json" "$OLDPWD/node_modules/.package-lock.json"
`, p.dir))
}

func TestNpmErrors(t *testing.T) {
	need.Program(t, "sh")
	for code, says := range map[string]string{
		"E404":         "no such version",
		"EINTEGRITY":   "integrity mismatch",
		"ECONNREFUSED": "can't be reached",
		"ENOSPC":       "disk is full",
		"ESOMETHING":   "the reason",
	} {
		t.Run(code, func(t *testing.T) {
			o := fakeNpm(t, fmt.Sprintf("mkdir node_modules; echo x >node_modules/y; printf 'npm error code %s\\nnpm error the reason\\033[2J\\n' >&2; exit 1", code))
			_, err := Fetch(context.Background(), nodeVersion, nodeSum, o)
			if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), code) {
				t.Fatalf("error %v, want %q and the code", err, says)
			}
			if strings.ContainsRune(err.Error(), '\033') {
				t.Error("npm's control characters reach the terminal")
			}
			if errors.Is(err, ErrIntegrity) != (code == "EINTEGRITY") {
				t.Errorf("%v: ErrIntegrity or not is wrong", err)
			}
			noLeftovers(t, o.CacheDir, "payload")
		})
	}
}

// TestOffline: real npm, no registry, an empty npm cache.
func TestOffline(t *testing.T) {
	need.Program(t, "npm")
	t.Setenv("npm_config_registry", "http://127.0.0.1:1/")
	t.Setenv("npm_config_cache", t.TempDir())
	t.Setenv("npm_config_fetch_retries", "0")
	o := Options{CacheDir: t.TempDir()}
	_, err := Fetch(context.Background(), nodeVersion, nodeSum, o)
	if err == nil || !strings.Contains(err.Error(), "can't be reached") {
		t.Errorf("error %v, want that the registry can't be reached", err)
	}
	noLeftovers(t, o.CacheDir, "payload")
}

// TestTwoAtOnce: runs that share an empty cache both get the payload, and can read it.
func TestTwoAtOnce(t *testing.T) {
	o := npmFrom(t, fetched(t, nodeVersion, nodeSum))
	var group errgroup.Group
	for i := range 3 {
		group.Go(func() error {
			p, err := Fetch(context.Background(), nodeVersion, nodeSum, o)
			if err != nil {
				return err
			}
			return p.Export(filepath.Join(o.CacheDir, fmt.Sprint("out", i)))
		})
	}
	must(t, group.Wait())
	noLeftovers(t, o.CacheDir, "payload", filepath.Base(fetched(t, nodeVersion, nodeSum).dir))
}

// TestUserConfig: settings of the user that would change the tree, or stop npm, don't.
func TestUserConfig(t *testing.T) {
	need.Program(t, "npm")
	rc := filepath.Join(t.TempDir(), "npmrc")
	put(t, rc, readString(filepath.Join(os.Getenv("HOME"), ".npmrc"))+`
engine-strict=true
package-lock=false
install-strategy=nested
dry-run=true
global=true
loglevel=silent
`)
	t.Setenv("npm_config_userconfig", rc)
	p, err := Fetch(context.Background(), nodeVersion, nodeSum, Options{CacheDir: t.TempDir()})
	must(t, err)
	must(t, p.Matches(nodeVersion, nodeSum))
}

// TestNpmLies: an npm that ends well but installed something else.
func TestNpmLies(t *testing.T) {
	need.Program(t, "sh")
	for name, c := range map[string]struct{ script, says string }{
		"nothing":         {"exit 0", "no list"},
		"other integrity": {`mkdir node_modules; echo '{"packages":{"node_modules/agent-browser":{"integrity":"sha512-x"}}}' >node_modules/.package-lock.json`, "sha512-x"},
		"other files": {`mkdir -p node_modules/agent-browser/dist; cp package-lock.json node_modules/.package-lock.json
echo 'evil()' >node_modules/agent-browser/dist/daemon.js`, "integrity mismatch"},
		"a link": {`mkdir -p node_modules/agent-browser; cp package-lock.json node_modules/.package-lock.json
ln -s /etc/passwd node_modules/agent-browser/LICENSE`, "regular files only"},
	} {
		t.Run(name, func(t *testing.T) {
			o := fakeNpm(t, c.script)
			_, err := Fetch(context.Background(), nodeVersion, nodeSum, o)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want %q", err, c.says)
			}
			noLeftovers(t, o.CacheDir, "payload")
		})
	}
}

// TestCancelled: npm and its children end, and nothing stays.
func TestCancelled(t *testing.T) {
	need.Program(t, "sh")
	pidFile := filepath.Join(t.TempDir(), "pid")
	o := fakeNpm(t, fmt.Sprintf("sleep 300 & echo $! >'%s.tmp'; mv '%s.tmp' '%s'; wait", pidFile, pidFile, pidFile))
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for deadline := time.Now().Add(need.Patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			if _, err := os.Stat(pidFile); err == nil {
				break
			}
		}
		cancel()
	}()
	_, err := Fetch(ctx, nodeVersion, nodeSum, o)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
	noLeftovers(t, o.CacheDir, "payload")
	pid, err := os.ReadFile(pidFile)
	must(t, err)
	need.Eventually(t, func() bool { return !running(strings.TrimSpace(string(pid))) },
		func() string { return fmt.Sprintf("npm's child %s still runs", pid) })
}

// running reports whether a process is there and no zombie.
func running(pid string) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z")
}

func TestNpmEnv(t *testing.T) {
	rc := filepath.Join(t.TempDir(), "npmrc")
	put(t, rc, "//example.test/:_authToken=${MY_TOKEN}\nx=${NODE_OPTIONS}\n")
	got := npmEnv([]string{
		"PATH=/bin", "HOME=/h", "AWS_SECRET=1", "MY_TOKEN=2", "NODE_OPTIONS=--require=evil", "npm_config_userconfig=" + rc,
		"npm_config_local_prefix=/elsewhere", "https_proxy=http://p", "NPM_TOKEN=3",
	})
	want := []string{"PATH=/bin", "HOME=/h", "MY_TOKEN=2", "npm_config_userconfig=" + rc, "https_proxy=http://p", "NPM_TOKEN=3"}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestSweep(t *testing.T) {
	room := t.TempDir()
	old, young, other := filepath.Join(room, tempPrefix+"old"), filepath.Join(room, tempPrefix+"young"), filepath.Join(room, "other")
	for _, dir := range []string{old, young, other} {
		must(t, os.Mkdir(dir, 0o755))
	}
	past := time.Now().Add(-2 * staleAfter)
	must(t, os.Chtimes(old, past, past))
	must(t, os.Chtimes(other, past, past))
	removeStale(room)
	for dir, want := range map[string]bool{old: false, young: true, other: true} {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

func find(t *testing.T, files []image.File, path string) image.File {
	t.Helper()
	for _, f := range files {
		if f.Path == path {
			return f
		}
	}
	t.Fatalf("%s is not there", path)
	return image.File{}
}

// command runs a program for a test and gives what it prints.
func command(t *testing.T, env []string, name string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env, cmd.Dir = env, t.TempDir()
	out, err := cmd.CombinedOutput()
	return string(out), err
}
