package cage

import (
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data (linux/seccomp.h).
const (
	offNumber = 0
	offArch   = 4
	offArgs   = 16
)

// offArg returns the offset of the lower half of argument i on a little-endian machine.
func offArg(i int) uint32 { return uint32(offArgs + 8*i) }

// code is a part of a BPF program that ends in a verdict on the system call.
type code []bpf.Instruction

func errno(e unix.Errno) code { return code{bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(e)}} }

var allow = code{bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}}

// ifArg is yes where argument i, of which mask leaves the bits that count, is val; no elsewhere.
func ifArg(i int, mask, val uint32, yes, no code) code {
	return slices.Concat(code{
		bpf.LoadAbsolute{Off: offArg(i), Size: 4},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: mask},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: val, SkipFalse: uint8(len(yes))},
	}, yes, no)
}

const (
	whole = 0xffffffff // of an int
	// socketKind masks a socket's type; the rest are SOCK_NONBLOCK and SOCK_CLOEXEC (net/socket.c, SOCK_TYPE_MASK).
	socketKind = 0xf
	// namespaces are the flags of clone that make one (CLONE_NEWTIME is not among them: clone takes it for a signal).
	namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID |
		unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP
	ioprioProcess = 1 // IOPRIO_WHO_PROCESS (linux/ioprio.h)
	ipcInfo       = 3 // IPC_INFO (linux/ipc.h)
)

// verdicts returns the verdict on each system call by its number; supervised, the supervisor decides some of them. One
// that is missing is refused or absent.
func (r Rules) verdicts(supervised bool) map[uint32]code {
	eperm, eacces := errno(unix.EPERM), errno(unix.EACCES)
	connect, bind := eacces, allow
	switch {
	case supervised:
		connect, bind = askSupervisor, askSupervisor
	case r.Proxy != 0 || r.Display != "":
		connect = allow // Landlock's rule for TCP is left
	}
	// TCP fast open connects by sending (tcp(7)). No other socket that it has sends to an address.
	unlessFastOpen := func(flags int) code { return ifArg(flags, unix.MSG_FASTOPEN, 0, allow, eperm) }
	// A thread's number may be any process's. Chromium and Mesa do without priorities of single threads.
	forItself := ifArg(0, whole, 0, allow, eperm)
	forItselfOf := func(process uint32) code { return ifArg(0, whole, process, ifArg(1, whole, 0, allow, eperm), eperm) }
	// Linux makes a datagram socket of a local SOCK_RAW, and datagrams carry descriptors to any path.
	local := ifArg(1, socketKind, unix.SOCK_STREAM, allow, ifArg(1, socketKind, unix.SOCK_SEQPACKET, allow, eacces))
	tcp := ifArg(1, socketKind, unix.SOCK_STREAM, // MPTCP and SCTP are streams, too
		ifArg(2, whole, 0, allow, ifArg(2, whole, unix.IPPROTO_TCP, allow, eacces)), eacces)
	route := ifArg(2, whole, unix.NETLINK_ROUTE, allow, eacces) // libraries ask it for the machine's addresses
	of := map[uint32]code{
		unix.SYS_CLONE:              ifArg(0, namespaces, 0, allow, eperm),
		unix.SYS_CONNECT:            connect,
		unix.SYS_BIND:               bind,
		unix.SYS_LISTEN:             bind,
		unix.SYS_SENDTO:             unlessFastOpen(3),
		unix.SYS_SENDMSG:            unlessFastOpen(2),
		unix.SYS_SENDMMSG:           unlessFastOpen(3),
		unix.SYS_PRLIMIT64:          forItself,
		unix.SYS_SCHED_SETAFFINITY:  forItself,
		unix.SYS_SCHED_SETSCHEDULER: forItself,
		unix.SYS_SCHED_SETPARAM:     forItself,
		unix.SYS_SCHED_SETATTR:      forItself,
		unix.SYS_SETPRIORITY:        forItselfOf(unix.PRIO_PROCESS),
		unix.SYS_IOPRIO_SET:         forItselfOf(ioprioProcess),
		unix.SYS_SHMCTL: ifArg(1, whole, unix.IPC_RMID, allow,
			ifArg(1, whole, unix.IPC_STAT, allow, ifArg(1, whole, ipcInfo, allow, eperm))),
		unix.SYS_SOCKETPAIR: ifArg(0, whole, unix.AF_UNIX, local, eacces),
		unix.SYS_SOCKET: ifArg(0, whole, unix.AF_UNIX, local, ifArg(0, whole, unix.AF_INET, tcp,
			ifArg(0, whole, unix.AF_INET6, tcp, ifArg(0, whole, unix.AF_NETLINK, route, eacces)))),
	}
	for _, n := range absent {
		of[n] = errno(unix.ENOSYS)
	}
	for _, n := range slices.Concat(permitted, permittedHere) {
		of[n] = allow
	}
	return of
}

