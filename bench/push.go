//go:build linux

package main

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/slimctl/slimctl/internal/registry"
)

// The rows of the push tables.
const (
	rowCold        = "embedded, cold"
	rowLock        = "embedded, lock"
	rowLockAgain   = "embedded, lock, again"
	rowWarm        = "embedded, warm"
	rowOverlay     = "buildkitd"
	cold, warm     = ", cold", ", warm"
	tablePush      = "push"
	measuredTrips  = 20 * time.Millisecond // far above the duration of a request, so that the chain of requests is exact
	highestLatency = 100 * time.Millisecond
)

// pushes measures the main table, each row once before repeating any.
func (b *bench) pushes(ctx context.Context) error {
	for n := range b.runs {
		if b.enough(n, 4*time.Minute) {
			break
		}
		b.logf("push, run %d of %d", n+1, b.runs)
		if err := b.embeddedCold(ctx); err != nil {
			return err
		}
		if err := b.embedded(ctx, 0); err != nil {
			return err
		}
		if err := b.buildkitd(ctx, 0); err != nil {
			return err
		}
	}
	return nil
}

// latencies measures with added latency.
func (b *bench) latencies(ctx context.Context) error {
	for _, d := range []time.Duration{measuredTrips, highestLatency} {
		for n := range b.runs {
			if b.enough(n, 6*time.Minute) {
				break
			}
			b.logf("%s latency, run %d of %d", d, n+1, b.runs)
			if err := b.embedded(ctx, d); err != nil {
				return err
			}
			if err := b.buildkitd(ctx, d); err != nil {
				return err
			}
		}
	}
	b.logf("%s latency, the base index pass", measuredTrips)
	if err := b.reg.latency(measuredTrips); err != nil {
		return err
	}
	return b.coldAt(ctx, measuredTrips)
}

func (b *bench) embeddedCold(ctx context.Context) error { return b.coldAt(ctx, 0) }

// coldAt builds without lock and index, so that the index pass reads the base.
func (b *bench) coldAt(ctx context.Context, d time.Duration) error {
	if err := b.writeProfile("first"); err != nil {
		return err
	}
	cache := filepath.Join(b.tmp, "cache-cold")
	if err := b.freshCache(cache); err != nil {
		return err
	}
	return b.push(ctx, rowCold, d, nil, b.repo("cold")+":1", "--cache-dir", cache)
}

// embedded builds with the lock and without index; then, with the resulting cache, to another repository; then, with
// the index, without the lock and with one file changed, to the first repository.
func (b *bench) embedded(ctx context.Context, d time.Duration) error {
	if err := b.reg.latency(d); err != nil {
		return err
	}
	if err := b.writeProfile("first"); err != nil {
		return err
	}
	cache := filepath.Join(b.tmp, "cache-lock")
	if err := b.freshCache(cache); err != nil {
		return err
	}
	repo := b.repo("embedded")
	for _, r := range [][2]string{{rowLock, repo}, {rowLockAgain, b.repo("again")}} {
		if err := b.push(ctx, r[0], d, nil, r[1]+":1", "--cache-dir", cache, "--lock", b.lock("registry")); err != nil {
			return err
		}
	}
	if err := b.writeProfile("second"); err != nil {
		return err
	}
	return b.push(ctx, rowWarm, d, nil, repo+":2", "--cache-dir", b.cache)
}

// buildkitd builds on a daemon with an empty root, then on the same daemon to the same repository with one file
// changed. slimctl has the base index, so that only the daemon's work is measured.
func (b *bench) buildkitd(ctx context.Context, d time.Duration) (err error) {
	if b.daemon == "" {
		return nil
	}
	if err := b.reg.latency(d); err != nil {
		return err
	}
	bk, err := b.startDaemon(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if e := bk.stop(); err == nil {
			err = e
		}
	}()
	repo := b.repo("overlay")
	for i, kind := range []string{cold, warm} {
		if err := b.writeProfile([]string{"first", "second"}[i]); err != nil {
			return err
		}
		if err := b.push(ctx, rowOverlay+kind, d, bk, fmt.Sprintf("%s:%d", repo, i+1), "--cache-dir", b.cache,
			"--builder", bk.addr, "--verify=false"); err != nil {
			return err
		}
	}
	return nil
}

// repo returns the name of a new repository.
func (b *bench) repo(name string) string {
	b.repos++
	return fmt.Sprintf("%s/slim/%s-%d", b.reg.host, name, b.repos)
}

// push measures a build that pushes to tag.
func (b *bench) push(ctx context.Context, row string, d time.Duration, bk *daemon, tag string, args ...string) error {
	args = append([]string{b.slimctl, "build", "--progress", "quiet", "--profile", b.profile(), "--base", b.reference(), "--push", "-t", tag}, args...)
	if bk != nil {
		if err := bk.resetPeak(); err != nil {
			return err
		}
	}
	s, err := b.measure(ctx, args)
	if err != nil {
		return fmt.Errorf("%s: %w", row, err)
	}
	if bk != nil {
		if s.Daemon, err = bk.peakMemory(); err != nil {
			return err
		}
	}
	s.Table, s.Row, s.Latency = tablePush, row, d
	var records []registry.Record
	if err := b.reg.control(http.MethodGet, "/_records", &records); err != nil {
		return err
	}
	for _, r := range records {
		if strings.HasPrefix(r.Kind, "GET blob") && b.layers[filepath.Base(r.Path)] {
			s.BasePulled += r.BytesOut
		}
	}
	if row == rowLock {
		b.slim = tag
	}
	if slices.Contains([]string{rowCold, rowLock, rowLockAgain, rowOverlay + cold}, row) {
		_, digest, _ := strings.Cut(s.Said, "@")
		if b.digest == "" {
			b.digest = digest
		}
		if digest != b.digest {
			return fmt.Errorf("%s gave %s, another row gave %s", row, digest, b.digest)
		}
	}
	b.samples = append(b.samples, s)
	return nil
}
