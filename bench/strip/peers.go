//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/bench/harness"
	"github.com/slimctl/slimctl/build/strip"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/sandbox"
	"github.com/slimctl/slimctl/slim"
)

// variant is an image under test.
type variant struct {
	name, dir, profile string
	files              int
	disk, packed       int64
	findings           []string
	passed, failed     []string // tests in e2e
}

// peers makes images of the files of l0 that were opened, like tools that observe one run, and tests them beside l0 and
// l1.
func peers(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("peers", flag.ExitOnError)
	bin := flags.String("bin", "", "`directory` with slimctl")
	tests := flags.String("e2e", "^(TestKilled|TestPages)$", "tests of e2e to run with what was opened; empty for none")
	_ = flags.Parse(args)
	tmp, err := os.MkdirTemp(*bin, "peers-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	l0, l1 := &variant{name: "l0", profile: "l0-native", dir: filepath.Join(tmp, "l0")}, &variant{name: "l1", profile: "l1", dir: filepath.Join(tmp, "l1")}
	for _, v := range []*variant{l0, l1} {
		if err := buildLive(ctx, *bin, v.profile, v.dir); err != nil {
			return err
		}
	}
	healthy, restarted, err := observeStart(ctx, l0.dir)
	if err != nil {
		return fmt.Errorf("l0: %w", err)
	}
	used, err := l0.try(ctx)
	if err != nil {
		return err
	}
	all := []*variant{l0}
	for _, o := range []struct {
		name   string
		opened map[string]bool
	}{{"healthy", healthy}, {"acceptance", used}} {
		v := &variant{name: "opened until healthy", profile: l0.profile, dir: filepath.Join(tmp, o.name)}
		if o.name != "healthy" {
			v.name = "opened in the whole acceptance"
		}
		if err := writeOpened(ctx, l0.dir, v.dir, tmp, o.opened); err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
		if _, err := v.try(ctx); err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
		if *tests != "" {
			if err := v.test(ctx, *tests); err != nil {
				return err
			}
		}
		all = append(all, v)
	}
	if _, err := l1.try(ctx); err != nil {
		return err
	}
	all = append(all, l1)
	for _, v := range all {
		if err := v.measure(ctx); err != nil {
			return err
		}
	}
	return reportPeers(os.Stdout, all, onlyIn(restarted, healthy, used))
}

func buildLive(ctx context.Context, bin, profile, dir string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "slimctl"), "build", "--profile", profile, "--base", "standin-live:B", "--no-lock",
		"--platform", "linux/"+runtime.GOARCH, "--output", "type=oci,dest="+dir, "--progress", "quiet")
	cmd.Stderr = os.Stderr
	return cmd.Run()
}

func openLayout(ctx context.Context, dir string) (sandbox.Image, error) {
	img, err := harness.OpenLayout(ctx, dir)
	return sandbox.Image{Reference: "oci:" + dir, Image: img}, err
}

// closedSettings returns the settings of a closed image, with enough time on a busy machine.
func closedSettings() sandbox.Settings {
	s := sandbox.Default()
	s.Network, s.CPUs, s.Timeout = sandbox.NetworkNone, float64(runtime.NumCPU()), 20*time.Minute
	s.Env = map[string]string{"SANDBOX_API_KEY": rand.Text()}
	return s
}

