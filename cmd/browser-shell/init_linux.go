package main

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/slimctl/slimctl/server/egress"
)

// Any of the places may be a volume that someone else has filled. So nothing below follows a link as root, and what is
// done inside of another account's directory is done with that account's rights. Root needs CAP_CHOWN, CAP_SETUID and
// CAP_SETGID for this; supervisord needs the last two as well, and CAP_KILL.

// prepare makes everything below root ready for supervisord. It can be done again: a container may be stopped and started.
func (p plan) prepare(root string) error {
	for _, d := range p.places() {
		if err := d.make(root, p.self); err != nil {
			return fmt.Errorf("%s: %w\n%s", d.path, err, d.remedy(p.self))
		}
	}
	for _, step := range []func(string) error{p.dropLocks, p.checkLinks, p.writeGate, p.writeOutgoing} {
		if err := step(root); err != nil {
			return err
		}
	}
	return nil
}

// remedy says what to do about a place that can't be made.
func (d place) remedy(self account) string {
	if self == d.owner && self.uid != 0 {
		return fmt.Sprintf("make it writable for user %d: mount a tmpfs or a volume of that user there, or start the container as root", self.uid)
	}
	return "mount a tmpfs or a volume there that can be written to, and leave the container CHOWN, SETUID, SETGID and KILL; or start it as 1000:1000"
}

// make makes the directory and gives it to its owner. As root it is that owner's with exactly that mode afterwards;
// otherwise it is enough that it can be written to.
func (d place) make(root string, self account) error {
	dir, err := openDir(filepath.Join(root, d.path))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := d.give(dir, self); err != nil {
		return err
	}
	return as(d.owner, self, func() error { return tryWrite(dir) })
}

func (d place) give(dir *os.File, self account) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return err
	}
	mode := uint32(d.mode.Perm())
	if d.mode&fs.ModeSticky != 0 {
		mode |= unix.S_ISVTX
	}
	owned := int(st.Uid) == d.owner.uid && (int(st.Gid) == d.owner.gid || self.uid != 0)
	if owned && st.Mode&^unix.S_IFMT == mode || self.uid != 0 && int(st.Uid) != self.uid {
		return nil
	}
	// Without CAP_FOWNER only the owner changes a mode, so it is root's for that.
	if self.uid == 0 {
		if err := chown(dir, self); err != nil {
			return err
		}
	}
	err := unix.Fchmodat(int(dir.Fd()), ".", mode, 0)
	if errors.Is(err, unix.EACCES) { // "." is looked up in it, for which an owner who left it without x has no right
		err = unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()), mode)
	}
	if err != nil {
		return fmt.Errorf("chmod %04o: %w", mode, err)
	}
	if self.uid != 0 {
		return nil
	}
	return chown(dir, d.owner)
}

func chown(dir *os.File, to account) error {
	if err := unix.Fchownat(int(dir.Fd()), "", to.uid, to.gid, unix.AT_EMPTY_PATH); err != nil {
		return fmt.Errorf("chown %d:%d: %w", to.uid, to.gid, err)
	}
	return nil
}

// tryWrite tells a read-only mount before a program fails on it.
func tryWrite(dir *os.File) error {
	name := ".init-" + rand.Text()
	f, err := createIn(dir, name, 0o600)
	if err != nil {
		return err
	}
	f.Close()
	return unix.Unlinkat(int(dir.Fd()), name, 0)
}

func createIn(dir *os.File, name string, mode uint32) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
	if err != nil {
		return nil, &fs.PathError{Op: "create a file", Path: dir.Name(), Err: err}
	}
	return os.NewFile(uintptr(fd), filepath.Join(dir.Name(), name)), nil
}

// openDir opens a directory and makes it, and those above it, if they aren't there. It follows no link. What it gives is
// only a place (O_PATH): without CAP_DAC_OVERRIDE root may not read what is another account's alone.
func openDir(path string) (*os.File, error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Open("/", flags, 0)
	at := "/"
	for name := range strings.SplitSeq(strings.Trim(path, "/"), "/") {
		if err != nil {
			break
		}
		at = filepath.Join(at, name)
		above := fd
		fd, err = unix.Openat(above, name, flags, 0)
		if errors.Is(err, fs.ErrNotExist) {
			if err = unix.Mkdirat(above, name, 0o755); err == nil {
				fd, err = unix.Openat(above, name, flags, 0)
			}
		}
		_ = unix.Close(above) // it was only read
	}
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		return nil, fmt.Errorf("%s is a link or a file, and must be a directory: remove it", at)
	case err != nil:
		return nil, &fs.PathError{Op: "open", Path: at, Err: err}
	}
	return os.NewFile(uintptr(fd), at), nil
}

// as calls do with the rights of an account on files. The kernel takes root's own away for that time (capabilities(7),
// "Effect of user ID changes on capabilities").
func as(who, self account, do func() error) error {
	if who == self {
		return do()
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the ids are this thread's, which ends with the goroutine
		err := setFS(who)
		if err == nil {
			err = do()
		}
		done <- err
	}()
	return <-done
}

// setFS tells by a second call whether the first one did it: they have no other result.
func setFS(who account) error {
	_, _ = unix.SetfsgidRetGid(who.gid)
	_, _ = unix.SetfsuidRetUid(who.uid)
	gid, err1 := unix.SetfsgidRetGid(-1)
	uid, err2 := unix.SetfsuidRetUid(-1)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if uid != who.uid || gid != who.gid {
		return fmt.Errorf("act as %s: %w", who.name, unix.EPERM)
	}
	return nil
}

