package cage

import (
	"encoding/binary"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// TestFilter runs the filter as the kernel does. x/net's machine reads numbers in network order, and so they are
// given.
func TestFilter(t *testing.T) {
	const notify = unix.SECCOMP_RET_USER_NOTIF
	refused, absent := uint32(unix.SECCOMP_RET_ERRNO|unix.EPERM), uint32(unix.SECCOMP_RET_ERRNO|unix.ENOSYS)
	noSocket := uint32(unix.SECCOMP_RET_ERRNO | unix.EACCES)
	const ok = uint32(unix.SECCOMP_RET_ALLOW)
	raw, err := Rules{}.assembleFilter(true)
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
		args   [4]uint32
		want   uint32
	}{
		"read":              {0, unix.SYS_READ, [4]uint32{}, ok},
		"connect":           {0, unix.SYS_CONNECT, [4]uint32{}, notify},
		"another ABI":       {unix.AUDIT_ARCH_I386, unix.SYS_READ, [4]uint32{}, unix.SECCOMP_RET_KILL_PROCESS},
		"a call to come":    {0, 500, [4]uint32{}, absent},
		"no call":           {0, 0xffffffff, [4]uint32{}, absent},
		"x32":               {0, 0x40000000 | unix.SYS_CONNECT, [4]uint32{}, absent},
		"ptrace":            {0, unix.SYS_PTRACE, [4]uint32{}, notify},
		"unshare":           {0, unix.SYS_UNSHARE, [4]uint32{}, notify},
		"io_uring":          {0, unix.SYS_IO_URING_SETUP, [4]uint32{}, absent},
		"clone3":            {0, unix.SYS_CLONE3, [4]uint32{}, absent},
		"a thread":          {0, unix.SYS_CLONE, [4]uint32{unix.CLONE_VM | unix.CLONE_THREAD | unix.CLONE_SIGHAND}, ok},
		"a user namespace":  {0, unix.SYS_CLONE, [4]uint32{unix.CLONE_NEWUSER | uint32(unix.SIGCHLD)}, refused},
		"local stream":      {0, unix.SYS_SOCKET, [4]uint32{unix.AF_UNIX, unix.SOCK_STREAM | unix.SOCK_CLOEXEC}, ok},
		"local seqpacket":   {0, unix.SYS_SOCKET, [4]uint32{unix.AF_UNIX, unix.SOCK_SEQPACKET}, ok},
		"local raw":         {0, unix.SYS_SOCKET, [4]uint32{unix.AF_UNIX, unix.SOCK_RAW | unix.SOCK_CLOEXEC}, noSocket},
		"a pair":            {0, unix.SYS_SOCKETPAIR, [4]uint32{unix.AF_UNIX, unix.SOCK_STREAM | unix.SOCK_NONBLOCK}, ok},
		"a pair of TCP":     {0, unix.SYS_SOCKETPAIR, [4]uint32{unix.AF_INET, unix.SOCK_STREAM}, noSocket},
		"a pair of raw":     {0, unix.SYS_SOCKETPAIR, [4]uint32{unix.AF_UNIX, unix.SOCK_RAW}, noSocket},
		"bind":              {0, unix.SYS_BIND, [4]uint32{}, notify},
		"listen":            {0, unix.SYS_LISTEN, [4]uint32{}, notify},
		"its limits":        {0, unix.SYS_PRLIMIT64, [4]uint32{}, ok},
		"another's limits":  {0, unix.SYS_PRLIMIT64, [4]uint32{1}, refused},
		"X's memory":        {0, unix.SYS_SHMCTL, [4]uint32{7, unix.IPC_RMID}, ok},
		"its owner":         {0, unix.SYS_SHMCTL, [4]uint32{7, 1}, refused}, // IPC_SET
		"local datagrams":   {0, unix.SYS_SOCKET, [4]uint32{unix.AF_UNIX, unix.SOCK_DGRAM | unix.SOCK_NONBLOCK}, noSocket},
		"TCP":               {0, unix.SYS_SOCKET, [4]uint32{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_NONBLOCK}, ok},
		"TCP by its number": {0, unix.SYS_SOCKET, [4]uint32{unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_TCP}, ok},
		"MPTCP":             {0, unix.SYS_SOCKET, [4]uint32{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP}, noSocket},
		"SCTP":              {0, unix.SYS_SOCKET, [4]uint32{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP}, noSocket},
		"UDP":               {0, unix.SYS_SOCKET, [4]uint32{unix.AF_INET, unix.SOCK_DGRAM}, noSocket},
		"UDP over IPv6":     {0, unix.SYS_SOCKET, [4]uint32{unix.AF_INET6, unix.SOCK_DGRAM}, noSocket},
		"raw":               {0, unix.SYS_SOCKET, [4]uint32{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP}, noSocket},
		"packets":           {0, unix.SYS_SOCKET, [4]uint32{unix.AF_PACKET, unix.SOCK_RAW}, noSocket},
		"vsock":             {0, unix.SYS_SOCKET, [4]uint32{unix.AF_VSOCK, unix.SOCK_STREAM}, noSocket},
		"addresses":         {0, unix.SYS_SOCKET, [4]uint32{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}, ok},
		"netfilter": {
			0, unix.SYS_SOCKET, [4]uint32{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}, noSocket,
		},
		"a message":         {0, unix.SYS_SENDMSG, [4]uint32{3, 0, unix.MSG_NOSIGNAL}, ok},
		"fast open":         {0, unix.SYS_SENDMSG, [4]uint32{3, 0, unix.MSG_FASTOPEN}, refused},
		"fast open, sendto": {0, unix.SYS_SENDTO, [4]uint32{3, 0, 0, unix.MSG_FASTOPEN | unix.MSG_NOSIGNAL}, refused},
		"fast open of many": {0, unix.SYS_SENDMMSG, [4]uint32{3, 0, 0, unix.MSG_FASTOPEN}, refused},
	} {
		t.Run(name, func(t *testing.T) {
			data := make([]byte, 64)
			arch := c.arch
			if arch == 0 {
				arch = auditArch
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
