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

// Any of the places may be a volume with foreign content. So nothing below follows a link as root, and work inside
// another account's directory is done with that account's rights. Root needs CAP_CHOWN, CAP_SETUID and CAP_SETGID for
// this; supervisord needs the last two, and CAP_KILL.

// prepare prepares all directories below root for supervisord. It is idempotent: a container may be stopped and started
// again.
func (p plan) prepare(root string) error {
	for _, d := range p.places() {
		if err := d.create(root, p.self); err != nil {
			return fmt.Errorf("%s: %w\n%s", d.path, err, d.remedy(p.self))
		}
	}
	for _, step := range []func(string) error{p.dropLocks, p.checkLinks, p.checkLogs, p.writeGate, p.writeOutgoing} {
		if err := step(root); err != nil {
			return err
		}
	}
	return nil
}

// checkLogs refuses an audit log of another account: a volume from a container that started as another user. The tool
// couldn't write it, and would only say so in its own log.
func (p plan) checkLogs(root string) error {
	return doAs(p.service, p.self, func() error {
		for _, name := range []string{"audit.jsonl", "egress.jsonl"} {
			file := "/var/log/browser-shell/audit/" + name
			info, err := os.Lstat(root + file)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			if uid := int(info.Sys().(*syscall.Stat_t).Uid); uid != p.service.uid {
				return fmt.Errorf("%s belongs to user %d, and user %d writes the log\nstart the container as the user that it was started as before, or mount an empty volume at /var/log/browser-shell",
					file, uid, p.service.uid)
			}
		}
		return nil
	})
}

// remedy returns the operator's next step for a place that can't be made.
func (d place) remedy(self account) string {
	if self == d.owner && self.uid != 0 {
		return fmt.Sprintf("make it writable for user %d: mount a tmpfs or a volume of that user there, or start the container as root", self.uid)
	}
	return "mount a tmpfs or a volume there that can be written to, and leave the container CHOWN, SETUID, SETGID and KILL; or start it as 1000:1000"
}

// create creates the directory and gives it to its owner. As root it sets owner and mode exactly; otherwise the
// directory only has to be writable.
func (d place) create(root string, self account) error {
	dir, err := openDir(filepath.Join(root, d.path))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := d.setOwner(dir, self); err != nil {
		return err
	}
	return doAs(d.owner, self, func() error { return tryWrite(dir) })
}

func (d place) setOwner(dir *os.File, self account) error {
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
	// Without CAP_FOWNER only the owner can change a mode, so root takes the directory first.
	if self.uid == 0 {
		if err := chown(dir, self); err != nil {
			return err
		}
	}
	err := unix.Fchmodat(int(dir.Fd()), ".", mode, 0)
	if errors.Is(err, unix.EACCES) { // the lookup of "." needs x, which an owner may have removed
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

// tryWrite detects a read-only mount before a program fails on it.
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

// openDir opens a directory, and creates it and its parents if necessary. It follows no link. The file is opened with
// O_PATH: without CAP_DAC_OVERRIDE root can't read another account's private directory.
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
		_ = unix.Close(above) // opened only for the lookup
	}
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		return nil, fmt.Errorf("%s is a link or a file, and must be a directory: remove it", at)
	case err != nil:
		return nil, &fs.PathError{Op: "open", Path: at, Err: err}
	}
	return os.NewFile(uintptr(fd), at), nil
}

// doAs calls do with the file rights of the account who. The kernel removes root's own rights meanwhile
// (capabilities(7), "Effect of user ID changes on capabilities").
func doAs(who, self account, do func() error) error {
	if who == self {
		return do()
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the ids belong to this thread, which ends with the goroutine
		err := setFS(who)
		if err == nil {
			err = do()
		}
		done <- err
	}()
	return <-done
}

// setFS sets the file system ids of the thread. Only a second call shows whether the first succeeded.
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

// dropLocks removes the lock files of an earlier X server: their process id may belong to another process now.
func (p plan) dropLocks(root string) error {
	for dir, name := range map[string]string{"/tmp": ".X99-lock", "/tmp/.X11-unix": "X99"} {
		if err := p.dropLock(filepath.Join(root, dir), name); err != nil {
			return fmt.Errorf("remove %s/%s: %w", dir, name, err)
		}
	}
	return nil
}

// dropLock removes a name from a world-writable directory. It may be a non-empty directory, so dropLock renames it
// first.
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
	_ = doAs(p.desktop, p.self, func() error { return os.RemoveAll(filepath.Join(dir, old)) }) // a leftover is in nobody's way
	return nil
}

// checkLinks refuses links and special files that root's programs would open in their directories.
func (p plan) checkLinks(root string) error {
	for _, dir := range []string{logDir, "/run/nginx", "/run/supervisor"} {
		d, err := openDir(filepath.Join(root, dir))
		if err != nil {
			return err
		}
		entries, err := listDir(d)
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

func listDir(dir *os.File) ([]fs.DirEntry, error) {
	fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: dir.Name(), Err: err}
	}
	f := os.NewFile(uintptr(fd), dir.Name())
	defer f.Close()
	return f.ReadDir(-1)
}

// writeGate writes the gate's configuration for the service account alone. It holds verifiers, not keys.
func (p plan) writeGate(root string) error { return p.writeConfig(root, gateFile, p.gate) }

// writeOutgoing writes the outgoing proxy, which may have a password, for the service account alone. An empty one
// replaces the file of an earlier run.
func (p plan) writeOutgoing(root string) error {
	return p.writeConfig(root, egress.DefaultOutgoing, p.outgoing)
}

// writeConfig writes a file that only the service account can read.
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
	return doAs(p.service, p.self, func() error {
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
			_ = unix.Unlinkat(int(dir.Fd()), name, 0) // the first error is enough
			return fmt.Errorf("write %s: %w", file, err)
		}
		return nil
	})
}

// openNamedOutput returns a descriptor for the programs' standard output, which supervisord opens by name. It is fd, or
// one of /dev/null if fd can't be opened by name, such as a socket.
func openNamedOutput(fd int) int {
	err := tryOpen(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err == nil {
		return fd
	}
	if !errors.Is(err, fs.ErrNotExist) { // without /proc there are bigger problems
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

// keepOutput replaces a standard output that supervisord can't open by /dev/null.
func keepOutput() error {
	if fd := openNamedOutput(1); fd != 1 {
		return unix.Dup3(fd, 1, 0)
	}
	return nil
}

// becomeProgram replaces this process by another program. It and its children can't gain rights: a setuid file left in
// the image has no effect.
func becomeProgram(argv, env []string) error {
	runtime.LockOSThread() // the flag belongs to this thread; exec keeps the calling thread's flag
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no new privileges: %w", err)
	}
	return fmt.Errorf("start %s: %w", argv[0], syscall.Exec(argv[0], argv, env))
}
