//go:build linux

package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/slimctl/slimctl/bench/harness"
)

const mib = 1 << 20

// report prints a Markdown table with each figure, its limit, and whether it is met.
func (b *bench) report(w io.Writer) error {
	info, err := os.Stat(b.program)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%s\n\n", machine())
	t := harness.NewTable(w, "figure", "browser-shell", "Node", "Node : browser-shell", "bar", "met")
	row := func(figure, ours, node, ratio, bar string, met bool) {
		verdict := map[bool]string{true: "yes", false: "NO"}[met]
		if bar == "" {
			bar, verdict = "–", "–"
		}
		t.Row(figure, ours, node, ratio, bar, verdict)
	}
	times := func(figure string, ours, node time.Duration, bar string, met bool) {
		row(figure, ms(ours), ms(node), over(float64(node), float64(ours)), bar, met)
	}
	memory := func(figure string, ours, node int64, bar string, met bool) {
		row(figure, inMiB(ours), inMiB(node), over(float64(node), float64(ours)), bar, met)
	}
	o, n := b.ours, b.node
	ours, node := percentile(o.starts, 50), percentile(n.starts, 50)
	times(fmt.Sprintf("start to first answer, median of %d", len(o.starts)), ours, node, "≤ 15 ms and ≥ 20×", ours <= 15*time.Millisecond && node >= 20*ours)
	memory("resident, idle", o.idle, n.idle, "≤ 15 MiB and ≥ 4×", o.idle <= 15*mib && n.idle >= 4*o.idle)
	memory(fmt.Sprintf("resident after %d calls", len(o.calls)), o.loaded, n.loaded, "", true)
	for _, p := range []int{50, 99} {
		bare := percentile(b.bare, p)
		ours, node := percentile(o.calls, p), percentile(n.calls, p)
		times(fmt.Sprintf("call, p%d (bare command %s)", p, ms(bare)), ours, node, "", true)
		bar := ""
		if p == 50 {
			bar = "≤ 1 ms"
		}
		times(fmt.Sprintf("call, p%d on top of the bare command", p), ours-bare, node-bare, bar, ours-bare <= time.Millisecond)
	}
	times("processor time of the server itself, a call", o.processor/time.Duration(len(o.calls)), n.processor/time.Duration(len(n.calls)), "", true)
	row(fmt.Sprintf("%d calls at once on %d sessions, calls a second", parallel, sessions),
		fmt.Sprintf("%.0f", o.parallelPerSecond), fmt.Sprintf("%.0f", n.parallelPerSecond), over(o.parallelPerSecond, n.parallelPerSecond), "", true)
	row(fmt.Sprintf("open files after %d such rounds", b.rounds), grown(o, files), grown(n, files), "–", "no more", o.after.files <= o.before.files && o.after.files >= 0)
	row("processes below it", grown(o, processes), grown(n, processes), "–", "no more", o.after.processes <= o.before.processes)
	row("resident", grown(o, memoryOf), grown(n, memoryOf), "–", "≤ 4 MiB more", o.after.resident <= o.before.resident+4*mib)
	row("over HTTP with gate and proxy, resident, idle", inMiB(b.httpIdle), "–", "–", "≤ 20 MiB", b.httpIdle <= 20*mib)
	row("size of the program", fmt.Sprintf("%.2f MB", float64(info.Size())/1e6), "–", "–", "≤ 12 MB", info.Size() <= 12e6)
	return t.End()
}

func percentile(times []time.Duration, p int) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[(len(sorted)-1)*p/100]
}

func ms(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d)/1e6) }

func inMiB(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/mib) }

func over(a, b float64) string {
	if b <= 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f×", a/b)
}

func files(s state) string {
	if s.files < 0 {
		return "? (run as root)"
	}
	return fmt.Sprint(s.files)
}
func processes(s state) string { return fmt.Sprint(s.processes) }
func memoryOf(s state) string  { return inMiB(s.resident) }

func grown(c *contestant, of func(state) string) string {
	return of(c.before) + " → " + of(c.after)
}

// machine describes the machine of the measurement.
func machine() string {
	load, _ := os.ReadFile("/proc/loadavg")
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return fmt.Sprintf("Linux %s, load %s", strings.TrimSpace(string(kernel)), strings.TrimSpace(string(load)))
}
