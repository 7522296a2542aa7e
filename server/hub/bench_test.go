package hub

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// BenchmarkCall is a call to a server through the hub over HTTP, to the same
// server over its own pipes, and to one over HTTP that does nothing else: the
// hub adds what is beyond the other two together.
func BenchmarkCall(b *testing.B) {
	call := func(b *testing.B, s *mcp.ClientSession) {
		p := &mcp.CallToolParams{Name: "pid"}
		for b.Loop() {
			if _, err := s.CallTool(b.Context(), p); err != nil {
				b.Fatal(err)
			}
		}
	}
	for _, era := range eras {
		b.Run("hub/"+era, func(b *testing.B) {
			call(b, client(b, newTestHub(b, servers(b, "new")).serve(b), era, nil))
		})
	}
	b.Run("stdio", func(b *testing.B) {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childVar+"=new")
		s, err := mcp.NewClient(&mcp.Implementation{Name: "tester"}, nil).Connect(b.Context(), &mcp.CommandTransport{Command: cmd}, nil)
		if err != nil {
			b.Fatal(err)
		}
		defer s.Close()
		call(b, s)
	})
	b.Run("http", func(b *testing.B) {
		own := childServer("new")
		h := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return own }, &mcp.StreamableHTTPOptions{Stateless: true})
		web := httptest.NewServer(h)
		defer web.Close()
		call(b, client(b, web.URL, eras[0], nil))
	})
}
