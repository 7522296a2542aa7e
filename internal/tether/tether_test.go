package tether

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slimctl/slimctl/internal/need"
)

// ends are slimctl's end of a tether and that of a container which is honest.
type ends struct {
	*Tether
	socket string // of the container, for what goes out
	held   chan error
	input  *os.File // of the container, as slimctl writes to it
}

// tie makes both ends, over pipes. What comes in goes to address.
func tie(t *testing.T, address string) ends {
	t.Helper()
	inR, inW, err1 := os.Pipe()
	outR, outW, err2 := os.Pipe()
	e := ends{socket: filepath.Join(t.TempDir(), "s"), held: make(chan error, 1), input: inW}
	l, err3 := net.Listen("unix", e.socket)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	go func() { e.held <- Hold(context.Background(), inR, outW, address, l) }()
	e.Tether = Open(&pair{outR, inW})
	t.Cleanup(func() {
		e.Close()
		<-e.held // the container's end follows
	})
	return e
}

// echo listens, and sends back what it gets, and how much it was once that has ended.
func echo(t *testing.T) string {
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
				n, _ := io.Copy(c, c)
				fmt.Fprintf(c, "|%d", n)
			}()
		}
	}()
	return l.Addr().String()
}

// TestBothWays: many connections each way at once, all bytes, the end of each direction by itself.
func TestBothWays(t *testing.T) {
	e := tie(t, echo(t))
	go func() { // outside: what the container asks for is echoed as well
		for {
			c, err := e.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				n, _ := io.Copy(c, c)
				fmt.Fprintf(c, "|%d", n)
			}()
		}
	}()
	try := func(c net.Conn, err error) {
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		data := bytes.Repeat([]byte("0123456789abcdef"), 60_000)
		go func() {
			_, _ = c.Write(data)
			_ = c.(interface{ CloseWrite() error }).CloseWrite()
		}()
		got, err := io.ReadAll(c)
		if want := append(bytes.Clone(data), fmt.Sprintf("|%d", len(data))...); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes, want %d: %v", len(got), len(want), err)
		}
	}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { try(e.Dial(t.Context())) })
		all.Go(func() { try(net.Dial("unix", e.socket)) })
	}
	all.Wait()
}

// TestNobodyListens: a connection to a port that isn't open ends, and the tether goes on.
func TestNobodyListens(t *testing.T) {
	e := tie(t, "127.0.0.1:1")
	for range maxDials + 10 { // each gives its place back
		c, err := e.Dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(c); len(text) > 0 || err != nil {
			t.Fatalf("%q, %v", text, err)
		}
		c.Close()
	}
	if e.Err() != nil {
		t.Error(e.Err())
	}
}

// TestGone: when slimctl's process ends, so does its pipe, and with it the container's end.
func TestGone(t *testing.T) {
	e := tie(t, echo(t))
	c, err := e.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	e.input.Close()
	if err := <-e.held; !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	e.held <- nil
	if text, _ := io.ReadAll(c); len(text) > 0 {
		t.Errorf("%q", text)
	}
	<-e.Done()
	if _, err := e.Dial(t.Context()); err == nil || e.Err() != nil {
		t.Errorf("%v, %v", err, e.Err())
	}
}

// frame is one as a hostile container writes it.
func frame(kind byte, flags uint16, id, length uint32, body string) string {
	head := make([]byte, frameHead)
	head[1] = kind
	binary.BigEndian.PutUint16(head[2:], flags)
	binary.BigEndian.PutUint32(head[4:], id)
	binary.BigEndian.PutUint32(head[8:], length)
	return string(head) + body
}

// hostile is a connection to a container that says what it wants, and reads what it is sent or never does.
type hostile struct {
	io.Reader
	deaf   bool
	closed chan struct{}
	once   sync.Once
}

func (h *hostile) Write(p []byte) (int, error) {
	if h.deaf {
		<-h.closed
		return 0, io.ErrClosedPipe
	}
	return len(p), nil
}

func (h *hostile) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

// endless repeats what make gives of a number.
type endless struct {
	make func(n uint32) string
	n    uint32
	left string
}

