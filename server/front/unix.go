package front

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxPath is the maximum length of a socket path on Linux, in bytes.
const maxPath = 107

// listenUnix opens a unix socket with a mode. It refuses a directory that others can write: they could replace the
// socket. It replaces a socket on which nobody listens; one with a listener, or another kind of file, is an error.
// Closing the listener removes the socket.
func listenUnix(path string, mode fs.FileMode) (net.Listener, error) {
	if !filepath.IsAbs(path) || len(path) > maxPath {
		return nil, fmt.Errorf("%q: give an absolute path of at most %d bytes", path, maxPath)
	}
	dir, err := openOwn(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	// If two programs start at once, the second finds the first's socket alive.
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock %s: %w", dir.Name(), err)
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	// Linux creates the file with the mode of the socket, so it is never wider.
	private := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), uint32(mode)) }), err)
	}}
	l, err := private.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, mode); err != nil { // the umask may have narrowed it
		l.Close()
		return nil, err
	}
	return l, nil
}

// openOwn opens a directory that only this user and root can write.
func openOwn(path string) (*os.File, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := dir.Stat()
	if err == nil {
		st, ok := info.Sys().(*syscall.Stat_t)
		switch {
		case !ok || !info.IsDir():
			err = fmt.Errorf("%s is not a directory", path)
		case st.Uid != 0 && int(st.Uid) != os.Geteuid():
			err = fmt.Errorf("directory %s belongs to user %d; use one of user %d", path, st.Uid, os.Geteuid())
		case info.Mode().Perm()&0o022 != 0:
			err = fmt.Errorf("others may write directory %s (mode %04o); chmod go-w or use another", path, info.Mode().Perm())
		}
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s exists and is not a socket; remove it or use another path", path)
	}
	c, err := net.DialTimeout("unix", path, 5*time.Second)
	if err == nil {
		c.Close()
		return fmt.Errorf("another program answers on %s; stop it first", path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("check whether another program answers on %s: %w", path, err)
	}
	return os.Remove(path)
}
