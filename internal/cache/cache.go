// Package cache lists the entries of slimctl's cache directory and removes unused ones. The packages that write entries
// own them; this package knows only the entries' names and their users' locks.
//
// It reads and removes nothing outside the directory: all paths go through an os.Root, and symbolic links are not
// followed.
package cache

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Room is one kind of cache entries.
type Room struct {
	Name string `json:"name"`
	// What describes the entries in a few words.
	What    string `json:"what"`
	Entries int    `json:"entries"`
	// Bytes is the size of all files.
	Bytes int64 `json:"bytes"`
	// Used is the time of the last use of an entry, as far as the file system records it; zero if there are none.
	Used time.Time `json:"used,omitzero"`
	// Kept counts, by reason, the due entries that Prune didn't remove.
	Kept map[string]int `json:"kept,omitempty"`
}

// room is a Room's name and the patterns of its entries: slash-separated paths in the cache directory.
type room struct {
	name, what string
	entry      *regexp.Regexp
}

// temporary is the age up to which an unfinished entry may belong to a running process.
const temporary = 24 * time.Hour

const (
	runsDir      = "runs"
	unpackedRoom = "unpacked"
	otherRoom    = "other"
)

var rooms = []room{
	{"payload", "agent-browser, fetched by npm", regexp.MustCompile(`^payload/([0-9a-f]{64}(\.tgz)?|\.slimctl-tmp-\d+)$`)},
	{"server", "browser-shell, compiled", regexp.MustCompile(`^server/([a-z0-9]+-[0-9a-f]{64}|\.slimctl-tmp-\d+)$`)},
	{"layers", "layers that builds add", regexp.MustCompile(`^layers/v\d+(-\d)?/\.?[0-9a-f]{64}(-[0-9a-f]{64})?\.tar\.(gz|zst)(\.\d+)?$`)},
	{"stripped", "layers of what stays of a base", regexp.MustCompile(`^stripped/v\d+/\.?[0-9a-f]{64}\.(tar\.(gz|zst)|json|pins)(\.\d+)?$`)},
	{"index", "lists of the files in layers", regexp.MustCompile(`^index/v\d+/\.?sha256-[0-9a-f]{64}\.idx(\.\d+)?$`)},
	{"contents", "files of layers that diff compares", regexp.MustCompile(`^contents/v\d+/\.?sha256-[0-9a-f]{64}\.idx(\.\d+)?$`)},
	{"verified", "blobs whose digest was checked", regexp.MustCompile(`^verified/\.?sha256-[0-9a-f]{64}\.json(\.\d+)?$`)},
	{unpackedRoom, "layers that containers run from", regexp.MustCompile(`^unpacked/sha256/[0-9a-f]{64}(\.tmp)?$`)},
	{"standin", "stand-ins of the base", regexp.MustCompile(`^\.?standin-[a-z]+(-[a-z])?-[0-9a-f]{16}(\.\d+)?$`)},
	{"docker", "images that Docker has, as it saves them", regexp.MustCompile(`^docker/[^/]+$`)},
	{"buildkitd", "state of --builder auto", regexp.MustCompile(`^buildkitd-\d+$`)},
	{otherRoom, "anything else; never pruned", regexp.MustCompile(`^[^/]+$`)},
}

// Options selects what Prune removes.
type Options struct {
	// Unused is the minimum time since an entry's last use; 0 is any.
	Unused time.Duration
	// DryRun only reports.
	DryRun bool
	// Now is the end of the time Unused; zero is the present.
	Now time.Time
}

// Usage returns all rooms of the cache in dir. A missing dir is an empty cache.
func Usage(dir string) ([]Room, error) {
	return visit(dir, func(*os.Root, entry, *Room) error { return nil })
}

// Prune removes entries that weren't used for o.Unused and that no other process locks. It returns the rooms with the
// entries that it removed, or would remove with DryRun.
func Prune(dir string, o Options) ([]Room, error) {
	if o.Now.IsZero() {
		o.Now = time.Now()
	}
	var stop func() error
	var running string
	out, err := visit(dir, func(root *os.Root, e entry, r *Room) (err error) {
		keep := func(why string) {
			if why != "" {
				if r.Kept == nil {
					r.Kept = map[string]int{}
				}
				r.Kept[why]++
			}
			r.Entries, r.Bytes = r.Entries-1, r.Bytes-e.size
		}
		age := o.Now.Sub(e.used)
		switch {
		case r.Name == otherRoom, age < o.Unused, e.unfinished() && age < temporary:
			keep("")
			return nil
		case r.Name == unpackedRoom && stop == nil:
			if stop, running, err = holdRuns(root); err != nil {
				return err
			}
		}
		if r.Name == unpackedRoom && running != "" {
			keep(running)
			return nil
		}
		unlock, held, err := lockEntry(root, e.path)
		if err != nil {
			return err
		}
		if held {
			keep("another process holds its lock")
			return nil
		}
		if !o.DryRun {
			err = root.RemoveAll(e.path)
		}
		return errors.Join(err, unlock())
	})
	if stop != nil {
		err = errors.Join(err, stop())
	}
	return out, err
}

