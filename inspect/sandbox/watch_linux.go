package sandbox

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// watch receives the kernel's events (fanotify(7)) for the files of one file system. A file in memory only
// (memfd_create(2)) is on no file system that can be watched. The container's other mounts are noexec, except /work.
type watch struct {
	group *os.File
	done  chan struct{} // closed when all events are processed
}

// startWatch calls note for each event of mask on the file system mounted at root, and fail when no more will come.
func startWatch(root string, flags uint, mask uint64, note func(group *os.File, e unix.FanotifyEventMetadata), fail func(error)) (*watch, error) {
	// O_NONBLOCK: opening an event's file, which may be a FIFO, must not block.
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
		defer w.group.Close() // waiting processes continue
		err := w.serve(w.group.Read, note)
		if errors.Is(err, os.ErrDeadlineExceeded) { // by close: what is left in the queue
			err = w.serve(func(b []byte) (int, error) { return unix.Read(fd, b) }, note)
		}
		if !errors.Is(err, unix.EAGAIN) {
			fail(err)
		}
	}()
	return w, nil
}

// close ends the watch of a container that has ended, once the events until then are processed.
func (w *watch) close() {
	_ = w.group.SetReadDeadline(time.Now()) // fails if the watch has failed
	<-w.done
}

// serve processes events until a read fails.
func (w *watch) serve(read func([]byte) (int, error), note func(*os.File, unix.FanotifyEventMetadata)) error {
	size := binary.Size(unix.FanotifyEventMetadata{})
	buf := make([]byte, 4096)
	for {
		n, err := read(buf)
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

// watchExecs records each executed file, also as the interpreter of another. The process waits meanwhile, so that
// neither its old nor its new executable can disappear before it is read.
func watchExecs(root string, s *Sandbox) (*watch, error) {
	return startWatch(root, unix.FAN_CLASS_CONTENT|unix.FAN_UNLIMITED_QUEUE, unix.FAN_OPEN_EXEC_PERM, func(group *os.File, e unix.FanotifyEventMetadata) {
		if e.Fd < 0 {
			return
		}
		by, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", e.Pid))
		file, ferr := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", e.Fd))
		if err == nil && ferr == nil { // otherwise the process was killed, and executes nothing
			s.addExecuted(by, file)
		}
		// It fails if the process was killed meanwhile.
		_ = binary.Write(group, binary.NativeEndian, unix.FanotifyResponse{Fd: e.Fd, Response: unix.FAN_ALLOW})
	}, s.executed.fail)
}

// watchOpens records each opened file. Processes don't wait for that, and the kernel's queue is limited.
func watchOpens(root string, s *Sandbox) (*watch, error) {
	self := int32(os.Getpid())
	return startWatch(root, unix.FAN_CLASS_NOTIF, unix.FAN_OPEN, func(_ *os.File, e unix.FanotifyEventMetadata) {
		if e.Mask&unix.FAN_Q_OVERFLOW != 0 {
			s.opened.fail(errors.New("incomplete: the kernel dropped records, because too many files were opened at once"))
		}
		if e.Fd < 0 || e.Pid == self {
			return
		}
		if file, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", e.Fd)); err == nil {
			by, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", e.Pid)) // it may have ended
			s.addOpened(file, by, root)
		}
	}, s.opened.fail)
}
