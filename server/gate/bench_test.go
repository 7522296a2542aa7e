package gate

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

const benchVNC, benchAt = "GATE_BENCH_VNC", "GATE_BENCH_AT"

// TestMain is also the gate as a process of its own, for BenchmarkBridge.
func TestMain(m *testing.M) {
	if vnc := os.Getenv(benchVNC); vnc != "" {
		h, err := New(Config{Anonymous: true, TicketTTL: time.Second}, vnc, unlogged)
		if err == nil {
			err = http.ListenAndServe(os.Getenv(benchAt), h)
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// BenchmarkBridge is the way of a screen's pixels from the VNC server to the client, in MB/s and in CPU time of the process
// between them, and beside it websockify's when it is installed. The CPU time is the one that a busy machine changes least.
func BenchmarkBridge(b *testing.B) {
	part := make([]byte, 64<<10)
	vnc := fakeVNC(b, func(c *net.TCPConn) {
		_ = c.SetDeadline(time.Time{})
		for {
			if _, err := c.Write(part); err != nil {
				return
			}
		}
	})
	run := func(b *testing.B, program string, argv ...string) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		at := l.Addr().String()
		l.Close()
		for i := range argv {
			argv[i] = strings.Replace(argv[i], "AT", at, 1)
		}
		cmd := exec.Command(program, argv...)
		cmd.Env = append(os.Environ(), benchVNC+"="+vnc, benchAt+"="+at)
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
		var c *websocket.Conn
		until(b, program+" answers", func() bool {
			var err error
			c, _, err = websocket.Dial(soon(b), "ws://"+at+"/websockify", &websocket.DialOptions{Subprotocols: []string{"binary"}})
			return err == nil
		})
		c.SetReadLimit(-1)
		write(b, c, []byte(hello))
		b.SetBytes(int64(len(part)))
		buf := make([]byte, 64<<10)
		total := int64(b.N) * int64(len(part))
		b.ResetTimer()
		for left := total; left > 0; {
			_, r, err := c.Reader(context.Background())
			if err != nil {
				b.Fatal(err)
			}
			n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r, buf)
			if err != nil {
				b.Fatal(err)
			}
			left -= n
		}
		b.StopTimer()
		c.CloseNow()
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
		cpu := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		b.ReportMetric(cpu.Seconds()/(float64(total)/1e9), "cpu-s/GB")
	}
	b.Run("gate", func(b *testing.B) {
		self, err := os.Executable()
		if err != nil {
			b.Fatal(err)
		}
		run(b, self)
	})
	b.Run("websockify", func(b *testing.B) {
		program, err := exec.LookPath("websockify")
		if err != nil {
			b.Skip("websockify is not installed")
		}
		run(b, program, "--run-once", "AT", vnc)
	})
}

func BenchmarkAuth(b *testing.B) {
	g := newGate(b)
	ticket := issue(b, g, false)
	for name, c := range map[string][2]string{"ticket": {"/vnc/?ticket=" + ticket, ""}, "key": {"/mcp", apiKey}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if auth(b, g, c[0], "X-AIO-API-Key", c[1]) != 204 {
					b.Fatal("refused")
				}
			}
		})
	}
	token := sign(b, map[string]any{"exp": time.Now().Add(time.Hour).Unix()}, nil)
	b.Run("token", func(b *testing.B) {
		for b.Loop() {
			if auth(b, g, "/mcp", "Authorization", "Bearer "+token) != 204 {
				b.Fatal("refused")
			}
		}
	})
}
