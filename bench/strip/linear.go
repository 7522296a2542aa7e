//go:build linux

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/bench/harness"
	"github.com/slimctl/slimctl/image/tree"
)

// largeLayer is the size of a layer, in bytes, above which the base below it is not measured separately.
const largeLayer = 50 << 20

// linear builds l1 from increasing parts of a base with nothing cached, and prints the time per additional gigabyte.
// What stays, and the time to compress it, is nearly constant.
func linear(ctx context.Context, args []string) error {
	b := &bench{samples: map[string][]harness.Used{}}
	flags := flag.NewFlagSet("linear", flag.ContinueOnError)
	flags.StringVar(&b.bin, "bin", "", "`directory` with slimctl")
	flags.StringVar(&b.base, "base", "", "OCI `layout` of the base")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if b.base == "" || flags.NArg() > 0 {
		return errors.New("start it with bash bench/strip/run linear --base LAYOUT")
	}
	tmp, err := os.MkdirTemp(filepath.Dir(filepath.Clean(b.base)), "linear-") // on the base's file system, for links to its blobs
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	b.tmp = tmp
	cache, out := filepath.Join(tmp, "cache"), filepath.Join(tmp, "out")
	whole, err := harness.OpenLayout(ctx, b.base)
	if err != nil {
		return err
	}
	all, err := whole.Layers()
	if err != nil {
		return err
	}
	t := harness.NewTable(os.Stdout, "base, GB", "files", "seconds", "processor", "processor per GB more", "peak MiB")
	var first harness.Used
	var least float64
	for n := 1; n <= len(all); n++ {
		if n < len(all) {
			if size, err := all[n].Size(); err != nil || size < largeLayer {
				continue
			}
		}
		dir := filepath.Join(tmp, fmt.Sprint(n))
		gigabytes, files, err := firstLayers(ctx, whole, n, b.base, dir)
		if err != nil {
			return err
		}
		build := []string{
			filepath.Join(b.bin, "slimctl"), "--cache-dir", cache, "build", "--profile", "l1", "--base", "oci:" + dir,
			"--platform", "linux/" + runtime.GOARCH, "--output", "type=oci,dest=" + out, "--progress", "quiet",
		}
		if len(b.samples) == 0 { // fetches the payload
			if err := command(ctx, tmp, build).Run(); err != nil {
				return err
			}
		}
		for _, forget := range []string{"index", "stripped"} {
			if err := os.RemoveAll(filepath.Join(cache, forget)); err != nil {
				return err
			}
		}
		row := fmt.Sprintf("%.2f GB", gigabytes)
		if err := b.measure(ctx, row, build); err != nil {
			return err
		}
		s, more := b.samples[row][0], ""
		if least == 0 {
			first, least = s, gigabytes
		} else {
			more = fmt.Sprintf("%.1f", (s.CPU-first.CPU)/(gigabytes-least))
		}
		t.Rowf("%.2f\t%d\t%.1f\t%.1f\t%s\t%d", gigabytes, files, s.Wall, s.CPU, more, s.Peak>>20)
	}
	return t.End()
}

// firstLayers writes an image of another's first n layers to a layout, by links, and returns its unpacked size.
func firstLayers(ctx context.Context, whole v1.Image, n int, base, dir string) (gigabytes float64, files int, err error) {
	all, err := whole.Layers()
	if err != nil {
		return 0, 0, err
	}
	img, err := harness.WithLayers(whole, all[:n]...)
	if err != nil {
		return 0, 0, err
	}
	blobs := filepath.Join(dir, "blobs", "sha256")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		return 0, 0, err
	}
	for _, l := range all[:n] {
		h, err := l.Digest()
		if err != nil {
			return 0, 0, err
		}
		if err := os.Link(filepath.Join(base, "blobs", "sha256", h.Hex), filepath.Join(blobs, h.Hex)); err != nil {
			return 0, 0, err
		}
	}
	if err := harness.WriteLayout(dir, img); err != nil {
		return 0, 0, err
	}
	opened, err := tree.Cache{Dir: filepath.Join(filepath.Dir(dir), "indexes")}.Open(ctx, img, tree.Options{})
	if err != nil {
		return 0, 0, err
	}
	for _, l := range opened.Layers {
		gigabytes += float64(l.Unpacked) / 1e9
	}
	return gigabytes, opened.Len(), nil
}
