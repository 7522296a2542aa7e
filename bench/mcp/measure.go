//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	sessions = 8
	parallel = 64 // concurrent calls
	settle   = 500 * time.Millisecond
	address  = "https://1.1.1.1/" // public, and needs no resolver; nothing connects to it
)

var click = []string{"click", "#a"}

// bench is one run of the benchmark.
type bench struct {
	plan
	program, standin, policy string
	ours, node               *contestant
	bare                     []time.Duration // of the command line without a server
	httpIdle                 int64           // resident bytes of browser-shell serve
}

// starts measures the time from before the process exists to the first answer, with the servers in turn.
func (b *bench) starts(ctx context.Context) error {
	for range b.plan.starts {
		for _, c := range []*contestant{b.ours, b.node} {
			begin := time.Now()
			cl, err := start(ctx, c)
			if err != nil {
				return err
			}
			err = cl.initialize()
			c.starts = append(c.starts, time.Since(begin))
			if err := errors.Join(err, cl.stop()); err != nil {
				return err
			}
		}
	}
	return nil
}

// serve measures servers that run concurrently.
func (b *bench) serve(ctx context.Context) (err error) {
	all := []*contestant{b.ours, b.node}
	clients := map[*contestant]*client{}
	defer func() {
		for _, cl := range clients {
			err = errors.Join(err, cl.stop())
		}
	}()
	for _, c := range all {
		cl, err := start(ctx, c)
		if err != nil {
			return err
		}
		clients[c] = cl
		if err := cl.ready(); err != nil {
			return err
		}
	}
	time.Sleep(settle)
	for _, c := range all {
		if c.idle, err = resident(clients[c].cmd.Process.Pid); err != nil {
			return err
		}
	}
	if err := b.oneByOne(ctx, all, clients); err != nil {
		return err
	}
	for _, c := range all {
		total, err := processor(clients[c].cmd.Process.Pid)
		if err != nil {
			return err
		}
		c.processor = total - c.processor
		if c.loaded, err = resident(clients[c].cmd.Process.Pid); err != nil {
			return err
		}
	}
	for _, c := range all {
		if err := b.atOnce(c, clients[c]); err != nil {
			return err
		}
	}
	return nil
}

// oneByOne measures single calls, through each server and without one, in alternating batches, so that all have the
// same noise.
func (b *bench) oneByOne(ctx context.Context, all []*contestant, clients map[*contestant]*client) error {
	for _, c := range all {
		for s := range sessions { // what a session's first call does more is not counted
			if err := clients[c].call(name(s), "open", address); err != nil {
				return err
			}
		}
		var err error
		if c.processor, err = processor(clients[c].cmd.Process.Pid); err != nil {
			return err
		}
	}
	for range b.batches {
		for _, c := range all {
			times, err := repeat(b.batch, func(i int) error { return clients[c].call(name(i), click...) })
			if err != nil {
				return err
			}
			c.calls = append(c.calls, times...)
		}
		times, err := repeat(b.batch, func(i int) error {
			_, err := exec.CommandContext(ctx, b.standin, "--session", name(i), "--cdp", "9222", "--json", "--pin-tab", click[0], click[1]).Output()
			return err
		})
		if err != nil {
			return err
		}
		b.bare = append(b.bare, times...)
	}
	return nil
}

func name(i int) string { return fmt.Sprintf("s%d", i%sessions) }

func repeat(n int, do func(i int) error) ([]time.Duration, error) {
	times := make([]time.Duration, n)
	for i := range n {
		begin := time.Now()
		if err := do(i); err != nil {
			return nil, err
		}
		times[i] = time.Since(begin)
	}
	return times, nil
}

// atOnce sends 64 calls at once, waits for all, and again.
func (b *bench) atOnce(c *contestant, cl *client) (err error) {
	round := func() error {
		var g errgroup.Group
		for i := range parallel {
			g.Go(func() error { return cl.call(name(i), click...) })
		}
		return g.Wait()
	}
	if err := round(); err != nil { // makes what then stays: threads, buffers
		return err
	}
	time.Sleep(settle)
	if c.before, err = look(cl.cmd.Process.Pid); err != nil {
		return err
	}
	begin := time.Now()
	for range b.rounds {
		if err := round(); err != nil {
			return err
		}
	}
	c.parallelPerSecond = float64(b.rounds*parallel) / time.Since(begin).Seconds()
	time.Sleep(settle)
	c.after, err = look(cl.cmd.Process.Pid)
	return err
}