// askSupervisor lets the supervisor decide. What isn't permitted it refuses, and reports.
var askSupervisor = code{bpf.RetConstant{Val: unix.SECCOMP_RET_USER_NOTIF}}

// span is the system calls from a number on that have the same verdict.
type span struct {
	from    uint32
	verdict code
}

// assembleFilter returns the BPF program for the kernel. The kernel runs it once for each call that is permitted
// whatever its arguments, and remembers that (Linux 5.11, kernel/seccomp.c, seccomp_cache_prepare).
func (r Rules) assembleFilter(supervised bool) ([]bpf.RawInstruction, error) {
	verdicts, refused := r.verdicts(supervised), errno(unix.EPERM)
	if supervised {
		refused = askSupervisor
	}
	var spans []span
	for n := range uint32(firstNew + 100) { // the last span has no end; x32 (asm/unistd.h) is in it
		verdict, ok := verdicts[n]
		switch {
		case !ok && n < firstNew:
			verdict = refused
		case !ok:
			verdict = errno(unix.ENOSYS)
		}
		if spans == nil || !slices.Equal(spans[len(spans)-1].verdict, verdict) {
			spans = append(spans, span{n, verdict})
		}
	}
	return bpf.Assemble(slices.Concat(code{
		// Numbers mean something else in another ABI, where none of the rules would hold.
		bpf.LoadAbsolute{Off: offArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: auditArch, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_KILL_PROCESS},
		bpf.LoadAbsolute{Off: offNumber, Size: 4},
	}, chooseSpan(spans)))
}

// chooseSpan finds the number's span by halves, and ends in its verdict.
func chooseSpan(spans []span) code {
	if len(spans) == 1 {
		return spans[0].verdict
	}
	half := len(spans) / 2
	low := chooseSpan(spans[:half])
	return slices.Concat(code{
		bpf.JumpIf{Cond: bpf.JumpGreaterOrEqual, Val: spans[half].from, SkipFalse: 1},
		bpf.Jump{Skip: uint32(len(low))}, // may be more than JumpIf can skip
	}, low, chooseSpan(spans[half:]))
}

// installFilter puts the filter on this thread and what it starts, for good. With listener it returns the descriptor
// on which the kernel notifies the supervisor of each connect; -1 otherwise.
func installFilter(prog []bpf.RawInstruction, listener bool) (fd int, err error) {
	code := make([]unix.SockFilter, len(prog))
	for i, ins := range prog {
		code[i] = unix.SockFilter{Code: ins.Op, Jt: ins.Jt, Jf: ins.Jf, K: ins.K}
	}
	fprog := unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
	var flags uintptr
	if listener {
		flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER
	}
	r, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&fprog)))
	if e != 0 {
		return -1, fmt.Errorf("seccomp: %w", e)
	}
	if !listener {
		return -1, nil
	}
	return int(r), nil
}
