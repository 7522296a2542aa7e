//go:build linux

// Command mcp measures `browser-shell mcp` against a minimal MCP server on the
// official TypeScript SDK, in one run and by the same code. bench/README.md
// says how to run it and what each figure means.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"

	"github.com/slimctl/slimctl/bench/harness"
)

// plan is the amount of measurements.
type plan struct {
	starts  int // per server
	batches int // of calls, in turn
	batch   int // calls per batch
	rounds  int // of 64 concurrent calls
}

var (
	full  = plan{starts: 25, batches: 60, batch: 50, rounds: 20}
	quick = plan{starts: 5, batches: 4, batch: 25, rounds: 3}
)

func main() {
	dir := flag.String("dir", "", "`directory` with browser-shell, standin and node/, as bench/mcp/run makes it")
	program := flag.String("browser-shell", "", "another browser-shell `file` to measure")
	brief := flag.Bool("quick", false, "little of everything: to see that it works")
	flag.Parse()
	p := full
	if *brief {
		p = quick
	}
	harness.Main("bench/mcp", func(ctx context.Context) error {
		return run(ctx, *dir, cmp.Or(*program, filepath.Join(*dir, "browser-shell")), p)
	})
}

func run(ctx context.Context, dir, program string, p plan) (err error) {
	if dir == "" || flag.NArg() > 0 {
		return errors.New("run it by `bash bench/mcp/run`")
	}
	tmp, err := os.MkdirTemp("", "bsb-") // short, because a socket's path is limited to 107 bytes
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	br, err := startBrowser()
	if err != nil {
		return err
	}
	defer br.stop()
	standin := filepath.Join(dir, "standin")
	proxy, err := freePort()
	if err != nil {
		return err
	}
	policy, err := writePolicy(tmp, standin, br.port(), proxy)
	if err != nil {
		return err
	}
	b := &bench{
		plan:    p,
		program: program,
		standin: standin,
		policy:  policy,
		ours:    &contestant{name: "browser-shell", argv: []string{program, "mcp", "--policy", policy}},
		node:    &contestant{name: "Node", argv: []string{"node", filepath.Join(dir, "node", "server.mjs"), standin}},
	}
	for _, phase := range []func(context.Context) error{b.starts, b.serve, b.http} {
		if err := phase(ctx); err != nil {
			return err
		}
	}
	return b.report(os.Stdout)
}
