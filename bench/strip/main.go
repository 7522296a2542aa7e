//go:build linux

// Command strip measures `slimctl build --profile l1` on a heavy base against the least that any program must do for the same
// layers, and against BuildKit, in one run. ../README.md says what each row means.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/klauspost/pgzip"
	"golang.org/x/sync/errgroup"

	"github.com/slimctl/slimctl/build/strip"
	"github.com/slimctl/slimctl/image"
)

type bench struct {
	bin, base, tmp string
	runs           int
	samples        map[string][]sample
}

// sample is one process.
type sample struct {
	wall, cpu float64 // seconds
	peak      int64   // bytes
}

// The rows, each run in turn, so that a change of the machine's mood meets all of them.
const (
	rowFloor  = "floor: inflate the base, compress what stays, all cores"
	rowFirst  = "slimctl build --profile l1, nothing cached"
	rowIndex  = "slimctl build --profile l1, with the base's index"
	rowAgain  = "slimctl build --profile l1, again"
	rowLock   = "slimctl build --profile l1, again, with the lock"
	rowVerify = "slimctl verify --profile l1, with the lock"
)

func main() {
	// The floor is a process of its own, as slimctl is.
	if len(os.Args) == 4 && os.Args[1] == "floor" {
		exit(floor(os.Args[2], os.Args[3]))
	}
	if len(os.Args) == 6 && os.Args[1] == "graft" {
		exit(graft(os.Args[2], os.Args[3], os.Args[4], os.Args[5]))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) > 1 && os.Args[1] == "peers" {
		exit(peers(ctx, os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == "boot" {
		exit(boots(ctx, os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == "linear" {
		exit(linear(ctx, os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == "update" {
		exit(measureUpdates(ctx, os.Args[2:]))
	}
	b := &bench{samples: map[string][]sample{}}
	flag.StringVar(&b.bin, "bin", "", "`directory` with slimctl")
	flag.StringVar(&b.base, "base", "", "OCI `layout` of the base")
	flag.IntVar(&b.runs, "runs", 3, "repetitions")
	flag.Parse()
	exit(b.run(ctx))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench/strip:", err)
		os.Exit(1)
	}
	os.Exit(0)
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
	if err := b.prepare(ctx, cache, build, out, kept); err != nil {
		return err
	}
	lockArgs := []string{"--profile", "l1", "--base", "oci:" + b.base, "--platform", "linux/" + runtime.GOARCH}
	if err := command(ctx, b.tmp, slimctl(append([]string{"lock", "-o", lock}, lockArgs...)...)).Run(); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	for range b.runs {
		for _, r := range []struct {
			row    string
			forget []string // in the cache
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
			if r.row == rowIndex { // without those of the layers that the build makes
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

// prepare fetches the payload into the cache, and puts what stays of the base into kept, a tar archive for each layer.
func (b *bench) prepare(ctx context.Context, cache string, build []string, out, kept string) error {
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
		if err := inflate(file, filepath.Join(kept, filepath.Base(file)+".tar")); err != nil {
			return err
		}
	}
	return nil
}

// inflate writes a blob's content to a file; with none it is thrown away.
func inflate(blob, to string) error {
	f, err := os.Open(blob)
	if err != nil {
		return err
	}
	defer f.Close()
	raw, err := image.Inflate(f)
	if err != nil {
		return err
	}
	defer raw.Close()
	if to == "" {
		_, err = io.Copy(io.Discard, raw)
		return err
	}
	w, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, raw)
	return errors.Join(err, w.Close())
}

// maxTime bounds one process.
const maxTime = 10 * time.Minute

func command(ctx context.Context, tmp string, args []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	return cmd
}

func (b *bench) measure(ctx context.Context, row string, args []string) error {
	ctx, cancel := context.WithTimeout(ctx, maxTime)
	defer cancel()
	cmd := command(ctx, b.tmp, args)
	var said strings.Builder
	cmd.Stderr = &said
	begin := time.Now()
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", row, err, said.String())
	}
	s := sample{
		wall: time.Since(begin).Seconds(),
		cpu:  (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds(),
		peak: cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss << 10,
	}
	fmt.Fprintf(os.Stderr, "%8.2f s %8.2f s of processor %7.1f MiB  %s\n", s.wall, s.cpu, float64(s.peak)/(1<<20), row)
	b.samples[row] = append(b.samples[row], s)
	return nil
}

// floor inflates every layer of a layout, the biggest first, and compresses the archives in kept as slimctl does: without a
// hash, a file or a thought. Nothing that makes these layers of that base can be faster.
func floor(layout, kept string) error {
	blobs, err := bySize(filepath.Join(layout, "blobs", "sha256", "*"))
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(runtime.NumCPU())
	for _, blob := range blobs {
		g.Go(func() error { return inflate(blob, "") })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	archives, err := bySize(filepath.Join(kept, "*"))
	if err != nil {
		return err
	}
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

// graft puts the layers that heavy has on light on another image. All are layouts.
func graft(light, heavy, other, dest string) error {
	ctx := context.Background()
	var images []v1.Image
	for _, dir := range []string{light, heavy, other} {
		src, err := image.Open(ctx, "oci:"+dir, image.Options{})
		if err != nil {
			return err
		}
		img, err := src.Image(v1.Platform{OS: "linux", Architecture: runtime.GOARCH})
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
	out, err := layout.Write(dest, empty.Index)
	if err != nil {
		return err
	}
	return out.AppendImage(img)
}

// bySize returns the files of a pattern, the biggest first.
func bySize(pattern string) ([]string, error) {
	files, err := filepath.Glob(pattern)
	if err != nil {
		return nil, err
	}
	size := func(file string) int64 {
		info, err := os.Stat(file)
		if err != nil {
			return 0
		}
		return info.Size()
	}
	slices.SortFunc(files, func(a, b string) int { return int(size(b) - size(a)) })
	return files, nil
}

// report prints medians, and ratios to the floor.
func (b *bench) report(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 1, ' ', tabwriter.Debug)
	fmt.Fprintln(t, "|row\tseconds\tto floor\tprocessor\tto floor\tpeak MiB\t")
	fmt.Fprintln(t, "|---\t---\t---\t---\t---\t---\t")
	floor := median(b.samples[rowFloor])
	for _, row := range []string{rowFloor, rowFirst, rowIndex, rowAgain, rowLock, rowVerify} {
		s := median(b.samples[row])
		fmt.Fprintf(t, "|%s\t%.2f\t%.2f\t%.2f\t%.2f\t%.0f\t\n", row, s.wall, s.wall/floor.wall, s.cpu, s.cpu/floor.cpu, float64(s.peak)/(1<<20))
	}
	return t.Flush()
}

// median is of the times; the peak is the highest of all.
func median(samples []sample) sample {
	samples = slices.SortedFunc(slices.Values(samples), func(a, b sample) int { return cmp.Compare(a.wall, b.wall) })
	m := samples[len(samples)/2]
	for _, s := range samples {
		m.peak = max(m.peak, s.peak)
	}
	return m
}
