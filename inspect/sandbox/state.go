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

	"github.com/slimctl/slimctl/image"
)

// The private directory of this user's runs, below the cache directory:
//
//	runs/                 0700
//	  .lock               held while a run is made or swept
//	  .owner              what the labels of its containers say
//	  ID/                 one run; gone when it ends
//	    lock              held for the life of the process that runs it
//	    m/                a tmpfs: what the container writes (Linux, as root)
//	    bundle/ runc/     config.json and state of runc
//
// What a killed process left is found by its lock, which nobody holds, and ended and removed by the next run.

const namePrefix = "slimctl-" // of containers and cgroups, before the run's id

// run is the directory of one run.
type run struct {
	id, dir string
	owner   string // of the directory of all runs
	lock    *flock.Flock
}

func (r *run) name() string { return namePrefix + r.id }

func scratch(dir string) string { return filepath.Join(dir, "m") }

// newRun creates a run's directory. It calls sweep for each directory that a killed process left, and then removes it.
// A directory that sweep failed for stays for the next run, and is in left.
func newRun(cacheDir string, sweep func(id, dir string) error) (_ *run, left, err error) {
	base := filepath.Join(cacheDir, "runs")
	if err := privateDir(base); err != nil {
		return nil, nil, err
	}
	lock := flock.New(filepath.Join(base, ".lock"))
	if err := lock.Lock(); err != nil {
		return nil, nil, fmt.Errorf("lock %s: %w", lock.Path(), err)
	}
	defer func() { _ = lock.Unlock() }() // closing releases it, too
	left = sweepRuns(base, sweep)
	owner, err := readOwner(base)
	if err != nil {
		return nil, nil, err
	}
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails
	r := &run{id: time.Now().UTC().Format("20060102t150405") + "-" + hex.EncodeToString(random[:]), owner: owner}
	r.dir = filepath.Join(base, r.id)
	if err := os.Mkdir(r.dir, 0o700); err != nil {
		return nil, nil, err
	}
	r.lock = flock.New(filepath.Join(r.dir, "lock"))
	held, err := r.lock.TryLock()
	if err == nil && !held {
		err = errors.New("another process holds it")
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
		// Without creating the lock: its process may just be removing the directory, the lock first.
		lock := flock.New(filepath.Join(dir, "lock"), flock.SetFlag(os.O_RDWR))
		held, lerr := lock.TryLock()
		if gone := errors.Is(lerr, fs.ErrNotExist); !held && !gone {
			continue // its process is alive
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

// readOwner returns a text that is unique to this directory of runs, and secret from users who can't read it. It
// contains the file's inode number, so that a copy is another owner.
func readOwner(base string) (string, error) {
	file := filepath.Join(base, ".owner")
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		text = []byte(rand.Text())
		err = image.WriteBytes(file, 0o600, text)
	}
	if err != nil {
		return "", err
	}
	info, err := os.Lstat(file)
	if err != nil {
		return "", err
	}
	number := uint64(0)
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		number = st.Ino
	}
	return fmt.Sprintf("%s-%d", text, number), nil
}

// isAlive reports whether the process of a run holds its lock.
func isAlive(cacheDir, id string) bool {
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

// remove removes the run's directory.
func (r *run) remove() error {
	return errors.Join(os.RemoveAll(r.dir), r.lock.Unlock())
}

// privateDir creates a directory that only this user can enter. It refuses one that belongs to another user or that
// others can write: programs run from it with this user's rights.
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
		return fmt.Errorf("%s is not a directory; remove it or choose another --cache-dir", dir)
	case !owned(info):
		return fmt.Errorf("%s belongs to another user; choose another --cache-dir", dir)
	}
	return os.Chmod(dir, 0o700)
}

func owned(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}
