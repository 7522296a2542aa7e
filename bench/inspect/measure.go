//go:build linux

package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/slimctl/slimctl/bench/harness"
)

type bench struct {
	options
	tmp                       string
	size, many                sizes
	old, new, slim, manyImage string
	samples                   []sample
}

// sample is a measured process.
type sample struct {
	harness.Used
	row string
	err string
}

// The rows. They run in turn, so that changes in the machine's speed affect all of them.
const (
	rowFloor    = "floor: inflate + sha256, all cores, both images"
	rowTar      = "gzip -dc, tar -t, sha256sum, all cores, both images"
	rowCold     = "slimctl diff, cold"
	rowWarm     = "slimctl diff, warm"
	rowL0Cold   = "slimctl diff to L0, cold (one image read)"
	rowL0       = "slimctl diff to L0, warm"
	rowInspect  = "slimctl inspect, cold"
	rowInspectW = "slimctl inspect, warm"
	rowDive     = "dive --ci, both images one after the other"
	rowCD       = "container-diff diff --type=file --type=size"
	rowOCI      = "diffoci diff --semantic (loaded before)"
	rowMany     = "slimctl inspect, cold, many files"
	rowManyW    = "slimctl inspect, warm, many files"
	rowManyF    = "floor, many files"
)

func (b *bench) measure(ctx context.Context) error {
	slimctl := filepath.Join(b.bin, "slimctl")
	cache := func(name string) string { return filepath.Join(b.tmp, "cache-"+name) }
	diff := func(cache, a, z string) []string {
		return []string{slimctl, "--cache-dir", cache, "diff", "--progress", "quiet", "--format", "json", "-o", filepath.Join(b.tmp, "diff.json"), "oci:" + a, "oci:" + z}
	}
	look := func(cache, a string) []string {
		return []string{slimctl, "--cache-dir", cache, "inspect", "--progress", "quiet", "--format", "json", "-o", filepath.Join(b.tmp, "inspect.json"), "oci:" + a}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for range b.runs {
		for _, c := range []string{"diff", "l0", "inspect", "many"} {
			if err := os.RemoveAll(cache(c)); err != nil {
				return err
			}
		}
		for _, r := range []struct {
			row  string
			args []string
		}{
			{rowFloor, []string{self, "floor", b.old, b.new}},
			{rowTar, []string{"bash", "-c", tarScript, "tar", b.old, b.new}},
			{rowCold, diff(cache("diff"), b.old, b.new)},
			{rowWarm, diff(cache("diff"), b.old, b.new)},
			{rowL0Cold, diff(cache("l0"), b.old, b.slim)},
			{rowL0, diff(cache("l0"), b.old, b.slim)},
			{rowInspect, look(cache("inspect"), b.old)},
			{rowInspectW, look(cache("inspect"), b.old)},
			{rowManyF, []string{self, "floor", b.manyImage}},
			{rowMany, look(cache("many"), b.manyImage)},
			{rowManyW, look(cache("many"), b.manyImage)},
		} {
			if err := b.measureOne(ctx, r.row, true, r.args); err != nil {
				return err
			}
		}
		if err := b.peers(ctx); err != nil {
			return err
		}
	}
	return nil
}

// tarScript is the manual way: tar and sha256sum for each layer, a process per core.
const tarScript = `ls "$1"/blobs/sha256/* "$2"/blobs/sha256/* | xargs -P "$(nproc)" -I{} bash -c 'gzip -dc {} 2>/dev/null | tee >(tar -t >/dev/null 2>&1) | sha256sum >/dev/null'`

// peers runs other analysers on the same images. It reports those that fail.
func (b *bench) peers(ctx context.Context) error {
	peer := func(name string) string {
		found, _ := filepath.Glob(filepath.Join(b.bin, "peers", name+"-*"))
		if len(found) == 0 {
			return ""
		}
		return found[0]
	}
	if p := peer("dive"); p != "" {
		script := `"$0" --ci --source docker-archive "$1" && "$0" --ci --source docker-archive "$2"`
		if err := b.measureOne(ctx, rowDive, false, []string{"bash", "-c", script, p, b.old + ".tar", b.new + ".tar"}); err != nil {
			return err
		}
	}
	if p := peer("container-diff"); p != "" {
		args := []string{p, "diff", "--no-cache", "--json", "--type=file", "--type=size", b.old + ".tar", b.new + ".tar"}
		if err := b.measureOne(ctx, rowCD, false, args); err != nil {
			return err
		}
	}
	if p := peer("diffoci"); p != "" {
		home := filepath.Join(b.tmp, "diffoci")
		for _, i := range []string{b.old, b.new} {
			cmd := b.command(ctx, []string{p, "--backend", "local", "load"}, home)
			f, err := os.Open(i + ".tar")
			if err != nil {
				return err
			}
			cmd.Stdin = f
			out, err := cmd.CombinedOutput()
			f.Close()
			if err != nil {
				b.samples = append(b.samples, sample{row: rowOCI, err: "load: " + last(string(out))})
				return nil
			}
		}
		args := []string{p, "--backend", "local", "diff", "--semantic", "bench/old:1", "bench/new:1"}
		if err := b.measureOne(ctx, rowOCI, false, args); err != nil {
			return err
		}
	}
	return nil
}

// maxTime limits one process.
const maxTime = 10 * time.Minute

func (b *bench) command(ctx context.Context, args []string, home string) *exec.Cmd {
	cmd := harness.Command(ctx, args...)
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CACHE_HOME="+filepath.Join(home, ".cache"), "TMPDIR="+b.tmp)
	return cmd
}

// measureOne measures a process. With must, a failure ends the run. A peer's status may only mean that it found
// differences.
func (b *bench) measureOne(ctx context.Context, row string, must bool, args []string) error {
	limited, cancel := context.WithTimeout(ctx, maxTime)
	defer cancel()
	used, err := harness.Measure(b.command(limited, args, filepath.Join(b.tmp, "home")))
	if err != nil && (must || ctx.Err() != nil) {
		return fmt.Errorf("%s: %w", row, err)
	}
	s := sample{Used: used, row: row}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() != 1 {
		s.err = fmt.Sprintf("%v: %s", exit, last(err.Error()))
	}
	fmt.Fprintf(os.Stderr, "%s  %s %s\n", used, row, s.err)
	b.samples = append(b.samples, s)
	return nil
}

func last(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1][:min(200, len(lines[len(lines)-1]))]
}

