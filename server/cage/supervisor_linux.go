package cage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
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

// supervisor decides what the filter leaves to it, for the programs of one cage.
type supervisor struct {
	rules    Rules
	listener int // of the filter
	program  int // the first process of the cage; see startScore
	bound    []boundSocket
}

// boundSocket is a socket that has an address and doesn't listen yet.
type boundSocket struct {
	name string // of /proc/PID/fd
	fd   int    // the supervisor's
}

// maxBound is the number of such sockets that the supervisor keeps; the oldest goes first.
const maxBound = 16

// errContinue lets the kernel make the system call, from the memory that the program has by then.
var errContinue = errors.New("continue")

// run answers until the last process of the cage has ended. It calls refused for each refusal, with what was refused.
func (s *supervisor) run(refused func(pid int, what string)) error {
	for {
		var n notification
		// The kernel wakes us with POLLHUP when nobody is left in the cage; RECV alone would wait forever.
		poll := []unix.PollFd{{Fd: int32(s.listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, -1); err != nil {
			if errors.Is(err, unix.EINTR) {
				continue
			}
			return fmt.Errorf("supervise the cage: %w", err)
		}
		if poll[0].Revents&unix.POLLIN == 0 {
			return nil
		}
		if err := ioctl(s.listener, notifRecv, unsafe.Pointer(&n)); err != nil {
			if errors.Is(err, unix.ENOENT) { // it was killed meanwhile
				continue
			}
			return fmt.Errorf("supervise the cage: %w", err)
		}
		res := response{id: n.id}
		what, err := s.decide(&n)
		if errors.Is(err, errContinue) {
			res.flags = unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE
		} else if err != nil {
			e := unix.EACCES
			_ = errors.As(err, &e)
			res.err = -int32(e)
			if what != "" {
				refused(int(n.pid), what)
			}
		}
		_ = ioctl(s.listener, notifSend, unsafe.Pointer(&res)) // fails when it was killed meanwhile
	}
}

// decide makes the system call for the program, or refuses it. For a refusal, what says for the log what was asked.
func (s *supervisor) decide(n *notification) (what string, err error) {
	switch n.data.number {
	case unix.SYS_CONNECT, unix.SYS_BIND:
	case unix.SYS_LISTEN:
		return s.listen(n)
	default:
		return fmt.Sprintf("make system call %d", n.data.number), unix.EPERM
	}
	address, err := readMemory(int(n.pid), n.data.args[1], min(n.data.args[2], maxSockaddr))
	if err != nil {
		return "use an address that can't be read", err
	}
	// The process id may be another's by now; the memory read was the right one if the asker still waits.
	if err := ioctl(s.listener, notifIDValid, unsafe.Pointer(&n.id)); err != nil {
		return "", err
	}
	if len(address) < 2 {
		return "use no address", unix.EINVAL
	}
	verb, do := "connect to ", s.connect
	if n.data.number == unix.SYS_BIND {
		verb, do = "bind ", s.bind
	}
	to, err := do(n, address)
	if to == "" {
		return "", err
	}
	return verb + to, err
}

// readInet returns the address in a struct sockaddr_in or sockaddr_in6.
func readInet(address []byte) (a netip.AddrPort, ok bool) {
	switch family := binary.NativeEndian.Uint16(address); {
	case family == unix.AF_INET && len(address) >= 8:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(address[4:8])), binary.BigEndian.Uint16(address[2:4])), true
	case family == unix.AF_INET6 && len(address) >= 24:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(address[8:24])), binary.BigEndian.Uint16(address[2:4])), true
	}
	return a, false
}

// connect makes a connection and replaces the program's socket by it. For a refusal, to is the address that the program
// asked for.
func (s *supervisor) connect(n *notification, address []byte) (to string, err error) {
	switch family := binary.NativeEndian.Uint16(address); family {
	case unix.AF_INET, unix.AF_INET6:
		asked, ok := readInet(address)
		if !ok {
			return "no address", unix.EINVAL
		}
		if s.rules.Proxy == 0 || asked != netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), s.rules.Proxy) {
			return asked.String(), unix.EACCES
		}
		proxy := &syscall.SockaddrInet4{Port: int(s.rules.Proxy), Addr: [4]byte{127, 0, 0, 1}}
		return "", s.replaceSocket(n, unix.AF_INET, func(sock int) error {
			// What the asker has set is with its own socket.
			_ = unix.SetsockoptInt(sock, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
			return syscall.Connect(sock, proxy)
		})
	case unix.AF_UNIX:
		path, _, _ := bytes.Cut(address[2:], []byte{0})
		if len(address) > 2 && address[2] == 0 {
			// Nobody listens there, as far as the program is concerned: libxcb then asks for the path.
			return "@" + strconv.Quote(string(address[3:])), unix.ECONNREFUSED
		}
		if s.rules.Display == "" || string(path) != s.rules.Display {
			return strconv.Quote(string(path)), unix.EACCES
		}
		if _, err := os.Stat(fmt.Sprintf("/proc/%d/task/%d", s.program, n.pid)); err == nil {
			setScore(s.program, 0)
		}
		return "", s.connectDisplay(n)
	default:
		return fmt.Sprintf("address family %d", family), unix.EACCES
	}
}

