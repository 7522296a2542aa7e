package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestSweepMakesNoLock: a run that is being removed has lost its lock already; one that is made anew in its directory would
// keep that from being removed.
func TestSweepMakesNoLock(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "20260101t000000-00000000")
	if err := os.MkdirAll(filepath.Join(dir, "m"), 0o755); err != nil {
		t.Fatal(err)
	}
	why := errors.New("a mount is busy")
	if err := sweepRuns(base, func(_, dir string) error {
		if _, err := os.Stat(filepath.Join(dir, "lock")); err == nil {
			t.Error("there is a lock now")
		}
		return why
	}); !errors.Is(err, why) {
		t.Errorf("error %v, want %v", err, why)
	}
	if _, err := os.Stat(filepath.Join(dir, "lock")); err == nil {
		t.Error("a lock is left")
	}
	if err := sweepRuns(base, func(string, string) error { return nil }); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is left: %v", err)
	}
}
