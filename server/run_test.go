package server

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"time"
)

func TestRun(t *testing.T) {
	sh := func(ctx context.Context, script string) runResult {
		t.Helper()
		res, err := run(ctx, "/bin/sh", []string{"-c", script}, []string{"A=b"}, t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	if r := sh(t.Context(), `echo "$A"; echo e >&2; exit 3`); string(r.stdout) != "b\n" || string(r.stderr) != "e\n" || r.exitCode != 3 || r.killed {
		t.Errorf("got %+v", r)
	}
	if r := sh(t.Context(), `kill -9 $$`); r.exitCode != 137 || r.killed {
		t.Errorf("killed from outside: %+v", r)
	}
	if r := sh(t.Context(), `yes`); !r.tooMuch || !r.killed || len(r.stdout) != maxRaw {
		t.Errorf("endless output: %d bytes, %v %v", len(r.stdout), r.tooMuch, r.killed)
	}
	// A grandchild that keeps the pipes open does not hold the answer up.
	start := time.Now()
	if r := sh(t.Context(), `sleep 5 & echo done`); string(r.stdout) != "done\n" || r.exitCode != 0 || time.Since(start) > 3*time.Second {
		t.Errorf("got %+v after %s", r, time.Since(start))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r := sh(ctx, `echo late`); !r.killed || len(r.stdout) > 0 {
		t.Errorf("a call whose time was over before it began: %+v", r)
	}
	if _, err := run(t.Context(), "/no/such/program", nil, nil, "/"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// TestSharedStateRefused: a directory that others can enter is not used.
func TestSharedStateRefused(t *testing.T) {
	dir := t.TempDir() // 0755 or 0775
	if _, err := openState(dir); err == nil || !strings.Contains(err.Error(), "0700") {
		t.Errorf("got %v", err)
	}
}