// bind replaces the program's socket by one that has the address: a listed port of the loopback interface, or a path
// below a directory that the program may write to. For a refusal, to is the address.
func (s *supervisor) bind(n *notification, address []byte) (to string, err error) {
	family := binary.NativeEndian.Uint16(address)
	if family != unix.AF_INET && family != unix.AF_INET6 && family != unix.AF_UNIX {
		// Netlink. An address that is swapped for another one meanwhile gives a socket that isn't in bound.
		return "", errContinue
	}
	if family == unix.AF_UNIX {
		path, _, _ := bytes.Cut(address[2:], []byte{0})
		return s.bindPath(n, string(path))
	}
	asked, ok := readInet(address)
	if !ok || !asked.Addr().IsLoopback() || !slices.Contains(s.rules.Listen, asked.Port()) {
		return asked.String(), unix.EACCES
	}
	var own syscall.Sockaddr = &syscall.SockaddrInet4{Port: int(asked.Port()), Addr: [4]byte{127, 0, 0, 1}}
	if family == unix.AF_INET6 {
		own = &syscall.SockaddrInet6{Port: int(asked.Port()), Addr: netip.IPv6Loopback().As16()}
	}
	return "", s.replaceSocket(n, int(family), func(sock int) error {
		_ = unix.SetsockoptInt(sock, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) // as servers do
		return s.keepBound(sock, syscall.Bind(sock, own))
	})
}

// bindPath binds a local socket. It follows no link: what the program may write to could lead elsewhere.
func (s *supervisor) bindPath(n *notification, path string) (to string, err error) {
	if path != filepath.Clean(path) || !slices.ContainsFunc(s.rules.Write, func(tree string) bool {
		return strings.HasPrefix(path, tree+"/")
	}) {
		return strconv.Quote(path), unix.EACCES
	}
	dir, err := unix.Openat2(unix.AT_FDCWD, filepath.Dir(path), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return "", err
	}
	defer unix.Close(dir)
	mask, err := readUmask(int(n.pid))
	if err != nil {
		return "", unix.EACCES
	}
	defer unix.Umask(unix.Umask(mask))
	own := &syscall.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir, filepath.Base(path))}
	return "", s.replaceSocket(n, unix.AF_UNIX, func(sock int) error { return s.keepBound(sock, syscall.Bind(sock, own)) })
}

// keepBound keeps a copy of a socket that has been bound, for listen.
func (s *supervisor) keepBound(sock int, err error) error {
	if err != nil {
		return err
	}
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", sock))
	if err != nil {
		return err
	}
	kept, err := unix.FcntlInt(uintptr(sock), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	s.bound = append(s.bound, boundSocket{name, kept})
	if len(s.bound) > maxBound {
		unix.Close(s.bound[0].fd)
		s.bound = s.bound[1:]
	}
	return nil
}

// listen makes a socket that bind has given an address listen. It uses the supervisor's own descriptor: the program
// could put another socket in the place of its own after the check, and one without an address gets a port of all
// interfaces.
func (s *supervisor) listen(n *notification) (what string, err error) {
	name, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", n.pid, int32(n.data.args[0])))
	if err != nil {
		return "", unix.EBADF
	}
	i := slices.IndexFunc(s.bound, func(b boundSocket) bool { return b.name == name })
	if i < 0 {
		return "listen without an address", unix.EACCES
	}
	sock := s.bound[i].fd
	s.bound = slices.Delete(s.bound, i, i+1)
	defer unix.Close(sock)
	return "", unix.Listen(sock, int(int32(n.data.args[1])))
}

// connectDisplay connects to the socket of the X server, and follows no link in its place.
func (s *supervisor) connectDisplay(n *notification) error {
	fd, err := unix.Open(s.rules.Display, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
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
	return s.replaceSocket(n, unix.AF_UNIX, func(sock int) error { return syscall.Connect(sock, opened) })
}

// replaceSocket puts a new stream socket, as prepare leaves it, in the place of the program's descriptor, with that
// one's flags.
func (s *supervisor) replaceSocket(n *notification, family int, prepare func(sock int) error) error {
	sock, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(sock)
	if err := prepare(sock); err != nil {
		return err
	}
	number := int(int32(n.data.args[0]))
	flags, err := descriptorFlags(int(n.pid), number)
	if err != nil {
		return unix.EBADF
	}
	if flags&unix.O_NONBLOCK != 0 {
		if err := unix.SetNonblock(sock, true); err != nil {
			return err
		}
	}
	add := addFD{
		id: n.id, flags: addFDSetFD, srcFD: uint32(sock), newFD: uint32(number), newFDFlags: uint32(flags & unix.O_CLOEXEC),
	}
	return ioctl(s.listener, notifAddFD, unsafe.Pointer(&add))
}

// descriptorFlags returns the flags of a descriptor of another process (proc_pid_fdinfo(5)).
func descriptorFlags(pid, fd int) (int, error) {
	return readOctal(fmt.Sprintf("/proc/%d/fdinfo/%d", pid, fd), "flags:")
}

// readUmask returns the umask of another process (proc_pid_status(5)).
func readUmask(pid int) (int, error) { return readOctal(fmt.Sprintf("/proc/%d/status", pid), "Umask:") }

// readOctal returns the octal number of a line in a file of /proc.
func readOctal(file, key string) (int, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, key); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(value), 8, 32)
			return int(n), err
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
