package audit

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// openPrivate opens a file of the log that nobody else can have created or can read. It adds flags to O_RDWR.
func openPrivate(path string, flags int) (*os.File, error) {
	// O_NONBLOCK: opening a FIFO must not block.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|syscall.O_NOFOLLOW|syscall.O_NONBLOCK|flags, 0o600)
	if errors.Is(err, syscall.ELOOP) {
		return nil, fmt.Errorf("audit log %s is a symbolic link; name the file itself", path)
	}
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	if err := checkPrivate(f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func checkPrivate(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return fmt.Errorf("audit log %s is not a regular file", f.Name())
	case !ok || int(st.Uid) != os.Geteuid():
		return fmt.Errorf("audit log %s belongs to another user; move it away or run as its owner", f.Name())
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("audit log %s may be read or written by others (mode %04o); chmod 600 it", f.Name(), info.Mode().Perm())
	case st.Nlink > 1:
		return fmt.Errorf("audit log %s has %d names (hard links); remove the others", f.Name(), st.Nlink)
	}
	return nil
}

// checkDir refuses a directory in which others can rename files.
func checkDir(path string) error {
	dir := filepath.Dir(path)
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	if info.Mode().Perm()&0o022 != 0 && info.Mode()&fs.ModeSticky == 0 {
		return fmt.Errorf("audit log: others may replace files in %s (mode %04o); chmod go-w it", dir, info.Mode().Perm())
	}
	return nil
}

// lockFile makes this process the only writer of the file, until it closes it or ends.
func lockFile(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	switch {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return fmt.Errorf("audit log %s: another process writes it; stop that one, or set audit.file in this one's policy", f.Name())
	case err != nil:
		return fmt.Errorf("audit log %s cannot be locked: %w", f.Name(), err)
	}
	return nil
}

// isAt reports whether path still names the open file.
func isAt(f *os.File, path string) (bool, error) {
	var here, there syscall.Stat_t
	if err := syscall.Fstat(int(f.Fd()), &here); err != nil {
		return false, fmt.Errorf("audit log: %w", err)
	}
	if err := syscall.Lstat(path, &there); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("audit log: %w", err)
	}
	return here.Dev == there.Dev && here.Ino == there.Ino, nil
}

func fileSize(f *os.File) (int64, error) {
	var st syscall.Stat_t
	if err := syscall.Fstat(int(f.Fd()), &st); err != nil {
		return 0, fmt.Errorf("audit log: %w", err)
	}
	return st.Size, nil
}

// listNumbered returns the completed files of a log, the oldest first.
func listNumbered(path string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	number := func(name string) int64 {
		rest, ok := strings.CutPrefix(filepath.Base(name), filepath.Base(path)+".")
		n, err := strconv.ParseInt(rest, 10, 64)
		if !ok || err != nil {
			return 0
		}
		return n
	}
	var files []string
	for _, e := range entries {
		if number(e.Name()) > 0 {
			files = append(files, filepath.Join(filepath.Dir(path), e.Name()))
		}
	}
	slices.SortFunc(files, func(a, b string) int { return cmp.Compare(number(a), number(b)) })
	return files, nil
}

// readLast reads the file's last line. It returns the offset after it, which is less than the file's size if the rest
// is torn (has no newline).
func readLast(f *os.File) (entry, int64, error) {
	total, err := fileSize(f)
	if err != nil {
		return entry{}, 0, err
	}
	from := max(0, total-2*maxLine)
	b := make([]byte, total-from)
	if _, err := f.ReadAt(b, from); err != nil && !errors.Is(err, io.EOF) {
		return entry{}, 0, fmt.Errorf("audit log: %w", err)
	}
	n := bytes.LastIndexByte(b, '\n')
	if n < 0 {
		if from > 0 {
			return entry{}, 0, errNotOurs(f.Name())
		}
		return entry{}, 0, nil
	}
	e := parseLine(b[bytes.LastIndexByte(b[:n], '\n')+1 : n])
	if !e.ok || !e.true {
		return entry{}, 0, errNotOurs(f.Name())
	}
	return e, from + int64(n) + 1, nil
}

func errNotOurs(name string) error {
	return fmt.Errorf("audit log %s: its last line is not a valid line of an audit log; see why with `browser-shell audit verify %s`, then move the file away", name, name)
}

// setAside moves an incomplete line at offset to a file of its own and returns a note about it.
func setAside(f *os.File, offset int64, now time.Time) (string, error) {
	total, err := fileSize(f)
	if err != nil {
		return "", err
	}
	if total-offset >= maxLine {
		return "", errNotOurs(f.Name())
	}
	torn := make([]byte, total-offset)
	if _, err := f.ReadAt(torn, offset); err != nil {
		return "", fmt.Errorf("audit log: %w", err)
	}
	name := fmt.Sprintf("%s.torn-%s", f.Name(), now.UTC().Format("20060102T150405.000000000"))
	out, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", fmt.Errorf("audit log: %w", err)
	}
	_, err = out.Write(torn)
	if err = errors.Join(err, out.Close()); err == nil {
		err = f.Truncate(offset)
	}
	if err != nil {
		_ = os.Remove(name)
		return "", fmt.Errorf("audit log %s: its incomplete last line cannot be moved to %s: %w", f.Name(), name, err)
	}
	return fmt.Sprintf("a last line without an end (%d bytes, sha256 %s) was moved to %s", len(torn), hashLine(torn), filepath.Base(name)), nil
}