// observeStart boots an image. It returns the files opened until it is healthy, and those opened after each program was
// killed and restarted.
func observeStart(ctx context.Context, dir string) (healthy, restarted map[string]bool, err error) {
	img, err := openLayout(ctx, dir)
	if err != nil {
		return nil, nil, err
	}
	sb, err := sandbox.Runner{Runtime: sandbox.Runc, Watch: true}.Start(ctx, img, closedSettings())
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		_, serr := sb.Stop(context.WithoutCancel(ctx))
		err = errors.Join(err, serr)
	}()
	opened := func() (map[string]bool, error) {
		if err := sb.AwaitHealthy(ctx); err != nil {
			return nil, err
		}
		list, err := sb.Opened()
		out := map[string]bool{}
		for _, o := range list {
			out[o.File] = true
		}
		return out, err
	}
	if healthy, err = opened(); err != nil {
		return nil, nil, err
	}
	programs, err := supervised(ctx, sb)
	if err != nil {
		return nil, nil, err
	}
	for _, p := range programs {
		if err := syscall.Kill(p.PID, syscall.SIGKILL); errors.Is(err, syscall.ESRCH) {
			continue // it ended with another program and was restarted
		} else if err != nil {
			return nil, nil, err
		}
		for back := false; !back; {
			time.Sleep(100 * time.Millisecond)
			now, err := supervised(ctx, sb)
			if err != nil || ctx.Err() != nil {
				return nil, nil, errors.Join(err, ctx.Err())
			}
			back = len(now) == len(programs) && !slices.ContainsFunc(now, func(q sandbox.Process) bool { return q.PID == p.PID })
		}
		if _, err := opened(); err != nil {
			return nil, nil, fmt.Errorf("%s was killed: %w", p.Name, err)
		}
	}
	restarted, err = opened()
	return healthy, restarted, err
}

// supervised returns the first process of each of supervisord's programs.
func supervised(ctx context.Context, sb *sandbox.Sandbox) ([]sandbox.Process, error) {
	all, err := sb.Processes(ctx)
	i := slices.IndexFunc(all, func(p sandbox.Process) bool { return p.Name == "supervisord" })
	if err != nil || i < 0 {
		return nil, errors.Join(err, errors.New("no supervisord runs"))
	}
	return slices.DeleteFunc(slices.Clone(all), func(p sandbox.Process) bool { return p.Parent != all[i].PID || p.State == "Z" }), nil
}

// try verifies the image with --run and returns the files that were opened.
func (v *variant) try(ctx context.Context) (map[string]bool, error) {
	fmt.Fprintln(os.Stderr, "verify --run:", v.name)
	verified, err := slim.Verify(ctx, slim.VerifyOptions{
		ResolveOptions: slim.ResolveOptions{Profile: v.profile, Access: slim.Access{Log: func(string, ...any) {}}},
		Image:          "oci:" + v.dir, SurfaceOnly: true,
	})
	if err != nil {
		return nil, err
	}
	err = verified.Run(ctx, slim.RunOptions{Runtime: sandbox.Runc})
	for _, f := range verified.Report.Findings {
		if strings.HasPrefix(f.Rule, "run-") {
			v.findings = append(v.findings, f.Rule+": "+f.Message)
		}
	}
	opened := map[string]bool{}
	for file := range verified.Opened {
		opened[file] = true
	}
	return opened, err
}

// landmark is the file by which Python finds its library. Python only stats it, which tools notice if they trace system
// calls.
const landmark = "/usr/lib/python3*/os.py"

// writeOpened writes an image of the opened files of another, with all directories, and all links that lead to an
// opened file or to a directory.
func writeOpened(ctx context.Context, from, to, tmp string, opened map[string]bool) error {
	img, err := openLayout(ctx, from)
	if err != nil {
		return err
	}
	files, err := (tree.Cache{Dir: filepath.Join(tmp, "index")}).Open(ctx, img, tree.Options{})
	if err != nil {
		return err
	}
	seen, err := files.Glob(landmark)
	if err != nil {
		return err
	}
	keep := map[string]bool{}
	for e := range files.Walk("/") {
		switch end, ok := files.Stat(e.Path); {
		case e.IsDir(), opened[e.Path], slices.Contains(seen, e.Path), ok && e.Type == image.TypeSymlink && (end.IsDir() || opened[end.Path]):
			keep[e.Path] = true
		}
	}
	layers, err := strip.Layers(ctx, strip.Input{
		Base: files, Image: img, Order: []string{"all"}, Time: time.Unix(1, 0), CacheDir: filepath.Join(tmp, "opened"),
		Component: func(p string) string {
			if keep[p] {
				return "all"
			}
			return ""
		},
	})
	if err != nil {
		return err
	}
	var plain []v1.Layer
	for _, l := range layers {
		plain = append(plain, l.Layer)
	}
	made, err := harness.WithLayers(img, plain...)
	if err != nil {
		return err
	}
	return harness.WriteLayout(to, made)
}

