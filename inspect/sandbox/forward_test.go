package sandbox

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/internal/tether"
)

// pipes is a connection over two pipes, as an engine has with a container.
type pipes struct {
	io.Reader
	io.Writer
	close func() error
}

func (f pipes) Close() error { return f.close() }

// tied is slimctl's end of a tether to a container that serves address.
func tied(t *testing.T, address string) *tether.Tether {
	t.Helper()
	inR, inW, err1 := os.Pipe()
	outR, outW, err2 := os.Pipe()
	l, err3 := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	held := make(chan error, 1)
	go func() { held <- tether.Hold(context.Background(), inR, outW, address, l) }()
	e := tether.Open(pipes{outR, inW, func() error { return errors.Join(inW.Close(), outR.Close()) }})
	t.Cleanup(func() {
		e.Close()
		<-held
	})
	return e
}

// impatient listens as a server does that sends back what it gets, line by line, and ends a connection that begins with "bye".
func impatient(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				var b [3]byte
				for {
					if _, err := io.ReadFull(c, b[:]); err != nil || string(b[:]) == "bye" {
						return
					}
					_, _ = c.Write(b[:])
				}
			}()
		}
	}()
	return l.Addr().String()
}

// TestForwardEnds: who holds all connections to a published port, without a key and without a word, keeps nobody out: one more
// ends the quietest, of the address that has most of them.
func TestForwardEnds(t *testing.T) {
	for name, idle := range map[string]func(net.Conn) error{
		"silent":          func(net.Conn) error { return nil },
		"ended by theirs": func(c net.Conn) error { _, err := c.Write([]byte("bye")); return err }, // and held open by ours
		"answered":        ask,
	} {
		t.Run(name, func(t *testing.T) {
			end := tied(t, impatient(t))
			f, err := newForward(Publication{Host: netip.MustParseAddrPort("127.0.0.1:0")}, new(forwarded), end.Dial)
			if err != nil {
				t.Fatal(err)
			}
			defer f.close()
			dial := func(from string) net.Conn {
				t.Helper()
				d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
				c, err := d.DialContext(t.Context(), "tcp", f.Host.String())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { c.Close() })
				return c
			}
			silent, desktop := dial("127.0.0.2"), dial("127.0.0.2") // of somebody else
			if err := ask(desktop); err != nil {
				t.Fatal(err)
			}
			for range 600 {
				if err := idle(dial("127.0.0.1")); err != nil {
					t.Fatal(err)
				}
			}
			for _, c := range []net.Conn{dial("127.0.0.1"), dial("127.0.0.2"), desktop, silent} {
				if err := ask(c); err != nil {
					t.Errorf("from %s: %v", c.LocalAddr(), err)
				}
			}
		})
	}
}

// ask sends a word and waits for its echo.
func ask(c net.Conn) error {
	if err := c.SetDeadline(time.Now().Add(need.Patience)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("ask")); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 3))
	return err
}
