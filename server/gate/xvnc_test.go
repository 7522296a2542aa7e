package gate

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"

	"github.com/slimctl/slimctl/internal/need"
)

// startXvnc returns the address of a real VNC server. It gets its listening socket from us, as from inetd, and finds a free
// display by itself, so nothing has to be guessed.
func startXvnc(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	socket, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	read, display, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	cmd := exec.Command(need.Program(t, "Xvnc"), "-inetd", "-displayfd", "4", "-SecurityTypes", "None", "-AlwaysShared",
		"-geometry", "320x200", "-depth", "24", "-nolisten", "tcp", "-retro")
	cmd.Stdin, cmd.ExtraFiles = socket, []*os.File{nil, display} // 3 it takes for itself
	if err := need.Start(t, cmd); err != nil {
		t.Fatal(err)
	}
	display.Close()
	if _, err := bufio.NewReader(read).ReadString('\n'); err != nil { // it tells its display when it is ready
		t.Fatalf("Xvnc did not start: %v", err)
	}
	return l.Addr().String()
}

// viewer is a client of RFB (RFC 6143) before a real VNC server. It takes pictures in raw pixels, the pointer in them.
type viewer struct {
	t    *testing.T
	conn net.Conn
	Name string
}

// view opens a desktop and shakes hands in a version of RFB, 3.8 unless given.
func view(t *testing.T, url, version string) *viewer {
	t.Helper()
	v := &viewer{t: t, conn: websocket.NetConn(soon(t), connect(t, url, nil), websocket.MessageBinary)}
	if got := v.expect(12); string(got) != "RFB 003.008\n" {
		t.Fatalf("version %q", got)
	}
	v.say([]byte(version))
	switch version {
	case "RFB 003.003\n":
		if kind := v.expect(4); !bytes.Equal(kind, []byte{0, 0, 0, 1}) {
			t.Fatalf("security type %v", kind)
		}
	default:
		if types := v.expect(int(v.expect(1)[0])); !bytes.Equal(types, []byte{1}) {
			t.Fatalf("security types %v", types)
		}
		v.say([]byte{1})
		if version == "RFB 003.008\n" && !bytes.Equal(v.expect(4), make([]byte, 4)) {
			t.Fatal("no security")
		}
	}
	v.say([]byte{0}) // alone, which nobody gets
	head := v.expect(24)
	if w, h := binary.BigEndian.Uint16(head), binary.BigEndian.Uint16(head[2:]); w != 320 || h != 200 || head[4] != 32 {
		t.Fatalf("screen of %dx%d, %d bits a pixel", w, h, head[4])
	}
	v.Name = string(v.expect(int(binary.BigEndian.Uint32(head[20:]))))
	v.say([]byte{2, 0, 0, 2, 0, 0, 0, 0, 255, 255, 254, 196}) // raw, and mouse buttons beyond eight
	return v
}

func (v *viewer) expect(n int) []byte {
	v.t.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(v.conn, b); err != nil {
		v.t.Fatalf("the gate says nothing more: %v", err)
	}
	return b
}

func (v *viewer) say(b []byte) {
	v.t.Helper()
	if _, err := v.conn.Write(b); err != nil {
		v.t.Fatal(err)
	}
}

// picture returns the whole screen. The VNC server has done by then what the viewer said before.
func (v *viewer) picture() []byte {
	v.t.Helper()
	v.say([]byte{3, 0, 0, 0, 0, 0, 320 >> 8, 320 & 255, 0, 200})
	screen := make([]byte, 320*200*4)
	for got := 0; got < 320*200; {
		update := v.expect(4)
		if update[0] != 0 {
			v.t.Fatalf("message of type %d", update[0])
		}
		for range binary.BigEndian.Uint16(update[2:]) {
			r := v.expect(12)
			x, y, w, h := int(r[0])<<8+int(r[1]), int(r[2])<<8+int(r[3]), int(r[4])<<8+int(r[5]), int(r[6])<<8+int(r[7])
			if encoding := binary.BigEndian.Uint32(r[8:]); encoding != 0 {
				v.t.Fatalf("encoding %d", int32(encoding))
			}
			for row := range h {
				copy(screen[((y+row)*320+x)*4:], v.expect(4*w))
			}
			got += w * h
		}
	}
	return screen
}

// TestRFB takes a picture of a real VNC server's screen through the gate, in each version of RFB. Watchers share the screen.
func TestRFB(t *testing.T) {
	_, url := serve(t, startXvnc(t), nil)
	var open []*viewer
	for _, version := range []string{"RFB 003.003\n", "RFB 003.007\n", "RFB 003.008\n"} {
		open = append(open, view(t, url+"/websockify", version))
		for _, v := range open {
			v.picture()
		}
	}
	for _, version := range []string{"RFB 003.889\n", "RFB 004.000\n", "RFB 003.005\n", "GET / HTTP/1"} {
		c := connect(t, url+"/websockify", nil)
		write(t, c, []byte(version))
		if _, code := readAll(t, c); code != websocket.StatusProtocolError {
			t.Errorf("%q: %d", version, code)
		}
	}
}

