package sandbox

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// watch hears from the kernel (fanotify(7)) of the files of one file system. A file in memory alone (memfd_create(2)) is of no file
// system that can be watched; the container's other mounts are noexec, but for /work.
type watch struct {
	group *os.File
	done  chan struct{} // closed when all is noted
}

// startWatch has note called for each event of mask on the file system mounted at root, and fail when no more will come.
func startWatch(root string, flags uint, mask uint64, note func(group *os.File, e unix.FanotifyEventMetadata), fail func(error)) (*watch, error) {
	// O_NONBLOCK: to open an event's file, which may be a FIFO, must not wait for anybody.
	fd, err := unix.FanotifyInit(flags|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_LARGEFILE|unix.O_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("fanotify_init: %w", err)
	}
	w := &watch{group: os.NewFile(uintptr(fd), "fanotify"), done: make(chan struct{})}
	if err := unix.FanotifyMark(fd, unix.FAN_MARK_ADD|unix.FAN_MARK_FILESYSTEM, mask, unix.AT_FDCWD, root); err != nil {
		w.group.Close()
		return nil, fmt.Errorf("fanotify_mark %s: %w", root, err)
	}
	go func() {
		defer close(w.done)
		if err := w.serve(note); !errors.Is(err, os.ErrClosed) {
			w.group.Close() // what waits goes on
			fail(err)
		}
	}()
	return w, nil
}

// close ends the watch; the kernel allows what waits then.
func (w *watch) close() {
	w.group.Close()
	<-w.done
}

func (w *watch) serve(note func(*os.File, unix.FanotifyEventMetadata)) error {
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
			note(w.group, e)
			if e.Fd >= 0 {
				unix.Close(int(e.Fd))
			}
		}
	}
}

// watchExecs notes each file that is executed, also as the interpreter of another. The process waits meanwhile, so neither what it
// is nor what it becomes can be gone when that is read.
func watchExecs(root string, into *executions) (*watch, error) {
	return startWatch(root, unix.FAN_CLASS_CONTENT|unix.FAN_UNLIMITED_QUEUE, unix.FAN_OPEN_EXEC_PERM, func(group *os.File, e unix.FanotifyEventMetadata) {
		if e.Fd < 0 {
			return
		}
		by, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", e.Pid))
		file, ferr := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", e.Fd))
		if err == nil && ferr == nil { // otherwise the process was killed, and executes nothing
			into.add(Executed{By: by, File: file})
		}
		// It fails when the process was killed meanwhile.
		_ = binary.Write(group, binary.NativeEndian, unix.FanotifyResponse{Fd: e.Fd, Response: unix.FAN_ALLOW})
	}, into.fail)
}

// watchOpens notes each file that is opened. Nobody waits for that, and the kernel's queue is bounded.
func watchOpens(root string, into *openings) (*watch, error) {
	self := int32(os.Getpid())
	return startWatch(root, unix.FAN_CLASS_NOTIF, unix.FAN_OPEN, func(_ *os.File, e unix.FanotifyEventMetadata) {
		if e.Mask&unix.FAN_Q_OVERFLOW != 0 {
			into.fail(errors.New("more files were opened at once than the kernel tells of"))
		}
		if e.Fd < 0 || e.Pid == self {
			return
		}
		if file, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", e.Fd)); err == nil {
			by, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", e.Pid)) // it may have ended
			into.addOpened(file, by, root)
		}
	}, into.fail)
}