// floor inflates and hashes every layer of the layouts.
func floor(layouts []string) error {
	return harness.InflateAll(func() io.Writer { return sha256.New() }, layouts...)
}

// report prints medians and their ratios to the floor.
func (b *bench) report(w io.Writer) error {
	fmt.Fprintf(w, "Images: %d files, %.1f GB in %d layers each; many files: %d.\n\n", b.size.files, float64(b.size.bytes)/1e9, b.size.layers, b.many.files)
	t := harness.NewTable(w, "row", "seconds", "to floor", "CPU s", "peak MiB")
	floors := map[string]string{rowMany: rowManyF, rowManyW: rowManyF, rowManyF: rowManyF}
	var rows []string
	for _, s := range b.samples {
		if !slices.Contains(rows, s.row) {
			rows = append(rows, s.row)
		}
	}
	for _, row := range rows {
		s, failed := b.median(row)
		if failed != "" {
			t.Row(row, "did not work: "+failed, "", "", "")
			continue
		}
		f, _ := b.median(cmp.Or(floors[row], rowFloor))
		t.Rowf("%s\t%.2f\t%.2f\t%.2f\t%.0f", row, s.Wall, s.Wall/f.Wall, s.CPU, float64(s.Peak)/(1<<20))
	}
	if err := t.End(); err != nil {
		return err
	}
	var read struct {
		Platforms []struct {
			Counts json.RawMessage `json:"counts"`
		} `json:"platforms"`
	}
	data, err := os.ReadFile(filepath.Join(b.tmp, "diff.json"))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, &read); err != nil {
		return err
	}
	if len(read.Platforms) > 0 {
		fmt.Fprintf(w, "\nThe last diff counted %s\n", read.Platforms[0].Counts)
	}
	return nil
}

// median returns the median of a row, or the reason why there is none.
func (b *bench) median(row string) (harness.Used, string) {
	var out []harness.Used
	for _, s := range b.samples {
		if s.row == row {
			if s.err != "" {
				return s.Used, s.err
			}
			out = append(out, s.Used)
		}
	}
	if len(out) == 0 {
		return harness.Used{}, "not run"
	}
	return harness.Median(out), ""
}
