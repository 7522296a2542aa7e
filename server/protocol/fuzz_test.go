package protocol_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/server/protocol"
)

// FuzzFrame: whatever bytes come, in whatever era, nothing panics, each line
// of output is one JSON-RPC frame, and a valid request that follows is
// answered exactly once.
func FuzzFrame(f *testing.F) {
	for _, s := range []string{
		"", "not json", "[]", "{}", "null", "\"", "{\"jsonrpc\":\"2.0\"}", "\xff", "\ufeff{}",
		`[{"jsonrpc":"2.0","id":1,"method":"ping"}]`,
		`{"jsonrpc":"2.0","id":1.5,"method":"ping"}`,
		`{"jsonrpc":"2.0","id":null,"method":"ping"}`,
		`{"jsonrpc":"2.0","id":"\ud800","method":"ping"}`,
		`{"jsonrpc":"2.0","id":9007199254740993,"method":"ping"}`,
		`{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ok","arguments":{"a":1,"a":2}}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ok","arguments":{"a":"\u0000"}}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"fail","arguments":{}}}`,
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"works"}}` + "\n",
		`{"jsonrpc":"2.0","id":"works","method":"ping"}`,
		`{"jsonrpc":"2.0","id":1,"result":{}}`,
		`{"jsonrpc":"2.0","error":{"code":-32700,"message":"x"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ok","inputResponses":{"a":{"method":"x"}},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":null}}}`,
		strings.Repeat("[", 200) + strings.Repeat("]", 200),
		"\r\n\n \t\r\n{\"jsonrpc\"\r:\"2.0\",\"id\":1,\"method\":\"ping\"}",
	} {
		f.Add([]byte(s))
	}
	e := eras[4]
	const mine = `"fd1f0c2e-mine"`
	server := (&peer{started: make(chan string, 1), ended: make(chan string, 1)}).server()
	server.RemoveTools("block")
	f.Fuzz(func(t *testing.T, data []byte) {
		if bytes.Contains(data, []byte("fd1f0c2e")) || bytes.Contains(data, []byte("\\")) && bytes.Contains(data, []byte("-mine")) {
			return // it guessed the id
		}
		// The input ends when the answer has come: after its end a running
		// request has a moment only, which a busy machine may not give it.
		out := &awaited{text: mine, came: make(chan struct{})}
		in := io.MultiReader(bytes.NewReader(data), strings.NewReader("\n"+e.request(mine, "tools/list", "")+"\n"), out)
		if err := protocol.Serve(context.Background(), server, in, out); err != nil {
			t.Fatal(err)
		}
		answers := 0
		lines := strings.SplitAfter(out.String(), "\n")
		if last := lines[len(lines)-1]; last != "" {
			t.Errorf("half a line: %q", last)
		}
		for _, l := range lines[:len(lines)-1] {
			var m message
			dec := json.NewDecoder(strings.NewReader(l))
			dec.DisallowUnknownFields()
			if err := dec.Decode(&struct {
				*message
				Params json.RawMessage `json:"params"`
			}{message: &m}); err != nil || m.JSONRPC != "2.0" || l[0] != '{' {
				t.Fatalf("not a frame: %q %v", l, err)
			}
			if (m.Result != nil) == (m.Error != nil) && m.Method == "" {
				t.Errorf("neither result nor error: %q", l)
			}
			if m.Error != nil && (m.Error.Code == 0 || m.Error.Message == "") {
				t.Errorf("an error without a code or a message: %q", l)
			}
			if id := string(m.ID); id == "null" || strings.ContainsAny(id, "{[.") && id[0] != '"' {
				t.Errorf("id %s", id)
			}
			if string(m.ID) == mine {
				answers++
			}
		}
		if answers != 1 {
			t.Errorf("the request that followed has %d answers: %s", answers, out)
		}
		if n := bytes.Count(data, []byte("\n")) + 2; len(lines)-1 > 2*n {
			t.Errorf("%d lines of input have %d of output", n, len(lines)-1)
		}
	})
}

// awaited is an output that is also the rest of the input: it ends once a text
// was written, or after a while.
type awaited struct {
	bytes.Buffer
	text string
	came chan struct{}
	once sync.Once
}

func (a *awaited) Write(p []byte) (int, error) {
	n, err := a.Buffer.Write(p)
	if strings.Contains(a.String(), a.text) {
		a.once.Do(func() { close(a.came) })
	}
	return n, err
}

func (a *awaited) Read([]byte) (int, error) {
	select {
	case <-a.came:
	case <-time.After(need.Patience):
	}
	return 0, io.EOF
}
