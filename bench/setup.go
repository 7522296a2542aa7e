//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// bench is one run of the benchmark.
type bench struct {
	options
	tmp     string // temporary files, on the base's file system
	slimctl string
	self    string
	layout  string // the base
	cache   string // slimctl's cache directory, with payload and base index
	payload string // the directory of the payload in the cache
	daemon  string // buildkitd, or empty
	reg     *registryProcess
	machine []string
	base    string
	layers  map[string]bool // of the base, by digest
	repos   int             // the number of repositories so far
	slim    string          // the last image pushed with the lock
	digest  string          // the image's digest, which three rows must have
	begin   time.Time       // start of the first measurement
	samples []sample
}

// enough reports whether to skip repetition n, counted from 0, because the ones before exceeded the budget.
func (b *bench) enough(n int, budget time.Duration) bool {
	late := n > 0 && time.Since(b.begin) > budget
	if late {
		b.logf("the machine is slow: no more repetitions of this part")
	}
	return late
}

func (b *bench) logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// setUp returns a bench, which must be torn down even after an error.
func setUp(ctx context.Context, o options) (*bench, error) {
	b := &bench{options: o}
	var err error
	if b.source, err = filepath.Abs(o.source); err != nil {
		return nil, err
	}
	if b.self, err = os.Executable(); err != nil {
		return nil, err
	}
	if b.dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return nil, err
		}
		b.dir = filepath.Join(user, "slimctl", "bench")
	}
	if b.dir, err = filepath.Abs(b.dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return nil, err
	}
	if b.tmp, err = os.MkdirTemp(b.dir, "run-"); err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context) error{
		b.checkDisk, b.compile, b.findDaemon, b.makeBase, b.startRegistry, b.prepare, b.describe,
	} {
		if err := step(ctx); err != nil {
			return b, err
		}
	}
	return b, nil
}

func (b *bench) tearDown() error {
	if b.reg != nil {
		b.reg.stop()
	}
	return removeAll(b.tmp)
}

// checkDisk checks the free disk space: 4 times the base for file operations in buildkitd's root (its blobs, and
// unpacked), the base, and one copy of it in the registry or an archive.
func (b *bench) checkDisk(context.Context) error {
	var s unix.Statfs_t
	if err := unix.Statfs(b.tmp, &s); err != nil {
		return err
	}
	need := 12*b.weight + 1<<30
	if free := int64(s.Bavail) * s.Bsize; free < need {
		return fmt.Errorf("%s has %.1f GB free and %.1f GB are needed: choose another --dir or a smaller --weight", b.dir, gb(free), gb(need))
	}
	return nil
}

func gb(n int64) float64 { return float64(n) / 1e9 }

// compile builds slimctl like a release, with browser-shell embedded, without writing to the source tree.
func (b *bench) compile(ctx context.Context) error {
	b.logf("compiling slimctl and the registry")
	if err := b.embed(ctx); err != nil {
		return err
	}
	replace := map[string]string{}
	for _, arch := range []string{"amd64", "arm64"} {
		file := "browser-shell-linux-" + arch
		out := filepath.Join(b.tmp, "bin", file)
		replace[filepath.Join(b.source, "build", "overlays", "bin", file)] = out
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	overlayFile := filepath.Join(b.tmp, "bin", "overlay.json")
	if err := os.WriteFile(overlayFile, overlay, 0o644); err != nil {
		return err
	}
	b.slimctl = filepath.Join(b.tmp, "bin", "slimctl")
	if err := b.goBuild(ctx, nil, "-tags", "embedserver", "-overlay", overlayFile, "-ldflags", "-s -w", "-o", b.slimctl, "./cmd/slimctl"); err != nil {
		return err
	}
	return b.goBuild(ctx, nil, "-o", filepath.Join(b.tmp, "bin", "testregistry"), "./internal/registry/testregistry")
}

// embed compiles browser-shell as in a release.
func (b *bench) embed(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "make", "-s", "embed", "STAMP=", "BIN="+filepath.Join(b.tmp, "bin"))
	cmd.Dir = b.source
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make embed: %w\n%s", err, out)
	}
	return nil
}

func (b *bench) goBuild(ctx context.Context, env []string, args ...string) error {
	_, err := b.goRun(ctx, env, append([]string{"build"}, args...)...)
	return err
}

func (b *bench) goRun(ctx context.Context, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = b.source
	cmd.Env = append(os.Environ(), env...)
	return output(cmd)
}

// output returns a command's standard output. Its error has the standard error.
func output(cmd *exec.Cmd) (string, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, tail(stderr.Bytes()))
	}
	return strings.TrimSpace(string(out)), nil
}

func tail(b []byte) []byte { return b[max(0, len(b)-3000):] }

