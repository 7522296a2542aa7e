//go:build linux

package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/slimctl/slimctl/bench/harness"
)

func cores() int { return runtime.NumCPU() }

func cpu() string {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err == nil {
		for line := range strings.Lines(string(info)) {
			if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
				return strings.TrimSpace(v)
			}
		}
	}
	return runtime.GOARCH
}

// samplesOf returns the samples of a row at a latency.
func (b *bench) samplesOf(row string, d time.Duration) []sample {
	var out []sample
	for _, s := range b.samples {
		if s.Row == row && s.Latency == d {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b sample) int { return cmp.Compare(a.Wall, b.Wall) })
	return out
}

// wall returns the median time of a row in seconds, or 0 if it wasn't measured.
func (b *bench) wall(row string, d time.Duration) float64 {
	s := b.samplesOf(row, d)
	if len(s) == 0 {
		return 0
	}
	return (s[(len(s)-1)/2].Wall + s[len(s)/2].Wall) / 2
}

func (b *bench) trips(row string, d time.Duration) string {
	s := b.samplesOf(row, d)
	if len(s) == 0 {
		return "–"
	}
	return fmt.Sprint(highest(s, func(s sample) int64 { return int64(s.Stats.RoundTrips) }))
}

func highest(samples []sample, of func(sample) int64) int64 {
	var top int64
	for _, s := range samples {
		top = max(top, of(s))
	}
	return top
}

// size formats a number of bytes.
func size(n int64) string {
	switch {
	case n == 0:
		return "0"
	case n < 1e6:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	}
	return fmt.Sprintf("%.1f MB", float64(n)/1e6)
}

func (b *bench) report(w io.Writer) error {
	fmt.Fprintf(w, "# slimctl build --profile l0: embedded engine against buildkitd\n\n")
	for _, m := range b.machine {
		fmt.Fprintf(w, "- %s\n", m)
	}
	fmt.Fprintf(w, "- base: %s; registry on loopback, a process of its own\n- up to %d runs, interleaved; times are of whole processes\n\n", b.base, b.runs)
	for _, part := range []func(io.Writer) error{b.pushTable, b.latencyTable, b.archiveTable, b.goals} {
		if err := part(w); err != nil {
			return err
		}
	}
	return nil
}

func pushRows() []string {
	rows := []string{rowCold, rowLock, rowLockAgain, rowWarm}
	return append(rows, rowOverlay+cold, rowOverlay+warm)
}

func (b *bench) pushTable(w io.Writer) error {
	fmt.Fprintf(w, "## Push to another repository of the base's registry\n\n")
	t := harness.NewTable(w, "row", "runs", "wall s: median", "min", "max", "× lock", "base layers pulled", "pulled in all", "pushed", "requests",
		"round trips*", "mounts", "peak slimctl", "peak buildkitd")
	for _, row := range pushRows() {
		s := b.samplesOf(row, 0)
		if len(s) == 0 {
			continue
		}
		daemon := "–"
		if n := highest(s, func(s sample) int64 { return s.Daemon }); n > 0 {
			daemon = size(n)
		}
		t.Row(row, fmt.Sprint(len(s)), sec(b.wall(row, 0)), sec(s[0].Wall), sec(s[len(s)-1].Wall), times(b.wall(row, 0), b.wall(rowLock, 0)),
			size(highest(s, func(s sample) int64 { return s.BasePulled })),
			size(highest(s, func(s sample) int64 { return s.Stats.BytesOut })),
			size(highest(s, func(s sample) int64 { return s.Stats.BytesIn })),
			fmt.Sprint(highest(s, func(s sample) int64 { return int64(s.Stats.Requests) })),
			b.trips(row, measuredTrips),
			fmt.Sprint(highest(s, func(s sample) int64 { return int64(s.Stats.Mounts) })),
			size(highest(s, func(s sample) int64 { return s.Peak })),
			daemon)
	}
	err := t.End()
	fmt.Fprintf(w, "\n\\* the longest chain of requests one after the other, counted with %s added to each.\n\n", measuredTrips)
	return err
}

