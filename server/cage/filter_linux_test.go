package cage

import (
	"encoding/binary"
	"runtime"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// TestFilter runs the filter as the kernel does. x/net's machine reads numbers in network order, and so they are given.
func TestFilter(t *testing.T) {
	const notify = unix.SECCOMP_RET_USER_NOTIF
	refused, absent := uint32(unix.SECCOMP_RET_ERRNO|unix.EPERM), uint32(unix.SECCOMP_RET_ERRNO|unix.ENOSYS)
	noSocket := uint32(unix.SECCOMP_RET_ERRNO | unix.EACCES)
	const ok = uint32(unix.SECCOMP_RET_ALLOW)
	native := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	raw, err := assembleFilter(bpf.RetConstant{Val: notify})
	if err != nil {
		t.Fatal(err)
	}
	instructions, all := bpf.Disassemble(raw)
	if !all {
		t.Fatal("it has instructions that can't be read")
	}
	vm, err := bpf.NewVM(instructions)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		arch   uint32
		number uint32
		args   []uint32
		want   uint32
	}{
		"read":               {number: unix.SYS_READ, want: ok},
		"connect":            {number: unix.SYS_CONNECT, want: notify},
		"another ABI":        {arch: unix.AUDIT_ARCH_I386, number: unix.SYS_READ, want: unix.SECCOMP_RET_KILL_PROCESS},
		"x32":                {number: 0x40000000 | unix.SYS_CONNECT, want: absent},
		"ptrace":             {number: unix.SYS_PTRACE, want: refused},
		"unshare":            {number: unix.SYS_UNSHARE, want: refused},
		"io_uring":           {number: unix.SYS_IO_URING_SETUP, want: absent},
		"clone3":             {number: unix.SYS_CLONE3, want: absent},
		"a thread":           {number: unix.SYS_CLONE, args: []uint32{unix.CLONE_VM | unix.CLONE_THREAD | unix.CLONE_SIGHAND}, want: ok},
		"a user namespace":   {number: unix.SYS_CLONE, args: []uint32{unix.CLONE_NEWUSER | uint32(unix.SIGCHLD)}, want: refused},
		"local stream":       {number: unix.SYS_SOCKET, args: []uint32{unix.AF_UNIX, unix.SOCK_STREAM | unix.SOCK_CLOEXEC}, want: ok},
		"local seqpacket":    {number: unix.SYS_SOCKET, args: []uint32{unix.AF_UNIX, unix.SOCK_SEQPACKET}, want: ok},
		"local datagrams":    {number: unix.SYS_SOCKET, args: []uint32{unix.AF_UNIX, unix.SOCK_DGRAM | unix.SOCK_NONBLOCK}, want: noSocket},
		"TCP":                {number: unix.SYS_SOCKET, args: []uint32{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_NONBLOCK}, want: ok},
		"TCP by its number":  {number: unix.SYS_SOCKET, args: []uint32{unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_TCP}, want: ok},
		"MPTCP":              {number: unix.SYS_SOCKET, args: []uint32{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP}, want: noSocket},
		"SCTP":               {number: unix.SYS_SOCKET, args: []uint32{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP}, want: noSocket},
		"UDP":                {number: unix.SYS_SOCKET, args: []uint32{unix.AF_INET, unix.SOCK_DGRAM}, want: noSocket},
		"UDP over IPv6":      {number: unix.SYS_SOCKET, args: []uint32{unix.AF_INET6, unix.SOCK_DGRAM}, want: noSocket},
		"raw":                {number: unix.SYS_SOCKET, args: []uint32{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP}, want: noSocket},
		"packets":            {number: unix.SYS_SOCKET, args: []uint32{unix.AF_PACKET, unix.SOCK_RAW}, want: noSocket},
		"vsock":              {number: unix.SYS_SOCKET, args: []uint32{unix.AF_VSOCK, unix.SOCK_STREAM}, want: noSocket},
		"addresses":          {number: unix.SYS_SOCKET, args: []uint32{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}, want: ok},
		"netfilter":          {number: unix.SYS_SOCKET, args: []uint32{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}, want: noSocket},
		"a message":          {number: unix.SYS_SENDMSG, args: []uint32{3, 0, unix.MSG_NOSIGNAL}, want: ok},
		"fast open":          {number: unix.SYS_SENDMSG, args: []uint32{3, 0, unix.MSG_FASTOPEN}, want: refused},
		"fast open, sendto":  {number: unix.SYS_SENDTO, args: []uint32{3, 0, 0, unix.MSG_FASTOPEN | unix.MSG_NOSIGNAL}, want: refused},
		"fast open, several": {number: unix.SYS_SENDMMSG, args: []uint32{3, 0, 0, unix.MSG_FASTOPEN}, want: refused},
	} {
		t.Run(name, func(t *testing.T) {
			data := make([]byte, 64)
			arch := c.arch
			if arch == 0 {
				arch = native
			}
			binary.BigEndian.PutUint32(data[offNumber:], c.number)
			binary.BigEndian.PutUint32(data[offArch:], arch)
			for i, a := range c.args {
				binary.BigEndian.PutUint32(data[offArg(i):], a)
			}
			got, err := vm.Run(data)
			if err != nil || uint32(got) != c.want {
				t.Errorf("%#x, want %#x; %v", uint32(got), c.want, err)
			}
		})
	}
}
