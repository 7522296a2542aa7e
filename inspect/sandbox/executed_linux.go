package sandbox

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// execWatch is asked by the kernel (fanotify(7)) before a file of one file system is executed, also as the interpreter of
// another. It allows everything and takes note: the process waits meanwhile, so neither what it is nor what it becomes can
// be gone when that is read. A file in memory alone (memfd_create(2)) is of no file system that can be watched; the
// container's other mounts are noexec, but for /work.
type execWatch struct {
	group *os.File
	into  *executions
	done  chan struct{} // closed when all is noted
}

// watchExecs watches the file system mounted at root.
func watchExecs(root string, into *executions) (*execWatch, error) {
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK|unix.FAN_UNLIMITED_QUEUE,
		unix.O_RDONLY|unix.O_CLOEXEC|unix.O_LARGEFILE)
	if err != nil {
		return nil, fmt.Errorf("fanotify_init: %w", err)
	}
	w := &execWatch{group: os.NewFile(uintptr(fd), "fanotify"), into: into, done: make(chan struct{})}
	if err := unix.FanotifyMark(fd, unix.FAN_MARK_ADD|unix.FAN_MARK_FILESYSTEM, unix.FAN_OPEN_EXEC_PERM, unix.AT_FDCWD, root); err != nil {
		w.group.Close()
		return nil, fmt.Errorf("fanotify_mark %s: %w", root, err)
	}
	go func() {
		defer close(w.done)
		if err := w.serve(); !errors.Is(err, os.ErrClosed) {
			w.group.Close() // what waits goes on
			into.fail(err)
		}
	}()
	return w, nil
}

// close ends the watch; the kernel allows what waits then.
func (w *execWatch) close() {
	w.group.Close()
	<-w.done
}

func (w *execWatch) serve() error {
	size := binary.Size(unix.FanotifyEventMetadata{})
	buf := make([]byte, 4096)
	for {
		n, err := w.group.Read(buf)
		if err != nil {
			return fmt.Errorf("fanotify: %w", err)
		}
		for rest := buf[:n]; len(rest) >= size; {
			var e unix.FanotifyEventMetadata
			if err := binary.Read(bytes.NewReader(rest), binary.NativeEndian, &e); err != nil || int(e.Event_len) < size || int(e.Event_len) > len(rest) {
				return fmt.Errorf("fanotify: an event of %d bytes (%d were read): %w", e.Event_len, len(rest), err)
			}
			rest = rest[e.Event_len:]
			w.answer(e)
		}
	}
}

// answer notes one event and allows it.
func (w *execWatch) answer(e unix.FanotifyEventMetadata) {
	if e.Fd < 0 {
		return
	}
	by, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", e.Pid))
	file, ferr := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", e.Fd))
	if err == nil && ferr == nil { // otherwise the process was killed, and executes nothing
		w.into.add(Executed{By: by, File: file})
	}
	// It fails when the process was killed meanwhile.
	_ = binary.Write(w.group, binary.NativeEndian, unix.FanotifyResponse{Fd: e.Fd, Response: unix.FAN_ALLOW})
	unix.Close(int(e.Fd))
}
