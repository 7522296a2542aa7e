//go:build linux

// Command inspect measures `slimctl diff` and `slimctl inspect` on synthetic images of several gigabytes, against the
// analysers of the field and against bare inflating and hashing, in one run. ../README.md says what each row means.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/slimctl/slimctl/bench/harness"
)

type options struct {
	bin, dir string
	runs     int
	quick    bool
}

// sizes are the dimensions of an image.
type sizes struct {
	layers, files int
	bytes         int64 // uncompressed
}

var (
	full  = sizes{layers: 12, files: 160_000, bytes: 3_300_000_000}
	quick = sizes{layers: 6, files: 8_000, bytes: 120_000_000}
	// many shows whether time and memory grow faster than the number of files.
	many      = sizes{layers: 12, files: 1_000_000, bytes: 1_000_000_000}
	manyQuick = sizes{layers: 6, files: 50_000, bytes: 60_000_000}
)

func main() {
	harness.Main("bench/inspect", func(ctx context.Context) error {
		// The floor is a separate process, like slimctl.
		if len(os.Args) > 2 && os.Args[1] == "floor" {
			return floor(os.Args[2:])
		}
		var o options
		flag.StringVar(&o.bin, "bin", "", "`directory` with slimctl and the peers")
		flag.StringVar(&o.dir, "dir", "", "`directory` for images and caches (default: beside the programs)")
		flag.IntVar(&o.runs, "runs", 3, "repetitions")
		flag.BoolVar(&o.quick, "quick", false, "small images, once: to see that everything works")
		flag.Parse()
		o.dir = cmp.Or(o.dir, o.bin)
		if o.quick {
			o.runs = 1
		}
		return run(ctx, o)
	})
}

func run(ctx context.Context, o options) (err error) {
	if o.bin == "" || o.runs < 1 || flag.NArg() > 0 {
		return errors.New("start it with bench/inspect/run")
	}
	b := &bench{options: o, tmp: filepath.Join(o.dir, "tmp")}
	if err := os.RemoveAll(b.tmp); err != nil {
		return err
	}
	if err := os.MkdirAll(b.tmp, 0o755); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.tmp)) }()
	if err := b.images(ctx); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%d cores; %d runs\n", runtime.NumCPU(), o.runs)
	if err := b.measure(ctx); err != nil {
		return err
	}
	return b.report(os.Stdout)
}
