//go:build linux

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
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/slimctl/slimctl/bench/harness"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/inspect/sandbox"
	"github.com/slimctl/slimctl/inspect/sandbox/rootfs"
)

// start holds the figures of one boot of an image.
type start struct {
	unpack, unpackCPU   float64 // seconds
	healthy, healthyCPU float64
	pss, anon           float64 // bytes
}

// boots measures the unpacking and booting of base, l0 and l1, in turn.
func boots(ctx context.Context, args []string) (err error) {
	flags := flag.NewFlagSet("boot", flag.ExitOnError)
	bin := flags.String("bin", "", "`directory` with slimctl")
	runs := flags.Int("runs", 3, "repetitions")
	_ = flags.Parse(args)
	tmp, err := os.MkdirTemp(*bin, "boot-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	base := filepath.Join(tmp, "base")
	if out, err := exec.CommandContext(ctx, filepath.Join(*bin, "slimctl"), "standin", "--live", "--line", "B", "--output", base).CombinedOutput(); err != nil {
		return fmt.Errorf("standin: %w: %s", err, out)
	}
	names := []string{"base", "l0", "l1"}
	for _, name := range names[1:] {
		if err := buildLive(ctx, *bin, map[string]string{"l0": "l0-native", "l1": "l1"}[name], filepath.Join(tmp, name)); err != nil {
			return err
		}
	}
	starts := map[string][]start{}
	for range *runs {
		for _, name := range names {
			s, err := boot(ctx, filepath.Join(tmp, name), filepath.Join(tmp, "cache"), name == "base")
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			fmt.Fprintf(os.Stderr, "%s: %+v\n", name, s)
			starts[name] = append(starts[name], s)
		}
	}
	return reportBoots(os.Stdout, names, starts)
}

// idle is the time before measuring the memory of an idle image.
const idle = 10 * time.Second

// boot unpacks an image to an empty cache and boots it.
func boot(ctx context.Context, dir, cache string, isBase bool) (s start, err error) {
	img, err := openLayout(ctx, dir)
	if err != nil {
		return s, err
	}
	unpacked := filepath.Join(cache, "unpacked")
	if err := os.MkdirAll(unpacked, 0o700); err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(cache)) }() // other mappings of its files would reduce PSS
	begin, used := time.Now(), processor()
	if _, err := (rootfs.Cache{Dir: unpacked}).Layers(ctx, img, image.NoProgress); err != nil {
		return s, err
	}
	s.unpack, s.unpackCPU = time.Since(begin).Seconds(), processor()-used
	settings := closedSettings()
	settings.Memory = 4 << 30
	if isBase { // the base needs these
		settings.ReadOnly, settings.NoNewPrivileges, settings.Tmpfs, settings.Env, settings.PIDs = false, false, nil, nil, 4096
		settings.CapAdd = append(slices.Clone(settings.CapAdd), "AUDIT_WRITE", "DAC_OVERRIDE", "FOWNER")
	}
	begin = time.Now()
	sb, err := sandbox.Runner{Runtime: sandbox.Runc, CacheDir: cache}.Start(ctx, img, settings)
	if err != nil {
		return s, err
	}
	defer func() {
		_, serr := sb.Stop(context.WithoutCancel(ctx))
		err = errors.Join(err, serr)
	}()
	if err := sb.AwaitHealthy(ctx); err != nil {
		return s, err
	}
	for isBase { // it has no health check
		r, err := sb.Exec(ctx, []string{"/usr/bin/curl", "-sfo", "/dev/null", "http://127.0.0.1:8080/v1/ping"}, sandbox.ExecOptions{})
		if err != nil {
			return s, err
		}
		if r.ExitCode == 0 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	s.healthy = time.Since(begin).Seconds()
	processes, err := sb.Processes(ctx)
	if err != nil {
		return s, err
	}
	for _, p := range processes {
		used, _ := harness.ReadStat(p.PID) // it may have ended
		s.healthyCPU += (used.Own + used.Children).Seconds()
	}
	time.Sleep(idle)
	if processes, err = sb.Processes(ctx); err != nil {
		return s, err
	}
	for _, p := range processes {
		pss, _ := harness.Memory(p.PID, "smaps_rollup", "Pss") // it may have ended
		anon, _ := harness.Memory(p.PID, "smaps_rollup", "Pss_Anon")
		s.pss, s.anon = s.pss+float64(pss), s.anon+float64(anon)
	}
	return s, nil
}

// processor returns the processor time of this process, in seconds.
func processor() float64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// reportBoots prints medians.
func reportBoots(w io.Writer, names []string, starts map[string][]start) error {
	t := harness.NewTable(w, "image", "unpack, s", "processor, s", "healthy, s", "processor, s", "PSS, MB", "anonymous, MB")
	for _, name := range names {
		middle := func(of func(start) float64) float64 {
			values := slices.SortedFunc(slices.Values(starts[name]), func(a, b start) int { return cmp.Compare(of(a), of(b)) })
			return of(values[len(values)/2])
		}
		t.Rowf("%s\t%.1f\t%.1f\t%.1f\t%.1f\t%.0f\t%.0f", name,
			middle(func(s start) float64 { return s.unpack }), middle(func(s start) float64 { return s.unpackCPU }),
			middle(func(s start) float64 { return s.healthy }), middle(func(s start) float64 { return s.healthyCPU }),
			middle(func(s start) float64 { return s.pss })/1e6, middle(func(s start) float64 { return s.anon })/1e6)
	}
	return t.End()
}