// acting are messages that act, or would on some VNC server, each with the pointer's, if it were let through, behind it.
var acting = map[string][]byte{
	"a key":                      {4, 1, 0, 0, 0, 0, 0, 'a'},
	"the pointer":                movePointer,
	"the pointer and a button":   {5, 0xff, 0, 9, 0, 9},
	"the clipboard":              append([]byte{6, 0, 0, 0, 0, 0, 0, 3}, "abc"...),
	"an empty clipboard":         {6, 0, 0, 0, 0, 0, 0, 0},
	"the extended clipboard":     append([]byte{6, 0, 0, 0, 0xff, 0xff, 0xff, 0xfc}, 2, 0, 0, 1),
	"a key of QEMU":              {255, 0, 0, 1, 0, 0, 0, 'a', 0, 0, 0, 30},
	"sound of QEMU":              {255, 1, 0, 0},
	"a sound format of QEMU":     {255, 1, 0, 2, 3, 2, 0, 0, 0xac, 0x44},
	"another desktop size":       {251, 0, 0, 9, 0, 9, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 9, 0, 9, 0, 0, 0, 0},
	"a desktop without a screen": {251, 0, 0, 9, 0, 9, 0, 0},
	"a shutdown":                 {250, 0, 1, 2},
	"a device":                   {253, 0x80 | 2, 0, 4, 1, 2, 3, 4},
	"a device the other way":     {253, 2, 4, 0, 1, 2, 3, 4},
	"a clipboard with messages":  append([]byte{6, 0, 0, 0, 0, 0, 0, 12}, append(append([]byte{}, movePointer...), movePointer...)...),
}

// movePointer is a PointerEvent at 160, 100.
var movePointer = []byte{5, 0, 0, 160, 0, 100}

// TestLookOnly: with a ticket, with a key or without either nobody acts on a real desktop, but with a ticket for input. That
// the pointer has moved everybody sees.
func TestLookOnly(t *testing.T) {
	var mu sync.Mutex
	var events []Event
	xvnc := startXvnc(t)
	g, url := serve(t, xvnc, func(g *Gate, _ *http.Server) {
		g.tickets.log = func(e Event) error {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, e)
			return nil
		}
	})
	witness := view(t, url+"/websockify", version)
	before := witness.picture()
	look, input := issue(t, g, false), issue(t, g, true)
	for who, query := range map[string]string{"a ticket": "?ticket=" + look, "a key": ""} {
		v := view(t, url+"/websockify"+query, version)
		if !strings.HasSuffix(v.Name, " (view only)") {
			t.Errorf("%s: the desktop is called %q", who, v.Name)
		}
		for what, message := range acting {
			for _, b := range [][]byte{message, movePointer} {
				v.say(b[:1]) // in parts, as a WebSocket may bring it
				v.say(b[1:])
			}
			v.picture() // the VNC server is at the next message
			if !bytes.Equal(witness.picture(), before) {
				t.Fatalf("with %s %s moves the pointer", who, what)
			}
		}
	}
	if len(events) != 1 || events[0].Name != InputGranted {
		t.Errorf("logged before any input: %+v", events)
	}

	v := view(t, url+"/websockify?ticket="+input, version)
	if strings.Contains(v.Name, "view only") {
		t.Errorf("the desktop is called %q", v.Name)
	}
	for what, message := range acting {
		v.say(message)
		for _, at := range []byte{0, 50} {
			from := v.picture()
			v.say([]byte{5, 0, 0, at, 0, at})
			until(t, "after "+what+" the pointer moves", func() bool { return !bytes.Equal(v.picture(), from) })
		}
	}
	until(t, "the witness sees the pointer", func() bool { return !bytes.Equal(witness.picture(), before) })
	g.tickets.find(input).end(errTicketEnded)
	if _, err := io.Copy(io.Discard, v.conn); websocket.CloseStatus(err) != websocket.StatusPolicyViolation {
		t.Errorf("the desktop ends with %v", err)
	}
	g.Close()
	var names []string
	for _, e := range events {
		names = append(names, e.Name)
		if e.Subject != "key:test" || e.Ticket != events[0].Ticket {
			t.Errorf("%+v", e)
		}
	}
	last := events[len(events)-1]
	// Two pointers each, and those of acting that are keys, pointers and clipboards.
	if !slices.Equal(names, []string{InputGranted, InputBegan, InputEnded}) || last.Messages != 2*len(acting)+8 || last.First == nil || last.Last.Before(*last.First) {
		t.Errorf("logged %v, at last %+v", names, last)
	}
}

// TestNoLogNoInput: where input can't be recorded there is none.
func TestNoLogNoInput(t *testing.T) {
	full := errors.New("no space left on device")
	fails := false
	g, url := serve(t, startXvnc(t), func(g *Gate, _ *http.Server) {
		g.tickets.log = func(Event) error {
			if fails {
				return full
			}
			return nil
		}
	})
	v := view(t, url+"/websockify?ticket="+issue(t, g, true), version)
	before := v.picture()
	witness := view(t, url+"/websockify", version)
	fails = true
	v.say(movePointer)
	if _, err := io.Copy(io.Discard, v.conn); websocket.CloseStatus(err) != websocket.StatusInternalError {
		t.Errorf("the desktop ends with %v", err)
	}
	if !bytes.Equal(witness.picture(), before) {
		t.Error("the pointer moves")
	}
	r := httptest.NewRequest("POST", "/tickets", strings.NewReader(`{"input":true}`))
	w := httptest.NewRecorder()
	if g.ServeHTTP(w, r); w.Code != http.StatusServiceUnavailable {
		t.Errorf("a ticket for input: %d", w.Code)
	}
}