// findDaemon finds $BUILDKITD, the one in PATH, or the one that slimctl's tests build.
func (b *bench) findDaemon(ctx context.Context) error {
	if os.Geteuid() != 0 {
		b.logf("no buildkitd rows: file operations on the base need root")
		return nil
	}
	if b.daemon = os.Getenv("BUILDKITD"); b.daemon != "" {
		return nil
	}
	var err error
	if b.daemon, err = exec.LookPath("buildkitd"); err == nil {
		return nil
	}
	version, err := b.goRun(ctx, nil, "list", "-m", "-f", "{{.Version}}", "github.com/moby/buildkit")
	if err != nil {
		return err
	}
	user, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	b.daemon = filepath.Join(user, "slimctl", "tools", "buildkit-"+version, "buildkitd")
	if _, err := os.Stat(b.daemon); err == nil {
		return nil
	}
	b.logf("building buildkitd %s: some minutes, once", version)
	_, testErr := b.goRun(ctx, nil, "test", "-count=1", "-run", "^TestDaemonComesAndGoes$", "./internal/buildkitd")
	if _, err := os.Stat(b.daemon); err != nil {
		return errors.Join(fmt.Errorf("no buildkitd: install one, or name it in $BUILDKITD: %w", err), testErr)
	}
	return nil
}

// sampleWeight is enough for all kinds of files in a heavy stand-in.
const sampleWeight = 20_000_000

// makeBase writes the heavy stand-in once. Its name depends on a light stand-in's digest, so that a slimctl that makes
// other content writes another.
func (b *bench) makeBase(ctx context.Context) error {
	said, err := b.run(ctx, "standin", "-o", filepath.Join(b.tmp, "sample"), "--weight", fmt.Sprint(sampleWeight))
	if err != nil {
		return err
	}
	_, hex, ok := strings.Cut(said, "@sha256:")
	if !ok || len(hex) < 16 {
		return fmt.Errorf("slimctl standin said %q and no digest", said)
	}
	b.layout = filepath.Join(b.dir, fmt.Sprintf("base-%s-%d", hex[:16], b.weight))
	if _, err := os.Stat(filepath.Join(b.layout, "index.json")); err == nil {
		return nil
	}
	b.logf("writing a base of %.1f GB to %s", gb(2*b.weight), b.layout)
	_, err = b.run(ctx, "standin", "-o", b.layout, "--weight", fmt.Sprint(b.weight))
	return err
}

const (
	baseRepo = "base/aio"
	baseTag  = "1"
)

func (b *bench) reference() string { return b.reg.host + "/" + baseRepo + ":" + baseTag }

// prepare fills the cache with payload and base index, and writes the locks.
func (b *bench) prepare(ctx context.Context) error {
	b.cache = filepath.Join(b.tmp, "cache")
	b.logf("fetching the payload")
	if _, err := b.run(ctx, "payload", "fetch", "--cache-dir", filepath.Join(b.dir, "cache")); err != nil {
		return err
	}
	b.payload = filepath.Join(b.dir, "cache", "payload")
	if err := b.freshCache(b.cache); err != nil {
		return err
	}
	if err := b.writeProfile("first"); err != nil {
		return err
	}
	b.logf("writing the locks")
	for lock, base := range map[string]string{b.lock("registry"): b.reference(), b.lock("layout"): "oci:" + b.layout} {
		if _, err := b.run(ctx, "lock", "--cache-dir", b.cache, "--progress", "quiet", "--profile", b.profile(), "--base", base, "-o", lock); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) profile() string         { return filepath.Join(b.tmp, "bench.yaml") }
func (b *bench) lock(kind string) string { return filepath.Join(b.tmp, kind+".lock") }

// writeProfile writes the profile: l0 with one file, whose content differs between a cold and a warm build.
func (b *bench) writeProfile(content string) error {
	return os.WriteFile(b.profile(), fmt.Appendf(nil, `version: 1
name: bench
extends: l0
overlays:
  - name: bench
    why: the one file that changes between a cold and a warm build
    files:
      - {path: /opt/slimctl-bench, content: %q}
`, content), 0o644)
}

// freshCache creates a cache directory with only the payload.
func (b *bench) freshCache(dir string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return linkTree(b.payload, filepath.Join(dir, "payload"))
}

// linkTree makes hard links of all files.
func linkTree(from, to string) error {
	return filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, p)
		if err != nil {
			return err
		}
		dst := filepath.Join(to, rel)
		switch {
		case d.IsDir():
			info, err := d.Info()
			if err != nil {
				return err
			}
			return os.MkdirAll(dst, info.Mode().Perm()|0o700)
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			return os.Symlink(target, dst)
		}
		return os.Link(p, dst)
	})
}
