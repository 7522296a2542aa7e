package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestEmptyDirs: nothing that a taken-over browser left behind outlasts its end, such as 1 GiB in /tmp, for want of which
// each next one would be killed (review 3, M5).
func TestEmptyDirs(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	shut := filepath.Join(dir, "shut")
	if err := errors.Join(
		os.MkdirAll(filepath.Join(dir, ".config/browser"), 0o700), os.Symlink("host-7", filepath.Join(dir, ".config/browser/SingletonLock")),
		os.MkdirAll(filepath.Join(shut, "in/in"), 0o700), os.WriteFile(filepath.Join(shut, "in/in/large"), make([]byte, 1<<20), 0),
		os.Chmod(filepath.Join(shut, "in"), 0), os.Chmod(shut, 0),
		os.WriteFile(filepath.Join(dir, ".X99-lock"), nil, 0o600), os.WriteFile(filepath.Join(dir, ".Xlarge"), nil, 0o600),
		os.WriteFile(filepath.Join(dir, "server-99.xkm"), make([]byte, 1<<20), 0o600), os.Mkdir(filepath.Join(dir, "X99"), 0o700), os.Mkdir(filepath.Join(dir, ".X11-unix"), 0o700),
		os.WriteFile(filepath.Join(outside, "kept"), nil, 0o600), os.Symlink(outside, filepath.Join(dir, "link")),
	); err != nil {
		t.Fatal(err)
	}
	want := []string{".X11-unix", ".X99-lock"}
	if os.Geteuid() == 0 { // only root can make another account's file
		want = append(want, "other")
		other := filepath.Join(dir, "other")
		if err := errors.Join(os.WriteFile(other, nil, 0o600), os.Chown(other, 1234, 1234)); err != nil {
			t.Fatal(err)
		}
	}
	if err := emptyDirs([]string{dir}); err != nil {
		t.Error(err)
	}
	var left []string
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if !slices.Equal(left, want) {
		t.Errorf("left: %q, want %q", left, want)
	}
	if _, err := os.Stat(filepath.Join(outside, "kept")); err != nil {
		t.Error(err)
	}
}
