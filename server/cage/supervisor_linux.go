package cage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The ioctls of seccomp_unotify(2) and what they take (linux/seccomp.h).
const (
	notifRecv    = 0xc0502100
	notifSend    = 0xc0182101
	notifIDValid = 0x40082102
	notifAddFD   = 0x40182103
	addFDSetFD   = 1
)

type notification struct {
	id    uint64
	pid   uint32
	flags uint32
	data  struct {
		number  int32
		arch    uint32
		pointer uint64
		args    [6]uint64
	}
}

type response struct {
	id    uint64
	val   int64
	err   int32
	flags uint32
}

type addFD struct {
	id         uint64
	flags      uint32
	srcFD      uint32
	newFD      uint32
	newFDFlags uint32
}

func ioctl(fd int, request uint, arg unsafe.Pointer) error {
	for {
		_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(arg))
		switch e {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return e
		}
	}
}

// maxSockaddr is the size of the largest address there is (struct sockaddr_storage).
const maxSockaddr = 128

// superviseConnections makes the connections of the cage that the listener belongs to, until its last process has
// ended. It calls refused for each one that it doesn't make. program is the first process of the cage; see startScore.
func (r Rules) superviseConnections(listener, program int, refused func(pid int, to string)) error {
	for {
		var n notification
		// The kernel wakes us with POLLHUP when nobody is left in the cage; RECV alone would wait forever.
		poll := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, -1); err != nil {
			if errors.Is(err, unix.EINTR) {
				continue
			}
			return fmt.Errorf("supervise connections: %w", err)
		}
		if poll[0].Revents&unix.POLLIN == 0 {
			return nil
		}
		if err := ioctl(listener, notifRecv, unsafe.Pointer(&n)); err != nil {
			if errors.Is(err, unix.ENOENT) { // it was killed meanwhile
				continue
			}
			return fmt.Errorf("supervise connections: %w", err)
		}
		res := response{id: n.id}
		to, err := r.connectFor(listener, program, &n)
		if err != nil {
			var e unix.Errno
			if !errors.As(err, &e) {
				e = unix.EACCES
			}
			res.err = -int32(e)
			if to != "" {
				refused(int(n.pid), to)
			}
		}
		_ = ioctl(listener, notifSend, unsafe.Pointer(&res)) // fails when it was killed meanwhile
	}
}

// connectFor makes a connection and replaces the program's socket by it. For a refusal, to is the address that the
// program asked for.
func (r Rules) connectFor(listener, program int, n *notification) (to string, err error) {
	address, err := readMemory(int(n.pid), n.data.args[1], min(n.data.args[2], maxSockaddr))
	if err != nil {
		return "an address that can't be read", err
	}
	// The process id may be another's by now; the memory read was the right one if the asker still waits.
	if err := ioctl(listener, notifIDValid, unsafe.Pointer(&n.id)); err != nil {
		return "", err
	}
	if len(address) < 2 {
		return "no address", unix.EINVAL
	}
	number := int(int32(n.data.args[0]))
	switch family := binary.NativeEndian.Uint16(address); family {
	case unix.AF_INET:
		if len(address) < 8 {
			return "no address", unix.EINVAL
		}
		asked := netip.AddrPortFrom(netip.AddrFrom4([4]byte(address[4:8])), binary.BigEndian.Uint16(address[2:4]))
		if r.Proxy == 0 || asked != netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), r.Proxy) {
			return asked.String(), unix.EACCES
		}
		proxy := &syscall.SockaddrInet4{Port: int(r.Proxy), Addr: [4]byte{127, 0, 0, 1}}
		return "", replaceSocket(listener, n, number, unix.AF_INET, proxy)
	case unix.AF_UNIX:
		path, _, _ := bytes.Cut(address[2:], []byte{0})
		if len(address) > 2 && address[2] == 0 {
			// Nobody listens there, as far as the program is concerned: libxcb then asks for the path.
			return "@" + strconv.Quote(string(address[3:])), unix.ECONNREFUSED
		}
		if r.Display == "" || string(path) != r.Display {
			return strconv.Quote(string(path)), unix.EACCES
		}
		if _, err := os.Stat(fmt.Sprintf("/proc/%d/task/%d", program, n.pid)); err == nil {
			setScore(program, 0)
		}
		return "", r.connectDisplay(listener, n, number)
	default:
		return fmt.Sprintf("address family %d", family), unix.EACCES
	}
}

// connectDisplay connects to the socket of the X server, and follows no link in its place.
func (r Rules) connectDisplay(listener int, n *notification, number int) error {
	fd, err := unix.Open(r.Display, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return unix.EACCES
	}
	opened := &syscall.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d", fd)}
	return replaceSocket(listener, n, number, unix.AF_UNIX, opened)
}

// replaceSocket connects a new socket and puts it in the place of the program's descriptor, with that one's flags.
func replaceSocket(listener int, n *notification, number, family int, to syscall.Sockaddr) error {
	s, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	if err := syscall.Connect(s, to); err != nil {
		return err
	}
	flags, err := descriptorFlags(int(n.pid), number)
	if err != nil {
		return unix.EBADF
	}
	if family == unix.AF_INET {
		_ = unix.SetsockoptInt(s, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1) // what the asker has set is with its own socket
	}
	if flags&unix.O_NONBLOCK != 0 {
		if err := unix.SetNonblock(s, true); err != nil {
			return err
		}
	}
	add := addFD{
		id: n.id, flags: addFDSetFD, srcFD: uint32(s), newFD: uint32(number), newFDFlags: uint32(flags & unix.O_CLOEXEC),
	}
	return ioctl(listener, notifAddFD, unsafe.Pointer(&add))
}

// descriptorFlags are the flags of a descriptor of another process (proc_pid_fdinfo(5)).
func descriptorFlags(pid, fd int) (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", pid, fd))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "flags:"); ok {
			flags, err := strconv.ParseUint(strings.TrimSpace(value), 8, 32)
			return int(flags), err
		}
	}
	return 0, unix.EBADF
}

// readMemory reads what a process has at an address.
func readMemory(pid int, at, size uint64) ([]byte, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out := make([]byte, size)
	if at > 1<<62 {
		return nil, unix.EFAULT
	}
	if _, err := f.ReadAt(out, int64(at)); err != nil {
		return nil, fmt.Errorf("%w", unix.EFAULT)
	}
	return out, nil
}
