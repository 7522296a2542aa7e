//go:build linux

// Command bench measures `slimctl build --profile l0` against a real buildkitd, in one run, on a heavy stand-in of the
// base in a registry of its own that counts. README.md says how to run it and what each row means.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/slimctl/slimctl/bench/harness"
	"github.com/slimctl/slimctl/image"
)

type options struct {
	source string
	dir    string
	json   string
	weight int64
	runs   int
	quick  bool
}

const (
	fullWeight  = 1_100_000_000 // gives a base of more than 2 GB
	quickWeight = 100_000_000
)

func main() {
	harness.Main("bench", func(ctx context.Context) error {
		// The floor of the archives is a separate process, like slimctl.
		if len(os.Args) > 1 && os.Args[1] == floorCommand {
			return fetchEverything(os.Args[2:])
		}
		var o options
		flag.StringVar(&o.source, "source", ".", "slimctl's source `directory`")
		flag.StringVar(&o.dir, "dir", "", "`directory` for the base and all that is written (default: slimctl/bench in the user's cache directory)")
		flag.StringVar(&o.json, "json", "", "`file` that gets every sample")
		flag.Int64Var(&o.weight, "weight", 0, fmt.Sprintf("`bytes` per platform that the base weighs (default %d, with -quick %d)", fullWeight, quickWeight))
		flag.IntVar(&o.runs, "runs", 0, "repetitions (default 3, with -quick 1)")
		flag.BoolVar(&o.quick, "quick", false, "a light base, once: to see that everything works")
		flag.Parse()
		weight, runs := int64(fullWeight), 3
		if o.quick {
			weight, runs = quickWeight, 1
		}
		o.weight, o.runs = cmp.Or(o.weight, weight), cmp.Or(o.runs, runs)
		return run(ctx, o, os.Stdout)
	})
}

func run(ctx context.Context, o options, stdout io.Writer) (err error) {
	if flag.NArg() > 0 || o.weight < 0 || o.runs < 1 {
		return errors.New("pass no arguments, a weight of at least 0 and at least one run; see -h")
	}
	b, err := setUp(ctx, o)
	if b != nil {
		defer func() { err = errors.Join(err, b.tearDown()) }()
	}
	if err != nil {
		return err
	}
	b.begin = time.Now()
	for _, phase := range []func(context.Context) error{b.pushes, b.latencies, b.archives} {
		if err := phase(ctx); err != nil {
			return err
		}
	}
	b.logf("measured in %.0f s", time.Since(b.begin).Seconds())
	if err := b.report(stdout); err != nil || o.json == "" {
		return err
	}
	return image.WriteFile(o.json, 0o644, func(w io.Writer) error {
		enc := json.NewEncoder(w)
		enc.SetIndent("", " ")
		return enc.Encode(map[string]any{"machine": b.machine, "base": b.base, "samples": b.samples})
	})
}
