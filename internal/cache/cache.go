// Package cache removes from slimctl's cache directory what no command used for 30 days. The packages that write entries
// own them; this package knows only their names.
package cache

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"golang.org/x/sys/unix"
)

const (
	unused = 30 * 24 * time.Hour // since the last use of an entry that is removed
	every  = 24 * time.Hour      // between two looks at the cache
)

// places are the patterns of entries' paths. Any other path may belong to somebody who gave his own directory to
// --cache-dir, and so may a name that entry doesn't match.
var (
	places = []string{
		"payload/*", "server/*", "layers/v*/*", "stripped/v*/*", "index/v*/*", "contents/v*/*", "verified/*", unpacked, "docker/*",
		"standin-*", ".standin-*", "buildkitd-*",
	}
	entry = regexp.MustCompile(`^\.?([a-z0-9]+-){0,3}[0-9a-f]{16,64}(-[0-9a-f]{64})?(\.[a-z]+)*(\.\d+)?$|^\.slimctl-tmp-\d+$|^buildkitd-\d+$`)
)

const (
	unpacked = "unpacked/sha256/*" // the layers that containers run from
	mark     = "pruned"            // the file with the time of the last look
)

// Prune removes the entries of the cache in dir that nothing read or wrote for 30 days. It does nothing if it looked less
// than a day ago, or if dir doesn't exist. It removes nothing outside dir, whatever symbolic links dir contains.
func Prune(dir string, now time.Time) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if info, err := root.Lstat(mark); err == nil && now.Sub(info.ModTime()) < every {
		return nil
	}
	if err := errors.Join(root.WriteFile(mark, nil, 0o600), root.Chtimes(mark, now, now)); err != nil {
		return err
	}
	var errs []error
	for _, pattern := range places {
		if pattern == unpacked {
			release, free := holdRuns(dir)
			defer release()
			if !free {
				continue
			}
		}
		found, err := fs.Glob(root.FS(), pattern)
		errs = append(errs, err)
		for _, p := range found {
			name := path.Base(p)
			if entry.MatchString(name) && !strings.HasSuffix(name, ".lock") && now.Sub(lastUse(filepath.Join(dir, p))) > unused {
				errs = append(errs, root.RemoveAll(p))
			}
		}
	}
	return errors.Join(errs...)
}

// lastUse returns the time of the last use of a file, or of the files directly in a directory: deeper ones have the times
// of a layer or a package.
func lastUse(p string) time.Time {
	used := fileUse(p)
	children, _ := os.ReadDir(p) // p may be a file
	for _, c := range children {
		if t := fileUse(filepath.Join(p, c.Name())); t.After(used) {
			used = t
		}
	}
	return used
}

// fileUse returns the time at which a file was last read or written. The access time of a directory doesn't count,
// because lastUse reads it.
func fileUse(p string) time.Time {
	var st unix.Stat_t
	if err := unix.Lstat(p, &st); err != nil {
		return time.Now() // another process has just removed it
	}
	used := time.Unix(st.Mtim.Unix())
	if read := time.Unix(st.Atim.Unix()); st.Mode&unix.S_IFMT == unix.S_IFREG && read.After(used) {
		return read
	}
	return used
}

// holdRuns keeps containers from starting until release. free reports that none runs or is about to start.
func holdRuns(dir string) (release func(), free bool) {
	runs := filepath.Join(dir, "runs")
	children, err := os.ReadDir(runs)
	if errors.Is(err, fs.ErrNotExist) { // nothing ever ran
		return func() {}, true
	}
	lock := flock.New(filepath.Join(runs, ".lock"))
	locked, lockErr := lock.TryLock()
	free = err == nil && lockErr == nil && locked
	for _, c := range children {
		free = free && !c.IsDir() // each run has a directory, also after its slimctl was killed
	}
	return func() { _ = lock.Unlock() }, free
}
