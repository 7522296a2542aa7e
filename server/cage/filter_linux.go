package cage

import (
	"fmt"
	"runtime"
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

// forbidden lists system calls that no program in a cage needs: they look into other processes, load code into the
// kernel, or change namespaces and mounts. The default profiles of container runtimes refuse most of them, too, but a
// container may run without one.
var forbidden = []uint32{
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_KCMP, unix.SYS_PIDFD_GETFD,
	unix.SYS_PERF_EVENT_OPEN, unix.SYS_BPF, unix.SYS_USERFAULTFD,
	unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
	unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_CHROOT, unix.SYS_PIVOT_ROOT,
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT, unix.SYS_FSOPEN, unix.SYS_FSCONFIG,
	unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_NAME_TO_HANDLE_AT,
	unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD, unix.SYS_REBOOT,
	unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_SYSLOG, unix.SYS_ACCT, unix.SYS_QUOTACTL,
	unix.SYS_SECCOMP, // no filter of its own whose supervisor would answer before ours
}

// absent lists system calls that fail as on a kernel without them, so that programs fall back: io_uring connects
// unseen by filters, clone3 hides its flags from filters, and a memfd is an executable file that Landlock doesn't
// cover.
var absent = []uint32{
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER, unix.SYS_CLONE3, unix.SYS_MEMFD_CREATE,
}

// namespaces are the flags of clone that make one (CLONE_NEWTIME is not among them: clone takes it for a signal).
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID |
	unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP

func errno(e unix.Errno) bpf.Instruction {
	return bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(e)}
}

var allow = bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}

// assembleFilter returns the BPF program for the kernel. connect is the action for the system call connect.
func assembleFilter(connect bpf.Instruction) ([]bpf.RawInstruction, error) {
	arch := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	if arch == 0 {
		return nil, fmt.Errorf("there is no seccomp filter for architecture %s", runtime.GOARCH)
	}
	prog := []bpf.Instruction{
		// Numbers mean something else in another ABI, where none of the rules below would hold.
		bpf.LoadAbsolute{Off: offArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: arch, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_KILL_PROCESS},
		bpf.LoadAbsolute{Off: offNumber, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpLessThan, Val: 0x40000000, SkipTrue: 1}, // x32 (asm/unistd.h, __X32_SYSCALL_BIT)
		errno(unix.ENOSYS),
	}
	// on adds what a system call gets; code is for it alone and ends in a result.
	on := func(number uint32, code ...bpf.Instruction) {
		prog = append(prog, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: number, SkipTrue: uint8(len(code))})
		prog = append(prog, code...)
	}
	for _, n := range forbidden {
		on(n, errno(unix.EPERM))
	}
	for _, n := range absent {
		on(n, errno(unix.ENOSYS))
	}
	on(unix.SYS_CLONE,
		bpf.LoadAbsolute{Off: offArg(0), Size: 4},
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: namespaces, SkipTrue: 1},
		errno(unix.EPERM),
		allow,
	)
	on(unix.SYS_SOCKET, filterSockets()...)
	on(unix.SYS_CONNECT, connect)
	// TCP fast open connects by sending (tcp(7), MSG_FASTOPEN). Local sockets and TCP need no address to send to, and
	// what sendmsg is given can't be looked at; there is no socket for datagrams to others.
	for _, send := range []struct {
		number uint32
		flags  int // which argument they are
	}{{unix.SYS_SENDTO, 3}, {unix.SYS_SENDMSG, 2}, {unix.SYS_SENDMMSG, 3}} {
		on(send.number,
			bpf.LoadAbsolute{Off: offArg(send.flags), Size: 4},
			bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: unix.MSG_FASTOPEN, SkipTrue: 1},
			errno(unix.EPERM),
			allow,
		)
	}
	return bpf.Assemble(append(prog, allow))
}

// filterSockets allows local streams, TCP and NETLINK_ROUTE, which libraries ask for the machine's addresses.
func filterSockets() []bpf.Instruction {
	const kind = 0xf // of the type; the rest are SOCK_NONBLOCK and SOCK_CLOEXEC (net/socket.c, SOCK_TYPE_MASK)
	// Each family: is it this one? Then type and protocol decide.
	local := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offArg(1), Size: 4},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: kind},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SOCK_DGRAM, SkipTrue: 1},
		allow,
		errno(unix.EACCES),
	}
	tcp := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offArg(1), Size: 4},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: kind},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SOCK_STREAM, SkipTrue: 4},
		bpf.LoadAbsolute{Off: offArg(2), Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_TCP, SkipTrue: 1}, // MPTCP and SCTP are streams, too
		allow,
		errno(unix.EACCES),
	}
	route := []bpf.Instruction{
		bpf.LoadAbsolute{Off: offArg(2), Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.NETLINK_ROUTE, SkipTrue: 1},
		allow,
		errno(unix.EACCES),
	}
	var out []bpf.Instruction
	for _, f := range []struct {
		family uint32
		code   []bpf.Instruction
	}{{unix.AF_UNIX, local}, {unix.AF_INET, tcp}, {unix.AF_INET6, tcp}, {unix.AF_NETLINK, route}} {
		out = append(out,
			bpf.LoadAbsolute{Off: offArg(0), Size: 4},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: f.family, SkipTrue: uint8(len(f.code))})
		out = append(out, f.code...)
	}
	return append(out, errno(unix.EACCES))
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
