package e2e

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/slimctl/slimctl/internal/need"
)

// Addresses of the two ends. They are public ones, as the egress proxy refuses all others; they exist only between two
// network namespaces of this machine, and nothing is routed to or from them.
const (
	sandboxIP = "11.22.33.2" // the container
	clientIP  = "11.22.33.1" // who comes from outside
	siteIP    = "11.22.33.44"
)

// world is the network outside of a container: a namespace of its own, with a cable into the container's.
type world struct {
	path    string // the world's namespace
	sandbox string // the container's, for sandbox.Settings.Network
	handle  netns.NsHandle
}

// newWorld makes both namespaces and the cable. They are gone at the end of the test.
func newWorld(t *testing.T) *world {
	t.Helper()
	need.Containers(t)
	id := rand.Text()[:8]
	inside, outside := "slim-in-"+id, "slim-out-"+id
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	handles := map[string]netns.NsHandle{}
	for _, name := range []string{inside, outside} {
		h, err := netns.NewNamed(name) // and goes there
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			h.Close()
			_ = netns.DeleteNamed(name)
		})
		handles[name] = h
		up(t, "lo")
	}
	// The thread is in the outside one.
	cable := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "out"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(handles[inside])}
	if err := netlink.LinkAdd(cable); err != nil {
		t.Fatal(err)
	}
	address(t, "out", clientIP, siteIP)
	if err := netns.Set(handles[inside]); err != nil {
		t.Fatal(err)
	}
	address(t, "eth0", sandboxIP)
	if err := netns.Set(own); err != nil {
		t.Fatal(err)
	}
	return &world{path: "/run/netns/" + outside, sandbox: "path:/run/netns/" + inside, handle: handles[outside]}
}

func up(t *testing.T, name string) netlink.Link {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatal(err)
	}
	return link
}

func address(t *testing.T, name string, ips ...string) {
	t.Helper()
	link := up(t, name)
	for _, ip := range ips {
		a, err := netlink.ParseAddr(netip.PrefixFrom(netip.MustParseAddr(ip), 24).String())
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.AddrAdd(link, a); err != nil {
			t.Fatal(err)
		}
	}
}

// do runs f on a thread in the world's namespace. Sockets and processes that it makes stay there.
func (w *world) do(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never given back: the thread ends with the goroutine
		if err := netns.Set(w.handle); err != nil {
			done <- fmt.Errorf("enter %s: %w", w.path, err)
			return
		}
		done <- f()
	}()
	return <-done
}

// dial connects from the world.
func (w *world) dial(ctx context.Context, network, addr string) (c net.Conn, err error) {
	err = w.do(func() error {
		var d net.Dialer
		c, err = d.DialContext(ctx, network, addr)
		return err
	})
	return c, err
}

// listen opens a port in the world.
func (w *world) listen(t *testing.T, addr string) net.Listener {
	t.Helper()
	var l net.Listener
	if err := w.do(func() (err error) {
		l, err = net.Listen("tcp", addr)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// command prepares a program that runs in the world.
func (w *world) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + w.path, "--", name}, args...)...)
}
