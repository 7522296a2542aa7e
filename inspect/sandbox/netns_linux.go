package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// outside is the address that Publish leads to in a network namespace of ours. It is of a block that no real host has
// (RFC 5737), and on the loopback interface only because there is no other. What listens on 127.0.0.1 alone is not reached
// by it, as with a bridge of Docker's.
var outside = netip.AddrFrom4([4]byte{192, 0, 2, 2})

// netSpace is an open network namespace.
type netSpace struct {
	file *os.File
	addr netip.Addr // where it is reached from outside; not valid when it has only loopback
}

// openNetwork opens the container's network namespace, if that can be. A container that has ended already has none.
func (s *Sandbox) openNetwork(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return nil
	}
	if s.plan.netns != "" {
		var err error
		s.net, err = openNetwork(s.plan.netns, false)
		return err
	}
	// While a program of several threads becomes another one (execve), its process looks for a moment as if it had ended.
	for range 20 {
		path := s.netns(ctx)
		if path == "" {
			return nil
		}
		n, err := openNetwork(path, s.plan.Network == "none")
		if !errors.Is(err, fs.ErrNotExist) {
			s.net = n
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil
}

// openNetwork opens a network namespace; own tells that it is the container's alone and may be given an address.
func openNetwork(path string, own bool) (*netSpace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	n := &netSpace{file: f}
	if n.addr, err = n.address(own); err != nil {
		f.Close()
		return nil, fmt.Errorf("network namespace %s: %w", path, err)
	}
	return n, nil
}

func (n *netSpace) address(own bool) (netip.Addr, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(n.file.Fd()), &st); err != nil {
		return netip.Addr{}, err
	}
	if st.Type != unix.NSFS_MAGIC {
		return netip.Addr{}, errors.New("it is none")
	}
	h, err := netlink.NewHandleAt(netns.NsHandle(n.file.Fd()))
	if err != nil {
		return netip.Addr{}, err
	}
	defer h.Close()
	links, err := h.LinkList()
	if err != nil {
		return netip.Addr{}, err
	}
	for _, l := range links {
		if own && l.Attrs().Flags&net.FlagLoopback != 0 {
			ip := &net.IPNet{IP: outside.AsSlice(), Mask: net.CIDRMask(32, 32)}
			if err := h.AddrAdd(l, &netlink.Addr{IPNet: ip}); err != nil && !errors.Is(err, unix.EEXIST) {
				return netip.Addr{}, err
			}
		}
		addrs, err := h.AddrList(l, netlink.FAMILY_ALL)
		if err != nil {
			return netip.Addr{}, err
		}
		for _, a := range addrs {
			if ip, ok := netip.AddrFromSlice(a.IP); ok && ip.IsGlobalUnicast() && l.Attrs().Flags&net.FlagUp != 0 {
				return ip.Unmap(), nil
			}
		}
	}
	return netip.Addr{}, nil
}

// dial connects from inside of the namespace. A socket belongs for life to the namespace it was made in, so the thread goes
// there only for the while.
func (n *netSpace) dial(ctx context.Context, proto, addr string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	if host == "localhost" || host == "" {
		host = "127.0.0.1"
	}
	if _, err := netip.ParseAddr(host); err != nil { // a name would be looked up, by other threads and outside
		return nil, fmt.Errorf("dial %s: want an IP address: %w", addr, err)
	}
	type result struct {
		conn net.Conn
		err  error
	}
	out := make(chan result, 1)
	go func() {
		runtime.LockOSThread()
		home, err := os.Open("/proc/thread-self/ns/net")
		if err == nil {
			defer home.Close()
			err = unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET)
		}
		if err != nil {
			runtime.UnlockOSThread()
			out <- result{nil, fmt.Errorf("enter the container's network: %w", err)}
			return
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, proto, net.JoinHostPort(host, port))
		if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread() // otherwise the thread ends with this goroutine
		}
		out <- result{conn, err}
	}()
	r := <-out
	return r.conn, r.err
}

func (n *netSpace) close() { n.file.Close() }