func sec(s float64) string { return fmt.Sprintf("%.2f", s) }

func times(a, b float64) string {
	if a == 0 || b == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f×", a/b)
}

func (b *bench) latencyTable(w io.Writer) error {
	fmt.Fprintf(w, "## The same with latency added to each request\n\n")
	t := harness.NewTable(w, "row", "0 ms: s", "20 ms: s", "100 ms: s", "round trips at 20 ms", "at 100 ms", "(100 ms − 0 ms) / 100 ms")
	for _, row := range pushRows() {
		if b.wall(row, measuredTrips) == 0 {
			continue
		}
		cells := []string{row}
		for _, d := range []time.Duration{0, measuredTrips, highestLatency} {
			cell := "–"
			if s := b.wall(row, d); s > 0 {
				cell = sec(s)
			}
			cells = append(cells, cell)
		}
		effective := "–"
		if high := b.wall(row, highestLatency); high > 0 {
			effective = fmt.Sprintf("%.1f", (high-b.wall(row, 0))/highestLatency.Seconds())
		}
		t.Row(append(cells, b.trips(row, measuredTrips), b.trips(row, highestLatency), effective)...)
	}
	err := t.End()
	fmt.Fprintln(w)
	return err
}

func (b *bench) archiveTable(w io.Writer) error {
	fmt.Fprintf(w, "## Outputs on this machine\n\n")
	t := harness.NewTable(w, "row", "runs", "wall s: median", "min", "max", "× floor", "pulled", "peak")
	for _, group := range [][]string{
		{rowFetch, rowFetchHash, rowFromRegistry}, {rowCopy, rowFromLayout, rowFromLayout2}, {rowLink, rowToLayout, rowToLayout2},
	} {
		for _, row := range group {
			s := b.samplesOf(row, 0)
			t.Row(row, fmt.Sprint(len(s)), fmt.Sprintf("%.3f", b.wall(row, 0)), fmt.Sprintf("%.3f", s[0].Wall), fmt.Sprintf("%.3f", s[len(s)-1].Wall),
				times(b.wall(row, 0), b.wall(group[0], 0)),
				size(highest(s, func(s sample) int64 { return s.Stats.BytesOut })),
				size(highest(s, func(s sample) int64 { return s.Peak })))
		}
	}
	err := t.End()
	fmt.Fprintln(w)
	return err
}

// goals prints the goals of issue 2.
func (b *bench) goals(w io.Writer) error {
	fmt.Fprintf(w, "## Goals\n\n")
	t := harness.NewTable(w, "goal", "measured", "reached")
	yes := map[bool]string{true: "yes", false: "**no**"}
	lock := b.samplesOf(rowLock, 0)
	if b.daemon != "" {
		m := b.wall(rowOverlay+cold, 0) / b.wall(rowLock, 0)
		t.Row(rowLock+" is faster than "+rowOverlay+cold, fmt.Sprintf("%.2f×", m), yes[m > 1])
	}
	pulled := highest(lock, func(s sample) int64 { return s.BasePulled })
	t.Row("0 bytes of base layers pulled", size(pulled), yes[pulled == 0])
	trips := highest(b.samplesOf(rowLock, measuredTrips), func(s sample) int64 { return int64(s.Stats.RoundTrips) })
	t.Row("≤ 15 round trips", fmt.Sprint(trips), yes[trips <= 15])
	for _, g := range [][2]string{{rowFromRegistry, rowFetch}, {rowFromRegistry, rowFetchHash}, {rowFromLayout, rowCopy}, {rowFromLayout2, rowCopy}} {
		r := b.wall(g[0], 0) / b.wall(g[1], 0)
		t.Row(strings.TrimPrefix(g[0], "slimctl: ")+" ≤ 1.1× the "+g[1], fmt.Sprintf("%.2f×", r), yes[r <= 1.1])
	}
	return t.End()
}
