package gate

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"os"
	"os/exec"
	"testing"

	"github.com/coder/websocket"

	"github.com/slimctl/slimctl/internal/need"
)

// startXvnc gives the address of a real VNC server. It gets its listening socket from us, as from inetd, and finds a free
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
		"-geometry", "320x200", "-depth", "24", "-nolisten", "tcp")
	cmd.Stdin, cmd.ExtraFiles = socket, []*os.File{nil, display} // 3 it takes for itself
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	display.Close()
	if _, err := bufio.NewReader(read).ReadString('\n'); err != nil { // it tells its display when it is ready
		t.Fatalf("Xvnc did not start: %v", err)
	}
	return l.Addr().String()
}

// TestRFB speaks RFB 3.8 (RFC 6143) over the bridge up to a whole picture of the screen.
func TestRFB(t *testing.T) {
	_, url := serve(t, startXvnc(t), nil)
	for range 2 { // watchers share the screen
		ws := dial(t, url+"/websockify")
		c := websocket.NetConn(soon(t), ws, websocket.MessageBinary)
		expect := func(what string, n int) []byte {
			t.Helper()
			b := make([]byte, n)
			if _, err := io.ReadFull(c, b); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			return b
		}
		say := func(b ...byte) {
			t.Helper()
			if _, err := c.Write(b); err != nil {
				t.Fatal(err)
			}
		}
		if version := expect("version", 12); string(version) != "RFB 003.008\n" {
			t.Fatalf("version %q", version)
		}
		say([]byte("RFB 003.008\n")...)
		if types := expect("security types", int(expect("their number", 1)[0])); !bytes.Contains(types, []byte{1}) {
			t.Fatalf("security types %v", types)
		}
		say(1)
		if result := expect("security result", 4); !bytes.Equal(result, make([]byte, 4)) {
			t.Fatalf("security result %v", result)
		}
		say(1) // shared
		head := expect("ServerInit", 24)
		width, height := binary.BigEndian.Uint16(head), binary.BigEndian.Uint16(head[2:])
		if width != 320 || height != 200 || head[4] != 32 {
			t.Fatalf("screen of %dx%d, %d bits a pixel", width, height, head[4])
		}
		expect("name", int(binary.BigEndian.Uint32(head[20:])))
		say(2, 0, 0, 1, 0, 0, 0, 0)                    // SetEncodings: raw
		say(3, 0, 0, 0, 0, 0, 320>>8, 320&255, 0, 200) // FramebufferUpdateRequest: all of it
		pixels := 0
		for pixels < 320*200 {
			update := expect("FramebufferUpdate", 4)
			if update[0] != 0 {
				t.Fatalf("message of type %d", update[0])
			}
			for range binary.BigEndian.Uint16(update[2:]) {
				r := expect("rectangle", 12)
				n := int(binary.BigEndian.Uint16(r[4:])) * int(binary.BigEndian.Uint16(r[6:]))
				expect("pixels", 4*n)
				pixels += n
			}
		}
	}
}
