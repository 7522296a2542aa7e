package upstream

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// BenchmarkDown is what a call to a server that is down costs.
func BenchmarkDown(b *testing.B) {
	s := stub(b, "exits", Options{})
	s.times.backoff = []time.Duration{time.Hour}
	s.Start()
	eventually(b, "it is down", s.is(Error))
	for b.Loop() {
		if _, err := s.Session(); err == nil || err.Error() == "" {
			b.Fatal("it is up")
		}
	}
}

// BenchmarkCall is a call through the filter, and through go-sdk's own
// transport.
func BenchmarkCall(b *testing.B) {
	b.Run("upstream", func(b *testing.B) {
		session := up(b, stub(b, "good", Options{}))
		for b.Loop() {
			if err := echo(b.Context(), session); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("go-sdk", func(b *testing.B) {
		cmd := exec.Command(self(b))
		cmd.Env = append(os.Environ(), role+"=good")
		session, err := mcp.NewClient(&mcp.Implementation{Name: "x"}, nil).Connect(b.Context(), &mcp.CommandTransport{Command: cmd}, nil)
		if err != nil {
			b.Fatal(err)
		}
		defer session.Close()
		for b.Loop() {
			if err := echo(b.Context(), session); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkIdle is what a server that runs costs the hub.
func BenchmarkIdle(b *testing.B) {
	const servers = 50
	for b.Loop() {
		var list []*Server
		heap, goroutines := usage()
		for i := range servers {
			s := New(Config{Name: fmt.Sprint(i), Command: "/bin/sh", Args: []string{"-c", forking, "sh", "marked", "stays", "1"}}, Options{})
			up(b, s)
			list = append(list, s)
		}
		heap2, goroutines2 := usage()
		b.ReportMetric(float64(heap2-heap)/servers, "B/server")
		b.ReportMetric(float64(goroutines2-goroutines)/servers, "goroutines/server")
		for _, s := range list {
			if err := s.Stop(b.Context()); err != nil {
				b.Error(err)
			}
		}
	}
}

// usage returns the bytes of heap and stacks, and the goroutines.
func usage() (bytes, goroutines int) {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc + m.StackInuse), runtime.NumGoroutine()
}