// dropLocks removes what X of an earlier run left to say that it runs: its process id may be another's now.
func (p plan) dropLocks(root string) error {
	for dir, name := range map[string]string{"/tmp": ".X99-lock", "/tmp/.X11-unix": "X99"} {
		if err := p.dropLock(filepath.Join(root, dir), name); err != nil {
			return fmt.Errorf("remove %s/%s: %w", dir, name, err)
		}
	}
	return nil
}

// dropLock removes a name from a directory of everybody's. A directory may stand there, which may be full: the name is
// what must go.
func (p plan) dropLock(dir, name string) error {
	d, err := openDir(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	err = unix.Unlinkat(int(d.Fd()), name, 0)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	old := ".init-" + rand.Text()
	if err := unix.Renameat(int(d.Fd()), name, int(d.Fd()), old); err != nil {
		return err
	}
	_ = as(p.desktop, p.self, func() error { return os.RemoveAll(filepath.Join(dir, old)) }) // what stays is in nobody's way
	return nil
}

// dropProfileLocks does the same in the browser's profile. What stands in its way there is gem's own matter.
func (p plan) dropProfileLocks(root string) error {
	return as(p.desktop, p.self, func() error { // links lead gem nowhere where it could not go by itself
		for _, name := range []string{"SingletonLock", "SingletonSocket", "SingletonCookie"} {
			err := os.Remove(filepath.Join(root, "home/gem/.config/browser", name))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return nil
	})
}

// checkLinks refuses what root's programs would follow or wait for when they open their files.
func (p plan) checkLinks(root string) error {
	for _, dir := range []string{logDir, "/run/nginx", "/run/supervisor"} {
		d, err := openDir(filepath.Join(root, dir))
		if err != nil {
			return err
		}
		entries, err := list(d)
		d.Close()
		if err != nil {
			return err
		}
		for _, e := range entries {
			info, err := e.Info()
			if err != nil {
				return err
			}
			st, ok := info.Sys().(*syscall.Stat_t)
			switch kind := info.Mode().Type(); {
			case kind == 0 && ok && st.Nlink == 1, kind == fs.ModeDir, kind == fs.ModeSocket:
			default:
				return fmt.Errorf("%s/%s is a link or a special file, which root would open: remove it", dir, e.Name())
			}
		}
	}
	return nil
}

func list(dir *os.File) ([]fs.DirEntry, error) {
	fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: dir.Name(), Err: err}
	}
	f := os.NewFile(uintptr(fd), dir.Name())
	defer f.Close()
	return f.ReadDir(-1)
}

// writeGate puts the gate's configuration where browser-shell alone reads it. It holds no key, only what checks one.
func (p plan) writeGate(root string) error { return p.writeConfig(root, gateFile, p.gate) }

// writeOutgoing does the same with the outgoing proxy, which may have a password. Without one it takes the place of an
// earlier run's.
func (p plan) writeOutgoing(root string) error {
	return p.writeConfig(root, egress.DefaultOutgoing, p.outgoing)
}

// writeConfig writes a file that the service account alone reads.
func (p plan) writeConfig(root, file string, config any) error {
	data, err := json.Marshal(config)
	if err != nil {
		return err
	}
	dir, err := openDir(filepath.Join(root, filepath.Dir(file)))
	if err != nil {
		return err
	}
	defer dir.Close()
	return as(p.service, p.self, func() error {
		name := ".config-" + rand.Text()
		f, err := createIn(dir, name, 0o400)
		if err != nil {
			return err
		}
		_, err = f.Write(data)
		if err = errors.Join(err, f.Close()); err == nil {
			err = unix.Renameat(int(dir.Fd()), name, int(dir.Fd()), filepath.Base(file))
		}
		if err != nil {
			_ = unix.Unlinkat(int(dir.Fd()), name, 0) // the error says enough
			return fmt.Errorf("write %s: %w", file, err)
		}
		return nil
	})
}

// namedOutput returns the descriptor for the programs' standard output, which supervisord opens by its name: fd, or one of
// /dev/null where fd can't be opened so, as a socket can't.
func namedOutput(fd int) int {
	err := tryOpen(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err == nil {
		return fd
	}
	if !errors.Is(err, fs.ErrNotExist) { // without /proc there is more to complain of
		fmt.Fprintln(os.Stderr, "browser-shell init: the anchors of the audit logs are not printed:", err)
	}
	if null, err := unix.Open(os.DevNull, unix.O_WRONLY|unix.O_CLOEXEC, 0); err == nil {
		return null
	}
	return fd
}

func tryOpen(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// keepOutput makes standard output one that supervisord can open.
func keepOutput() error {
	if fd := namedOutput(1); fd != 1 {
		return unix.Dup3(fd, 1, 0)
	}
	return nil
}

// replace makes this process another program, which and whose children gain no rights by what they start: a setuid file
// that is left in the image is an ordinary one.
func replace(argv, env []string) error {
	runtime.LockOSThread() // the flag is this thread's, and exec keeps the calling thread's
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no new privileges: %w", err)
	}
	return fmt.Errorf("start %s: %w", argv[0], syscall.Exec(argv[0], argv, env))
}
