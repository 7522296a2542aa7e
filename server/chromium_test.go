package server

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/slimctl/slimctl/server/cdp/cdptest"
)

// TestChromiumThatOpensNothing: a Chromium in which no page's process starts is ended, and the same call opens its page in
// the next one. One failure alone isn't enough.
func TestChromiumThatOpensNothing(t *testing.T) {
	for failures, ended := range map[int]bool{0: false, 1: false, 2: true} {
		s := cdptest.New(t)
		c := newChromium(s.Port, "127.0.0.1:8118", t.TempDir())
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s.FailToLaunch(failures)
		_, tab, err := c.newTab(ctx)
		if err != nil || !tab.Alive() {
			t.Fatalf("%d failures: %v", failures, err)
		}
		if got := slices.Contains(s.Calls(), "Browser.close"); got != ended {
			t.Errorf("%d failures: ended %v, want %v", failures, got, ended)
		}
		if text, err := os.ReadFile(c.report); err == nil {
			t.Errorf("%d failures: a page opens, and the report stays: %s", failures, text)
		}
		c.close()
	}
}

// TestChromiumFailures: which failures count, and what health reads.
func TestChromiumFailures(t *testing.T) {
	c := newChromium(1, "", t.TempDir())
	late := context.DeadlineExceeded
	for i, step := range []struct {
		err    error
		took   time.Duration
		end    bool
		report bool
	}{
		{late, time.Second, false, false}, // the call had no more time
		{late, slowTab, false, true},
		{late, slowTab, false, true},
		{nil, 0, false, false},
		{late, slowTab, false, true},
		{late, slowTab, false, true},
		{errors.New("refused"), slowTab, false, true},
		{late, slowTab, true, true},
	} {
		if end := c.countTab(step.err, step.took); end != step.end {
			t.Errorf("step %d: end is %v", i, end)
		}
		if _, err := os.Stat(c.report); (err == nil) != step.report {
			t.Errorf("step %d: report: %v", i, err)
		}
	}
}
