package sandbox

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gofrs/flock"
)

// The private directory of this user's runs, below the cache directory:
//
//	runs/                 0700
//	  .lock               held while a run is made or swept
//	  ID/                 one run; gone when it ends
//	    lock              held for the life of the process that runs it
//	    m/                a tmpfs: what the container writes (Linux, as root)
//	    bundle/ runc/     config.json and state of runc
//
// What a killed process left is found by its lock, which nobody holds, and ended and removed by the next run.

const namePrefix = "slimctl-" // of containers and cgroups; what follows is the run's id

// run is the directory of one run.
type run struct {
	id, dir string
	lock    *flock.Flock
}

func (r *run) name() string { return namePrefix + r.id }

func scratch(dir string) string { return filepath.Join(dir, "m") }

// newRun makes a run's directory; sweep is called for each one that a killed process left, before it is removed. What
// could not be swept stays, to be tried again, and is told in left.
func newRun(cacheDir string, sweep func(id, dir string) error) (_ *run, left, err error) {
	base := filepath.Join(cacheDir, "runs")
	if err := privateDir(base); err != nil {
		return nil, nil, err
	}
	lock := flock.New(filepath.Join(base, ".lock"))
	if err := lock.Lock(); err != nil {
		return nil, nil, fmt.Errorf("lock %s: %w", lock.Path(), err)
	}
	defer func() { _ = lock.Unlock() }() // closing gives it back too
	left = sweepRuns(base, sweep)
	var random [4]byte
	_, _ = rand.Read(random[:]) // never an error
	r := &run{id: time.Now().UTC().Format("20060102t150405") + "-" + hex.EncodeToString(random[:])}
	r.dir = filepath.Join(base, r.id)
	if err := os.Mkdir(r.dir, 0o700); err != nil {
		return nil, nil, err
	}
	r.lock = flock.New(filepath.Join(r.dir, "lock"))
	held, err := r.lock.TryLock()
	if err == nil && !held {
		err = errors.New("it is held")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("lock %s: %w", r.lock.Path(), err)
	}
	return r, left, nil
}

func sweepRuns(base string, sweep func(id, dir string) error) error {
	entries, err := os.ReadDir(base)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		dir := filepath.Join(base, e.Name())
		// Without the flag to create it: its process may remove the directory just now, the lock in it first.
		lock := flock.New(filepath.Join(dir, "lock"), flock.SetFlag(os.O_RDWR))
		held, lerr := lock.TryLock()
		if gone := errors.Is(lerr, fs.ErrNotExist); !held && !gone {
			continue // its process lives
		}
		if serr := sweep(e.Name(), dir); serr != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", dir, serr))
		} else {
			err = errors.Join(err, os.RemoveAll(dir))
		}
		_ = lock.Unlock()
	}
	return err
}

// alive tells whether the process of a run holds its lock.
func alive(cacheDir, id string) bool {
	if id == "" || strings.ContainsAny(id, "/\x00") || strings.HasPrefix(id, ".") {
		return false
	}
	lock := flock.New(filepath.Join(cacheDir, "runs", id, "lock"), flock.SetFlag(os.O_RDWR))
	held, err := lock.TryLock()
	if held {
		_ = lock.Unlock()
	}
	return err == nil && !held
}

// remove ends the run's directory.
func (r *run) remove() error {
	return errors.Join(os.RemoveAll(r.dir), r.lock.Unlock())
}

// privateDir makes a directory that only this user can look into, and refuses one that belongs to somebody else or that
// others may write to: what is run from it is run as this user.
func privateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	switch {
	case !info.IsDir():
		return fmt.Errorf("%s is no directory", dir)
	case !owned(info):
		return fmt.Errorf("%s belongs to another user; choose another --cache-dir", dir)
	}
	return os.Chmod(dir, 0o700)
}

func owned(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}
