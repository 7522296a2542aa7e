package main

import (
	"flag"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/slimctl/slimctl/build/overlays"
	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/internal/standin"
	"github.com/slimctl/slimctl/profiles"
)

// TestMain makes of this test binary the program slimctl, too: scripts and the tests of interruption run it as a process
// of its own.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) != "slimctl" {
		flag.Parse()
		set := false
		flag.Visit(func(f *flag.Flag) { set = set || f.Name == "test.parallel" })
		if !set { // most of these tests wait: for retries, for timeouts, for registries
			_ = flag.Set("test.parallel", "6")
		}
	}
	if signal.Ignored(os.Interrupt) { // started in the background: the programs that tests interrupt would inherit that
		signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	}
	testscript.Main(scratched{m}, map[string]func(){"slimctl": main})
}

// scratch is a directory for what tests share, of one test run.
var scratch string

type scratched struct{ m *testing.M }

func (s scratched) Run() int {
	var err error
	if scratch, err = os.MkdirTemp("", "slimctl-test-"); err != nil {
		panic(err)
	}
	defer os.RemoveAll(scratch)
	return s.m.Run()
}

// shared is made once for all tests: the payload, the compiled browser-shell and the stand-ins, in the user's own cache.
var shared = sync.OnceValues(func() (paths []string, err error) {
	cache := findUserCache()
	p, err := profile.Loader{Builtin: profiles.FS}.Load("l0")
	if err != nil {
		return nil, err
	}
	want := p.Payload.AgentBrowser
	ctx := testContext
	if _, err := overlays.Fetch(ctx, want.Version, want.Integrity, overlays.Options{CacheDir: cache}); err != nil {
		return nil, err
	}
	for _, arch := range []string{"amd64", "arm64"} {
		if _, err := overlays.Server(ctx, arch, overlays.Options{CacheDir: cache}); err != nil {
			return nil, err
		}
	}
	paths = []string{filepath.Join(cache, "payload"), filepath.Join(cache, "server")}
	for _, line := range []string{"A", "B", "C"} {
		dir, err := standin.Cached(ctx, cache, line)
		if err != nil {
			return nil, err
		}
		paths = append(paths, dir)
	}
	return paths, nil
})

// coldCache makes dir a cache directory that holds the shared payload and stand-ins, and nothing that was learned about
// any base.
func coldCache(dir string) error {
	paths, err := shared()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, p := range paths {
		if err := os.Symlink(p, filepath.Join(dir, filepath.Base(p))); err != nil {
			return err
		}
	}
	return nil
}

// learned are the directories of a cache that tests share: reading the stand-ins' layers and compressing are most of a
// small build.
var learned = []string{"index", "layers", "stripped"}

// warmCache makes dir a cold cache that also has what other tests learned.
func warmCache(dir string) error {
	if err := coldCache(dir); err != nil {
		return err
	}
	for _, name := range learned {
		target := filepath.Join(scratch, name)
		if err := os.MkdirAll(target, 0o755); err != nil {
			return err
		}
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

// layoutOf is the stand-in of a line, which must not be changed.
func layoutOf(t *testing.T, line string) string {
	t.Helper()
	paths, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range paths {
		if strings.HasPrefix(filepath.Base(p), "standin-"+strings.ToLower(line)+"-") {
			return p
		}
	}
	t.Fatalf("no stand-in of line %s", line)
	return ""
}

// goEnv is what the Go tool needs to find its caches when HOME is another one.
var goEnv = sync.OnceValues(func() ([]string, error) {
	names := []string{"GOCACHE", "GOMODCACHE", "GOPATH", "GOPROXY", "GOTOOLCHAIN", "GOENV"}
	out, err := exec.Command("go", append([]string{"env"}, names...)...).Output()
	if err != nil {
		return nil, err
	}
	values := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	env := make([]string, len(names))
	for i, n := range names {
		env[i] = n + "=" + values[i]
	}
	return env, nil
})

// privateEnv is the environment of a slimctl process with a home and a cache of its own below dir.
func privateEnv(dir string) ([]string, error) {
	env, err := goEnv()
	if err != nil {
		return nil, err
	}
	home := filepath.Join(dir, "home")
	if err := os.MkdirAll(home, 0o755); err != nil {
		return nil, err
	}
	if err := warmCache(filepath.Join(dir, "cache", "slimctl")); err != nil {
		return nil, err
	}
	// GOGC: with slimctl's own percentage a fifth of a small build is garbage collection.
	return append(env, "GOGC=400", "HOME="+home, "XDG_CACHE_HOME="+filepath.Join(dir, "cache"), "PATH="+os.Getenv("PATH")), nil
}