func (e *endless) Read(p []byte) (int, error) {
	if e.left == "" {
		e.left = e.make(e.n)
		e.n++
	}
	n := copy(p, e.left)
	e.left = e.left[n:]
	return n, nil
}

func once(text string) func() io.Reader {
	return func() io.Reader { return strings.NewReader(text) }
}

func again(make func(uint32) string) func() io.Reader {
	return func() io.Reader { return &endless{make: make} }
}

// TestHostile: whatever comes out of a container ends its tether, with a word why, also when it reads nothing.
func TestHostile(t *testing.T) {
	patience := writeTime
	defer func() { writeTime = patience }()
	for name, says := range map[string]struct {
		from func() io.Reader
		want string
	}{
		"text":               {once("Traceback (most recent call last):\n"), `it begins with "Traceback (m"`},
		"zero bytes":         {again(func(uint32) string { return "\x00" }), "tether"},
		"pings":              {again(func(n uint32) string { return frame(2, flagSYN, 0, n, "") }), "frame type 2"},
		"our own streams":    {once(frame(1, flagSYN, 1, 0, "")), "opens stream 1, which is not its own"},
		"stream 0":           {once(frame(0, flagSYN, 0, 0, "")), "frame on stream 0"},
		"a stream twice":     {again(func(uint32) string { return frame(1, flagSYN, 2, 0, "") }), "tether"},
		"a million streams":  {again(func(n uint32) string { return frame(1, flagSYN, 2+2*n, 0, "") }), "holds more than"},
		"a large body":       {once(frame(0, flagSYN, 2, 1<<31, "")), "a frame of 2147483648 bytes"},
		"beyond the window":  {again(func(n uint32) string { return frame(0, 1&^uint16(min(n, 1)), 2, window, strings.Repeat("x", window)) }), "tether"},
		"unknown flags":      {once(frame(0, 1<<14, 2, 0, "")), "is no tether"},
		"an error, and text": {once(frame(3, 0, 0, 2, "")), "tether"},
	} {
		for _, deaf := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, deaf %v", name, deaf), func(t *testing.T) {
				if writeTime = patience; deaf {
					writeTime = 100 * time.Millisecond
				}
				h := &hostile{deaf: deaf, closed: make(chan struct{})}
				h.Reader = io.MultiReader(says.from(), waits{h.closed})
				tied := Open(h)
				defer tied.Close()
				go func() {
					for {
						c, err := tied.Accept()
						if err != nil {
							return
						}
						_ = c // held, and never read
					}
				}()
				need.Eventually(t, func() bool { return tied.Err() != nil }, func() string { return "the tether holds" })
				<-tied.Done()
				if err := tied.Err(); !strings.Contains(err.Error(), says.want) && !deaf {
					t.Errorf("%v, want %q", err, says.want)
				}
			})
		}
	}
}

// waits returns nothing until closed is.
type waits struct{ closed chan struct{} }

func (w waits) Read([]byte) (int, error) {
	<-w.closed
	return 0, io.EOF
}

// FuzzFrames: what comes out of a container never brings slimctl down, and what is handed to yamux are whole frames.
func FuzzFrames(f *testing.F) {
	f.Add([]byte(frame(1, flagSYN, 2, 0, "") + frame(0, 0, 2, 5, "hello") + frame(1, flagFIN, 2, 0, "")))
	f.Add([]byte(frame(0, flagSYN|flagFIN, 4, 3, "abc") + frame(1, flagRST, 4, 0, "") + frame(3, 0, 0, 0, "")))
	f.Add([]byte("HTTP/1.1 200 OK\r\n\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := &frameReader{from: bytes.NewReader(data), open: map[uint32]bool{}}
		if got, _ := io.ReadAll(r); !bytes.HasPrefix(data, got) || len(r.open) > maxOpen {
			t.Fatalf("%q of %q", got, data)
		}
		h := &hostile{Reader: bytes.NewReader(data), closed: make(chan struct{})}
		tied := Open(h)
		for {
			c, err := tied.Accept()
			if err != nil {
				break
			}
			_, _ = c.Write([]byte("x"))
			c.Close()
		}
		tied.Close()
	})
}
