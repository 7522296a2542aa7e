package e2e

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slimctl/slimctl/internal/need"
	bases "github.com/slimctl/slimctl/internal/standin"
	"github.com/slimctl/slimctl/internal/standin/live"
)

// slimctl compiles the command once.
var slimctl = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "slimctl-e2e-")
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "slimctl")
	cmd := exec.Command("go", "build", "-o", bin, "github.com/slimctl/slimctl/cmd/slimctl")
	cmd.Stderr = os.Stderr
	return bin, cmd.Run()
})

func TestMain(m *testing.M) {
	flag.Parse()
	set := false
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == "test.parallel" })
	if !set { // one more than there are processors: each waits now and then, for a page or for a program that starts
		_ = flag.Set("test.parallel", strconv.Itoa(runtime.GOMAXPROCS(0)+1))
	}
	// What is tested here is built by a program that `go test` doesn't know of. Having looked at its source, `go test` runs
	// these again when that has changed.
	err := filepath.WalkDir("..", func(_ string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // another room's test made it, and has removed it
			return nil
		case err == nil && d.Name() == ".git":
			return fs.SkipDir
		}
		return err
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if bin, err := slimctl(); err == nil {
		os.RemoveAll(filepath.Dir(bin))
	}
	os.Exit(code)
}

func run(t *testing.T, args ...string) {
	t.Helper()
	if err := runSlimctl(args...); err != nil {
		t.Fatal(err)
	}
}

func runSlimctl(args ...string) error {
	bin, err := slimctl()
	if err != nil {
		return fmt.Errorf("go build ./cmd/slimctl: %w", err)
	}
	if out, err := exec.Command(bin, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("slimctl %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// profile is the profile of the closed image: l0, or what SLIMCTL_E2E_PROFILE says. l1 takes the same tests.
func profile() string { return cmp.Or(os.Getenv("SLIMCTL_E2E_PROFILE"), "l0") }

// buildL0 builds the closed image on a base that boots, and gives its reference.
func buildL0(t *testing.T, base string, flags ...string) string {
	t.Helper()
	need.Containers(t)
	need.Program(t, "mmdebstrap")
	return build(t, profile(), base, flags...)
}

// built are the images of profiles and bases. Tests share them.
var built struct {
	sync.Mutex
	images map[[2]string]func() (string, error)
}

// build builds the image of a profile on a base, once.
func build(t *testing.T, profile, base string, flags ...string) string {
	t.Helper()
	if ref := os.Getenv("SLIMCTL_E2E_IMAGE"); ref != "" && base == "standin-live:B" { // bench/strip/peers
		return ref
	}
	built.Lock()
	image, ok := built.images[[2]string{profile, base}]
	if !ok {
		if built.images == nil {
			built.images = map[[2]string]func() (string, error){}
		}
		image = sync.OnceValues(func() (string, error) {
			bin, err := slimctl()
			if err != nil {
				return "", err
			}
			dir, err := os.MkdirTemp(filepath.Dir(bin), "image-") // TestMain removes it
			if err != nil {
				return "", err
			}
			return "oci:" + dir, runSlimctl(append([]string{"build", "--profile", profile, "--base", base, "--platform", "linux/" + runtime.GOARCH, "--output", "type=oci,dest=" + dir}, flags...)...)
		})
		built.images[[2]string{profile, base}] = image
	}
	built.Unlock()
	ref, err := image()
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// standin returns the OCI layout of the base that the image of line B is made from.
func standin(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "base")
	run(t, "standin", "--live", "--line", "B", "--output", dir)
	return "oci:" + dir
}

// grown returns a later base of a line, as its vendor might make it: with what standin.News brings, and with other names for all
// that only the base's own programs know.
func grown(t *testing.T, line string) string {
	t.Helper()
	need.Containers(t)
	need.Program(t, "mmdebstrap")
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	o := bases.Options{Line: line, Rename: rand.Uint64()}
	t.Logf("seed of the names: %d", o.Rename)
	o.Extra, o.Env, _ = bases.News(line)
	dir := filepath.Join(t.TempDir(), "base")
	if _, err := live.Write(t.Context(), filepath.Join(cache, "slimctl"), dir, o); err != nil {
		t.Fatal(err)
	}
	return "oci:" + dir
}

// sdkClient is a client on an official TypeScript SDK that runs in the world.
type sdkClient struct {
	t   *testing.T
	in  io.WriteCloser
	out *bufio.Scanner
	// What it found.
	Hello struct {
		Protocol string
		Tools    []string
	}
}

// startSDK connects one. sdk is "1" or "2", era "legacy" or "modern".
func startSDK(t *testing.T, w *world, key, sdk, era string) *sdkClient {
	t.Helper()
	cmd := w.command(t.Context(), need.Program(t, "node"), need.SDKClient(t, filepath.Join("testdata", "client")), "http://"+public+"/mcp", key, era, sdk)
	var errs strings.Builder
	cmd.Stderr = &errs
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := need.Start(t, cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		need.Kill(cmd)
		if t.Failed() {
			t.Logf("client.mjs: %s", errs.String())
		}
	})
	c := &sdkClient{t: t, in: in, out: bufio.NewScanner(out)}
	c.out.Buffer(nil, 16<<20)
	c.read(&c.Hello)
	return c
}

func (c *sdkClient) read(into any) {
	c.t.Helper()
	if !c.out.Scan() {
		c.t.Fatalf("the client ended: %v", c.out.Err())
	}
	if err := json.Unmarshal(c.out.Bytes(), into); err != nil {
		c.t.Fatalf("%v: %.300s", err, c.out.Text())
	}
}

// result is what the tool answers.
type result struct {
	IsError           bool
	Error             string
	StructuredContent struct {
		ExitCode       int `json:"exit_code"`
		Stdout, Stderr string
	}
}

// call calls browser-shell.
func (c *sdkClient) call(argv ...string) result {
	c.t.Helper()
	line, err := json.Marshal(map[string]any{"tool": "browser-shell", "args": map[string]any{"session_id": "e2e", "argv": argv}})
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.in.Write(append(line, '\n')); err != nil {
		c.t.Fatal(err)
	}
	var r result
	c.read(&r)
	return r
}

// must is call, for what has to work.
func (c *sdkClient) must(argv ...string) string {
	c.t.Helper()
	began := time.Now()
	r := c.call(argv...)
	failed := func() bool { return r.Error != "" || r.IsError || r.StructuredContent.ExitCode != 0 }
	for failed() && repeats(c.t, began, argv, r.Error+r.StructuredContent.Stderr) { // an SDK allows a call 60 s
		r = c.call(argv...)
	}
	if failed() {
		c.t.Fatalf("%v: %+v", argv, r)
	}
	return r.StructuredContent.Stdout
}
