//go:build linux

// Command strip measures `slimctl build --profile l1` on a heavy base against the least that any program must do for the same
// layers, and against BuildKit, in one run. ../README.md says what each row means.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/klauspost/pgzip"

	"github.com/slimctl/slimctl/bench/harness"
	"github.com/slimctl/slimctl/build/strip"
)

type bench struct {
	bin, base, tmp string
	runs           int
	samples        map[string][]harness.Used
}

// The rows. They run in turn, so that changes in the machine's speed affect all of them.
const (
	rowFloor  = "floor: inflate the base, compress what stays, all cores"
	rowFirst  = "slimctl build --profile l1, nothing cached"
	rowIndex  = "slimctl build --profile l1, with the base's index"
	rowAgain  = "slimctl build --profile l1, again"
	rowLock   = "slimctl build --profile l1, again, with the lock"
	rowVerify = "slimctl verify --profile l1, with the lock"
)

func main() {
	harness.Main("bench/strip", func(ctx context.Context) error {
		what, args := "", os.Args[1:]
		if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
			what, args = args[0], args[1:]
		}
		switch {
		case what == "": // prints the table of README.md
		case what == "floor" && len(args) == 2: // a separate process, like slimctl
			return runFloor(args[0], args[1])
		case what == "graft" && len(args) == 4:
			return graftLayers(ctx, args[0], args[1], args[2], args[3])
		case what == "peers":
			return peers(ctx, args)
		case what == "boot":
			return boots(ctx, args)
		case what == "linear":
			return linear(ctx, args)
		case what == "update":
			return measureUpdates(ctx, args)
		default:
			return fmt.Errorf("unknown benchmark %q with %d arguments", what, len(args))
		}
		b := &bench{samples: map[string][]harness.Used{}}
		flag.StringVar(&b.bin, "bin", "", "`directory` with slimctl")
		flag.StringVar(&b.base, "base", "", "OCI `layout` of the base")
		flag.IntVar(&b.runs, "runs", 3, "repetitions")
		flag.Parse()
		return b.run(ctx)
	})
}

func (b *bench) run(ctx context.Context) (err error) {
	if b.bin == "" || b.base == "" || b.runs < 1 || flag.NArg() > 0 {
		return errors.New("start it with bash bench/strip/run --base LAYOUT")
	}
	b.tmp = filepath.Join(b.bin, "tmp")
	if err := os.RemoveAll(b.tmp); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.tmp)) }()
	kept := filepath.Join(b.tmp, "kept")
	if err := os.MkdirAll(kept, 0o755); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cache, out, lock := filepath.Join(b.tmp, "cache"), filepath.Join(b.tmp, "out"), filepath.Join(b.tmp, "slim.lock")
	slimctl := func(args ...string) []string {
		return append([]string{filepath.Join(b.bin, "slimctl"), "--cache-dir", cache}, args...)
	}
	build := slimctl("build", "--profile", "l1", "--base", "oci:"+b.base, "--platform", "linux/"+runtime.GOARCH,
		"--output", "type=oci,dest="+out, "--progress", "quiet")
	if err := b.prepare(ctx, cache, build, kept); err != nil {
		return err
	}
	lockArgs := []string{"--profile", "l1", "--base", "oci:" + b.base, "--platform", "linux/" + runtime.GOARCH}
	if err := command(ctx, b.tmp, slimctl(append([]string{"lock", "-o", lock}, lockArgs...)...)).Run(); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	for range b.runs {
		for _, r := range []struct {
			row    string
			forget []string // directories of the cache to remove
			args   []string
		}{
			{rowFloor, nil, []string{self, "floor", b.base, kept}},
			{rowFirst, []string{"index", "stripped"}, build},
			{rowIndex, []string{"index", "stripped"}, build},
			{rowAgain, nil, build},
			{rowLock, nil, append(build[:len(build):len(build)], "--lock", lock)},
			{rowVerify, nil, slimctl("verify", "oci:"+out, "--profile", "l1", "--base", "oci:"+b.base, "--lock", lock)},
		} {
			for _, dir := range r.forget {
				if err := os.RemoveAll(filepath.Join(cache, dir)); err != nil {
					return err
				}
			}
			if r.row == rowIndex { // keep only the indexes of the base's layers
				if err := command(ctx, b.tmp, slimctl("inspect", "oci:"+b.base, "--platform", "linux/"+runtime.GOARCH)).Run(); err != nil {
					return err
				}
			}
			if err := b.measure(ctx, r.row, r.args); err != nil {
				return err
			}
		}
	}
	return b.report(os.Stdout)
}

