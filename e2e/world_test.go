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
	"golang.org/x/net/dns/dnsmessage"

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
	inside  netns.NsHandle // the container's namespace
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
	// The site isn't on the link: the proxy refuses a neighbour. The client is the router to it.
	address(t, "out", clientIP+"/30", siteIP+"/32")
	if err := netns.Set(handles[inside]); err != nil {
		t.Fatal(err)
	}
	address(t, "eth0", sandboxIP+"/30")
	if err := netlink.RouteAdd(&netlink.Route{Dst: netlink.NewIPNet(net.ParseIP(siteIP)), Gw: net.ParseIP(clientIP)}); err != nil {
		t.Fatal(err)
	}
	if err := netns.Set(own); err != nil {
		t.Fatal(err)
	}
	return &world{path: "/run/netns/" + outside, sandbox: "path:/run/netns/" + inside, handle: handles[outside], inside: handles[inside]}
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

func address(t *testing.T, name string, prefixes ...string) {
	t.Helper()
	link := up(t, name)
	for _, text := range prefixes {
		a, err := netlink.ParseAddr(text)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.AddrAdd(link, a); err != nil {
			t.Fatal(err)
		}
	}
}

// do runs f on a thread in the world's namespace. Sockets and processes that it makes stay there.
func (w *world) do(f func() error) error { return doIn(w.handle, f) }

func doIn(namespace netns.NsHandle, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never given back: the thread ends with the goroutine
		if err := netns.Set(namespace); err != nil {
			done <- fmt.Errorf("enter %s: %w", namespace, err)
			return
		}
		done <- f()
	}()
	return <-done
}

// dialInside connects from the container itself, whose loopback has what is closed to the world.
func (w *world) dialInside(ctx context.Context, network, addr string) (c net.Conn, err error) {
	err = doIn(w.inside, func() error {
		var d net.Dialer
		c, err = d.DialContext(ctx, network, addr)
		return err
	})
	return c, err
}

// answerNames answers, in the container, each question for an address with the site's. Where no name server is configured
// Go's resolver asks the one on loopback.
func (w *world) answerNames(t *testing.T) {
	t.Helper()
	var conn net.PacketConn
	if err := doIn(w.inside, func() (err error) {
		conn, err = net.ListenPacket("udp", "127.0.0.1:53")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buf := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			m.Response, m.Additionals = true, nil
			if q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class},
					Body:   &dnsmessage.AResource{A: netip.MustParseAddr(siteIP).As4()},
				}}
			}
			if answer, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	}()
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