// entry is a file or directory that is removed as a whole.
type entry struct {
	path string
	size int64
	used time.Time
}

// unfinished reports whether e is being written, or was when its process died.
func (e entry) unfinished() bool {
	name := path.Base(e.path)
	return strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".tmp") || strings.HasPrefix(name, "buildkitd-")
}

// visit calls do for each entry in dir, after counting it in its room.
func visit(dir string, do func(*os.Root, entry, *Room) error) ([]Room, error) {
	if dir == "" {
		return nil, errors.New("no cache directory: set HOME, or name one with --cache-dir DIR")
	}
	out := make([]Room, len(rooms))
	for i, r := range rooms {
		out[i] = Room{Name: r.name, What: r.what}
	}
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	defer root.Close()
	found, err := list(root, ".")
	if err != nil {
		return nil, err
	}
	for _, name := range found {
		i := slices.IndexFunc(rooms, func(r room) bool { return r.entry.MatchString(name) })
		e := entry{path: name}
		if err := measure(root, &e); errors.Is(err, fs.ErrNotExist) {
			continue // its process has just finished it
		} else if err != nil {
			return nil, err
		}
		r := &out[i]
		r.Entries, r.Bytes = r.Entries+1, r.Bytes+e.size
		if e.used.After(r.Used) {
			r.Used = e.used
		}
		if err := do(root, e, r); err != nil {
			return nil, fmt.Errorf("%s: %w", e.path, err)
		}
	}
	return out, nil
}

// list returns the entries below dir: those that match a room, and at the top everything outside the rooms.
func list(root *os.Root, dir string) (out []string, err error) {
	children, err := fs.ReadDir(root.FS(), dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, c := range children {
		name := path.Join(dir, c.Name())
		switch {
		case c.Type()&fs.ModeSymlink != 0, strings.HasSuffix(name, ".lock"):
		case isClaimed(name):
			out = append(out, name)
		case c.IsDir() && (dir != "." || holdsRoom(name)):
			below, berr := list(root, name)
			out, err = append(out, below...), errors.Join(err, berr)
		case dir == ".":
			out = append(out, name)
		}
	}
	return out, err
}

// isClaimed reports whether a room's pattern matches the path.
func isClaimed(name string) bool {
	return slices.ContainsFunc(rooms[:len(rooms)-1], func(r room) bool { return r.entry.MatchString(name) })
}

// holdsRoom reports whether a top-level directory belongs to a room.
func holdsRoom(name string) bool {
	return slices.ContainsFunc(rooms[:len(rooms)-1], func(r room) bool { return r.name == name })
}

// measure sets the size of an entry and the time of its last use. For the time only files count, because reading a
// directory, as measure does, changes its access time.
func measure(root *os.Root, e *entry) error {
	return fs.WalkDir(root.FS(), e.path, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			if name != e.path && errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) && name != e.path {
			return nil
		}
		if err != nil {
			return err
		}
		used := info.ModTime()
		if info.Mode().IsRegular() {
			e.size += info.Size()
			if read := accessTime(info); read.After(used) {
				used = read
			}
		}
		// Files of unpacked layers and payloads have original times; only the files beside them show the use.
		if strings.Count(name, "/")-strings.Count(e.path, "/") <= 1 && used.After(e.used) {
			e.used = used
		}
		return nil
	})
}

// lockEntry takes the lock that the maker or user of an entry holds. held reports that another process has it. An entry
// without a lock file has no user.
func lockEntry(root *os.Root, name string) (unlock func() error, held bool, err error) {
	file := strings.TrimSuffix(name, ".tmp") + ".lock"
	if strings.HasPrefix(name, "buildkitd-") {
		file = path.Join(name, "buildkitd.lock") // buildkitd's own
	}
	return lockFile(root, file, os.O_RDWR)
}

func lockFile(root *os.Root, name string, flag int) (unlock func() error, held bool, err error) {
	f, err := root.OpenFile(name, flag|unix.O_NOFOLLOW, 0o600)
	if errors.Is(err, fs.ErrNotExist) && flag&os.O_CREATE == 0 {
		return func() error { return nil }, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, true, f.Close()
	}
	if err != nil {
		return nil, false, errors.Join(fmt.Errorf("lock %s: %w", name, err), f.Close())
	}
	return f.Close, false, nil
}

// holdRuns prevents containers from starting until release. running names a run that uses the unpacked layers. A run
// exists also after its slimctl was killed, until the next `slimctl run` ends its container.
func holdRuns(root *os.Root) (release func() error, running string, err error) {
	if err := root.Mkdir(runsDir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, "", err
	}
	release, held, err := lockFile(root, path.Join(runsDir, ".lock"), os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, "", err
	}
	if held {
		return func() error { return nil }, "a container is starting", nil
	}
	runs, err := fs.ReadDir(root.FS(), runsDir)
	if err != nil {
		return nil, "", errors.Join(err, release())
	}
	for _, r := range runs {
		if r.IsDir() {
			return release, "the container of " + path.Join(runsDir, r.Name()) + " uses them", nil
		}
	}
	return release, "", nil
}