// prepare fetches the payload to the cache, and writes what stays of the base to kept, a tar archive per layer.
func (b *bench) prepare(ctx context.Context, cache string, build []string, kept string) error {
	cmd := command(ctx, b.tmp, build)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(cache, "stripped", "*", "*.tar.gz"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("%s has no stripped layers: %w", cache, err)
	}
	for _, file := range files {
		to, err := os.Create(filepath.Join(kept, filepath.Base(file)+".tar"))
		if err != nil {
			return err
		}
		if err := errors.Join(harness.Inflate(file, to), to.Close()); err != nil {
			return err
		}
	}
	return nil
}

// maxTime limits one process.
const maxTime = 10 * time.Minute

func command(ctx context.Context, tmp string, args []string) *exec.Cmd {
	cmd := harness.Command(ctx, args...)
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	return cmd
}

func (b *bench) measure(ctx context.Context, row string, args []string) error {
	ctx, cancel := context.WithTimeout(ctx, maxTime)
	defer cancel()
	used, err := harness.Measure(command(ctx, b.tmp, args))
	if err != nil {
		return fmt.Errorf("%s: %w", row, err)
	}
	fmt.Fprintf(os.Stderr, "%s  %s\n", used, row)
	b.samples[row] = append(b.samples[row], used)
	return nil
}

// runFloor inflates every layer of a layout, the largest first, and compresses the archives in kept like slimctl,
// without hashing and without files. No program can make these layers from that base in less time.
func runFloor(layout, kept string) error {
	if err := harness.InflateAll(func() io.Writer { return io.Discard }, layout); err != nil {
		return err
	}
	archives, err := filepath.Glob(filepath.Join(kept, "*"))
	if err != nil {
		return err
	}
	harness.SortBySize(archives)
	for _, archive := range archives {
		f, err := os.Open(archive)
		if err != nil {
			return err
		}
		defer f.Close()
		zw, err := pgzip.NewWriterLevel(io.Discard, strip.Compression)
		if err != nil {
			return err
		}
		if err := zw.SetConcurrency(strip.BlockSize, runtime.NumCPU()); err != nil {
			return err
		}
		if _, err := io.Copy(zw, f); err != nil {
			return err
		}
		if err := zw.Close(); err != nil {
			return err
		}
	}
	return nil
}

// graftLayers adds the layers that heavy has above light to another image. All are layouts.
func graftLayers(ctx context.Context, light, heavy, other, dest string) error {
	var images []v1.Image
	for _, dir := range []string{light, heavy, other} {
		img, err := harness.OpenLayout(ctx, dir)
		if err != nil {
			return err
		}
		images = append(images, img)
	}
	below, err := images[0].Layers()
	if err != nil {
		return err
	}
	all, err := images[1].Layers()
	if err != nil {
		return err
	}
	img, err := mutate.AppendLayers(images[2], all[len(below):]...)
	if err != nil {
		return err
	}
	return harness.WriteLayout(dest, img)
}

// report prints medians and their ratios to the floor.
func (b *bench) report(w io.Writer) error {
	t := harness.NewTable(w, "row", "seconds", "to floor", "processor", "to floor", "peak MiB")
	floor := harness.Median(b.samples[rowFloor])
	for _, row := range []string{rowFloor, rowFirst, rowIndex, rowAgain, rowLock, rowVerify} {
		s := harness.Median(b.samples[row])
		t.Rowf("%s\t%.2f\t%.2f\t%.2f\t%.2f\t%.0f", row, s.Wall, s.Wall/floor.Wall, s.CPU, s.CPU/floor.CPU, float64(s.Peak)/(1<<20))
	}
	return t.End()
}