// measure counts the image's regular files, hard links once, and the bytes of its layers.
func (v *variant) measure(ctx context.Context) error {
	img, err := openLayout(ctx, v.dir)
	if err != nil {
		return err
	}
	m, err := img.Manifest()
	if err != nil {
		return err
	}
	for _, l := range m.Layers {
		v.packed += l.Size
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	files, err := (tree.Cache{Dir: filepath.Join(cache, "slimctl")}).Open(ctx, img, tree.Options{})
	if err != nil {
		return err
	}
	for e := range files.Walk("/") {
		if e.Type == image.TypeFile {
			v.files++
			v.disk += e.Size
		}
	}
	return nil
}

var testEnd = regexp.MustCompile(`^ *--- (PASS|FAIL|SKIP): (\S+)`)

// test runs tests of e2e on the image.
func (v *variant) test(ctx context.Context, run string) error {
	fmt.Fprintln(os.Stderr, "e2e:", v.name)
	cmd := exec.CommandContext(ctx, "go", "test", "./e2e", "-count=1", "-v", "-timeout", "40m", "-run", run)
	cmd.Env = append(os.Environ(), "SLIMCTL_LONG_TESTS=1", "SLIMCTL_E2E_IMAGE=oci:"+v.dir, "SLIMCTL_E2E_PROFILE="+v.profile)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	err := cmd.Run()
	if failed := new(exec.ExitError); err != nil && !errors.As(err, &failed) {
		return err
	}
	for lines := bufio.NewScanner(&said); lines.Scan(); {
		switch m := testEnd.FindStringSubmatch(lines.Text()); {
		case m == nil:
		case m[1] == "PASS":
			v.passed = append(v.passed, m[2])
		case m[1] == "FAIL":
			v.failed = append(v.failed, m[2])
		}
	}
	fmt.Fprintf(os.Stderr, "%d passed, failed: %q\n", len(v.passed), v.failed)
	if len(v.passed)+len(v.failed) == 0 {
		return fmt.Errorf("go test ./e2e ran nothing: %w", err)
	}
	return nil
}

// onlyIn returns the keys of files that none of the others has, sorted.
func onlyIn(files map[string]bool, others ...map[string]bool) (out []string) {
	for f := range files {
		if !slices.ContainsFunc(others, func(o map[string]bool) bool { return o[f] }) {
			out = append(out, f)
		}
	}
	slices.Sort(out)
	return out
}

func reportPeers(w io.Writer, all []*variant, restarts []string) error {
	t := harness.NewTable(w, "image", "files", "on disk, MB", "to pull, MB", "verify --run: errors", "e2e: failed", "of")
	for _, v := range all {
		t.Rowf("%s\t%d\t%.1f\t%.1f\t%d\t%d\t%d", v.name, v.files, float64(v.disk)/1e6, float64(v.packed)/1e6, len(v.findings), len(v.failed), len(v.failed)+len(v.passed))
	}
	if err := t.End(); err != nil {
		return err
	}
	for _, v := range all {
		for _, f := range v.findings {
			fmt.Fprintf(w, "%s: %s\n", v.name, f)
		}
		for _, f := range v.failed {
			fmt.Fprintf(w, "%s: %s\n", v.name, f)
		}
	}
	_, err := fmt.Fprintf(w, "opened when programs come back, and by nothing else: %d files %s\n", len(restarts), strings.Join(restarts, " "))
	return err
}
