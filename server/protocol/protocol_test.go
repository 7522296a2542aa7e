package protocol_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/server/protocol"
)

// An era is how a client of one protocol revision talks.
type era struct {
	version string
	meta    string // what each request carries
}

var eras = []era{
	{"2024-11-05", ""},
	{"2025-03-26", ""},
	{"2025-06-18", ""},
	{"2025-11-25", ""},
	{"2026-07-28", `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"}}`},
}

// params returns the members of params, with the era's own.
func (e era) params(members string) string {
	if e.meta != "" && members != "" {
		return "{" + members + "," + e.meta + "}"
	}
	return "{" + members + e.meta + "}"
}

// request returns a frame; id is JSON.
func (e era) request(id, method, members string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":%s}`, id, method, e.params(members))
}

func (e era) call(id, tool string) string {
	return e.request(id, "tools/call", fmt.Sprintf(`"name":%q,"arguments":{}`, tool))
}

// message is any frame that the server writes.
type message struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Method  string          `json:"method"`
	Result  json.RawMessage `json:"result"`
	Error   *struct {
		Code    int             `json:"code"`
		Message string          `json:"message"`
		Data    json.RawMessage `json:"data"`
	} `json:"error"`
}

// peer is the client's end of a Serve, over real pipes.
type peer struct {
	t      testing.TB
	in     *os.File
	out    chan message // closed at the end of output
	reader *os.File
	cancel context.CancelFunc
	done   chan error

	started chan string // the block tool began
	ended   chan string // and its context ended
}

// server has a tool that answers, one that waits for its context, and one
// that fails.
func (p *peer) server() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "t", Version: "1"}, &mcp.ServerOptions{Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}}})
	add := func(name string, h mcp.ToolHandler) {
		s.AddTool(&mcp.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)}, h)
	}
	text := func(s string) *mcp.CallToolResult {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
	}
	add("ok", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) { return text("fine"), nil })
	add("large", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return text(strings.Repeat("é\n", 20_000)), nil
	})
	add("fail", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return nil, errors.New("no code")
	})
	add("panic", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		panic("s3cret")
	})
	add("block", func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		p.started <- "block"
		<-ctx.Done()
		p.ended <- "block"
		return nil, ctx.Err()
	})
	s.AddReceivingMiddleware(protocol.Middleware())
	return s
}

// serve starts a Serve whose output is left alone.
func serve(t testing.TB) *peer {
	t.Helper()
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &peer{t: t, in: inW, reader: outR, cancel: cancel, done: make(chan error, 1), started: make(chan string, 300), ended: make(chan string, 300)}
	go func() {
		p.done <- protocol.Serve(ctx, p.server(), inR, outW)
		outW.Close()
		inR.Close()
	}()
	t.Cleanup(func() {
		cancel()
		inW.Close()
		outR.Close()
	})
	return p
}

// read begins to read the output; each line has to be a JSON-RPC frame.
func (p *peer) read() {
	p.out = make(chan message, 1000)
	go func() {
		defer close(p.out)
		r := bufio.NewReader(p.reader)
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				if line != "" && errors.Is(err, io.EOF) {
					p.t.Errorf("half a line: %q", line)
				}
				return
			}
			var m message
			if err := json.Unmarshal([]byte(line), &m); err != nil || m.JSONRPC != "2.0" || line[0] != '{' {
				p.t.Errorf("not a frame: %q", line)
			}
			p.out <- m
		}
	}()
}

func start(t testing.TB, e era) *peer {
	t.Helper()
	p := serve(t)
	p.read()
	if e.meta == "" {
		p.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":%q,"capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`, e.version))
		m := p.next()
		if !strings.Contains(string(m.Result), `"protocolVersion":"`+e.version+`"`) {
			t.Fatalf("initialize: %+v", m)
		}
		p.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	}
	return p
}

func (p *peer) send(frame string) {
	p.t.Helper()
	if _, err := io.WriteString(p.in, frame+"\n"); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) next() message {
	p.t.Helper()
	select {
	case m, ok := <-p.out:
		if !ok {
			p.t.Fatalf("the output ended: %v", <-p.done)
		}
		return m
	case <-time.After(need.Patience):
		p.t.Fatal("no answer")
	}
	return message{}
}

// wantWorks sends a request and takes nothing but its answer.
func (p *peer) wantWorks(e era) {
	p.t.Helper()
	p.send(e.request(`"works"`, "tools/list", ""))
	if m := p.next(); string(m.ID) != `"works"` || !strings.Contains(string(m.Result), `"name":"ok"`) {
		p.t.Fatalf("the next request: id %s, result %s, error %+v", m.ID, m.Result, m.Error)
	}
}

func (p *peer) wantEnd() {
	p.t.Helper()
	select {
	case err := <-p.done:
		if err != nil {
			p.t.Errorf("Serve: %v", err)
		}
	case <-time.After(need.Patience):
		p.t.Fatal("Serve does not end")
	}
}

// TestBadFrames: each bad line is answered once or not at all, and the next
// request works.
func TestBadFrames(t *testing.T) {
	const none = "" // no id in the answer
	nested := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for _, e := range eras {
		t.Run(e.version, func(t *testing.T) {
			p := start(t, e)
			args := func(id, arguments string) string {
				return e.request(id, "tools/call", `"name":"ok","arguments":`+arguments)
			}
			for _, tt := range []struct {
				name, frame string
				code        int // 0: no answer
				id          string
			}{
				{"not JSON", "not json", -32700, none},
				{"half an object", `{"jsonrpc":"2.0","id":1,`, -32700, none},
				{"two objects", `{"jsonrpc":"2.0","id":1,"method":"ping"}{}`, -32700, none},
				{"not UTF-8", args("1", `{"a":"`+"\xff"+`"}`), -32700, none},
				{"a NUL", args("1", `{"a":"`+"\x00"+`"}`), -32700, none},
				{"a byte order mark", "\ufeff" + args("1", `{}`), -32700, none},
				{"batch", "[" + args("1", `{}`) + "]", -32600, none},
				{"empty batch", "[]", -32600, none},
				{"null", "null", -32600, none},
				{"a number", "1", -32600, none},
				{"a string", `"x"`, -32600, none},
				{"empty object", "{}", -32600, none},
				{"no jsonrpc", `{"id":7,"method":"tools/list"}`, -32600, "7"},
				{"other jsonrpc", `{"jsonrpc":"1.0","id":"x","method":"tools/list"}`, -32600, `"x"`},
				{"jsonrpc a number", `{"jsonrpc":2.0,"id":7,"method":"tools/list"}`, -32600, "7"},
				{"no method", `{"jsonrpc":"2.0","id":7}`, -32600, "7"},
				{"method null", `{"jsonrpc":"2.0","id":7,"method":null}`, -32600, "7"},
				{"method a number", `{"jsonrpc":"2.0","method":1}`, -32600, none},
				{"Method", `{"jsonrpc":"2.0","id":7,"Method":"tools/list"}`, -32600, "7"},
				{"method and result", `{"jsonrpc":"2.0","id":7,"method":"tools/list","result":{}}`, -32600, "7"},
				{"id null", args("null", `{}`), -32600, none},
				{"id true", args("true", `{}`), -32600, none},
				{"id an object", args(`{"a":1}`, `{}`), -32600, none},
				{"id an array", args(`[1]`, `{}`), -32600, none},
				{"id 1.5", args("1.5", `{}`), -32600, none},
				{"id 1.0", args("1.0", `{}`), -32600, none},
				{"id 1e0", args("1e0", `{}`), -32600, none},
				{"id 2^53", args("9007199254740992", `{}`), -32600, none},
				{"id beyond int64", args("18446744073709551616", `{}`), -32600, none},
				{"params an array", `{"jsonrpc":"2.0","id":7,"method":"tools/list","params":[1]}`, -32602, "7"},
				{"params a string", `{"jsonrpc":"2.0","id":7,"method":"tools/list","params":"x"}`, -32602, "7"},
				{"deep", args("7", `{"a":`+nested(protocol.MaxDepth)+`}`), -32600, "7"},
				{"very deep", args("7", `{"a":`+nested(20_000)+`}`), -32700, none},
				{"deep and open", strings.Repeat(`{"a":`, 100_000), -32700, none},
				{"too long", args("7", `{"a":"`+strings.Repeat("a", protocol.MaxFrame)+`"}`), -32600, none},
				{"many values", args("7", `{"a":[`+strings.Repeat("1,", protocol.MaxValues)+`1]}`), -32600, none},
				{"many keys", args("7", "{"+manyKeys(protocol.MaxValues)+"}"), -32600, none},
				{"many empty objects", args("7", `{"a":[`+strings.Repeat("{},", protocol.MaxValues/2)+`1]}`), -32600, none},

				{"notification with an array", `{"jsonrpc":"2.0","method":"notifications/progress","params":[]}`, 0, none},
				{"unknown notification", `{"jsonrpc":"2.0","method":"notifications/x"}`, 0, none},
				{"call without an id", `{"jsonrpc":"2.0","method":"tools/call","params":` + e.params(`"name":"block"`) + `}`, 0, none},
				{"cancelled without an id", `{"jsonrpc":"2.0","method":"notifications/cancelled"}`, 0, none},
				{"cancelled with an array", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":[1]}}`, 0, none},
				{"result for nobody", `{"jsonrpc":"2.0","id":1,"result":{}}`, 0, none},
				{"result without an id", `{"jsonrpc":"2.0","result":{}}`, 0, none},
				{"our own error back", `{"jsonrpc":"2.0","error":{"code":-32700,"message":"x"}}`, 0, none},
				{"error with id null", `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"x"}}`, 0, none},
				{"error of another shape", `{"id":1,"error":"x"}`, 0, none},
				{"blank", "", 0, none},
				{"blank, CRLF", " \t\r", 0, none},
			} {
				t.Run(tt.name, func(t *testing.T) {
					p.t = t
					p.send(tt.frame)
					if tt.code != 0 {
						m := p.next()
						if m.Error == nil || m.Error.Code != tt.code || string(m.ID) != tt.id || m.Error.Message == "" {
							t.Errorf("got id %q, result %s, error %+v, want id %q and code %d", m.ID, m.Result, m.Error, tt.id, tt.code)
						}
					}
					p.wantWorks(e)
				})
			}
			p.t = t
		})
	}
}

func manyKeys(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"%d":1,`, i)
	}
	return b.String() + `"a":1`
}

// TestGoodFrames: what looks odd but is good is answered with its own id.
func TestGoodFrames(t *testing.T) {
	for _, e := range eras {
		t.Run(e.version, func(t *testing.T) {
			p := start(t, e)
			for _, tt := range []struct{ name, frame, id string }{
				{"0", e.call("0", "ok"), "0"},
				{"-0", e.call("-0", "ok"), "0"},
				{"negative", e.call("-7", "ok"), "-7"},
				{"2^53-1", e.call("9007199254740991", "ok"), "9007199254740991"},
				{"-(2^53-1)", e.call("-9007199254740991", "ok"), "-9007199254740991"},
				{"empty string", e.call(`""`, "ok"), `""`},
				{"string of digits", e.call(`"1"`, "ok"), `"1"`},
				{"string with escapes", e.call(`"\u00e9\ud83d\ude00\\u0000"`, "ok"), `"é😀\\u0000"`},
				{"spaces", strings.ReplaceAll(e.call(" 5 ", "ok"), ",", " ,\t"), "5"},
				{"CRLF", e.call("6", "ok") + "\r", "6"},
				{"as deep as may be", e.request("7", "tools/call", `"name":"ok","arguments":{"a":`+strings.Repeat("[", protocol.MaxDepth-3)+strings.Repeat("]", protocol.MaxDepth-3)+`}`), "7"},
				{"one key in two objects", e.request("8", "tools/call", `"name":"ok","arguments":{"a":[{"a":1},{"a":1}],"b":{"a":"a"}}`), "8"},
				{"an escaped backslash before u0000", e.request("9", "tools/call", `"name":"ok","arguments":{"a":"\\u0000\\ud800"}`), "9"},
				{"many commas in a string", e.request("12", "tools/call", `"name":"ok","arguments":{"a":"`+strings.Repeat(`,[{\\\"`, 50_000)+`"}`), "12"},
				{"as many values as may be", e.request("13", "tools/call", `"name":"ok","arguments":{"a":[`+strings.Repeat("1,", protocol.MaxValues-50)+`1]}`), "13"},
				{"a key twice", e.request("14", "tools/call", `"name":"nope","name":"ok","arguments":{"a":1,"\u0061":2}`), "14"},
				{"id twice", `{"id":1,` + strings.TrimPrefix(e.call("15", "ok"), "{"), "15"},
				{"what no argument holds", e.request("16", "tools/call", `"name":"ok","arguments":{"a":"\u0000\ud800"}`), "16"},
				{"a pair", e.request("10", "tools/call", `"name":"ok","arguments":{"a":"\ud83d\ude00\u00e9"}`), "10"},
			} {
				t.Run(tt.name, func(t *testing.T) {
					p.t = t
					p.send(tt.frame)
					if m := p.next(); string(m.ID) != tt.id || !strings.Contains(string(m.Result), "fine") {
						t.Errorf("got id %s, result %s, error %+v", m.ID, m.Result, m.Error)
					}
				})
			}
			p.t = t
			longest := e.request("11", "tools/call", `"name":"ok","arguments":{"a":""}`)
			longest = strings.Replace(longest, `"a":"`, `"a":"`+strings.Repeat("a", protocol.MaxFrame-len(longest)), 1)
			p.send(longest)
			if m := p.next(); string(m.ID) != "11" || m.Error != nil {
				t.Errorf("the longest frame: %+v", m)
			}
		})
	}
}

// TestMethods: only what a server of tools has is there.
func TestMethods(t *testing.T) {
	for _, e := range eras {
		t.Run(e.version, func(t *testing.T) {
			p := start(t, e)
			stateless := 0
			if e.meta != "" {
				stateless = -32601
			}
			for _, tt := range []struct {
				method, members string
				code            int
			}{
				{"prompts/list", "", -32601},
				{"prompts/get", `"name":"x"`, -32601},
				{"resources/list", "", -32601},
				{"resources/templates/list", "", -32601},
				{"resources/read", `"uri":"file:///etc/passwd"`, -32601},
				{"resources/subscribe", `"uri":"x"`, -32601},
				{"resources/unsubscribe", `"uri":"x"`, -32601},
				{"completion/complete", `"ref":{"type":"ref/prompt","name":"x"},"argument":{"name":"a","value":"b"}`, -32601},
				{"logging/setLevel", `"level":"debug"`, -32601},
				{"tasks/list", "", -32601},
				{"Tools/list", "", -32601},
				{"", "", -32601},
				{"ping", "", stateless},
				{"server/discover", "", -32601 - stateless},
				{"tools/call", `"name":"nope"`, -32602},
				{"tools/call", `"name":"fail"`, -32603},
				{"tools/call", `"name":7`, -32602},
				{"notifications/initialized", "", -32600 + min(stateless, 0)/32601},
			} {
				p.send(e.request("1", tt.method, tt.members))
				m := p.next()
				code := 0
				if m.Error != nil {
					code = m.Error.Code
				}
				if code != tt.code || string(m.ID) != "1" {
					t.Errorf("%s: got id %s, %+v %s, want code %d", tt.method, m.ID, m.Error, m.Result, tt.code)
				}
			}
			p.wantWorks(e)
		})
	}
}

// TestTooEarly: before initialize, and twice.
func TestTooEarly(t *testing.T) {
	legacy := eras[3]
	p := serve(t)
	p.read()
	for _, frame := range []string{legacy.call("1", "ok"), legacy.request("1", "tools/list", ""), legacy.request("1", "prompts/list", "")} {
		p.send(frame)
		if m := p.next(); m.Error == nil || m.Error.Code != -32600 || string(m.ID) != "1" {
			t.Errorf("%s: %+v", frame, m.Error)
		}
	}
	initialize := `{"jsonrpc":"2.0","id":2,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
	for _, code := range []int{0, -32600} {
		p.send(initialize)
		if m := p.next(); (m.Error != nil) != (code != 0) || m.Error != nil && m.Error.Code != code {
			t.Errorf("initialize: %+v, want %d", m.Error, code)
		}
	}
	p.wantWorks(legacy)
}

// TestErrorsRepeatNothing of what the client sent, whoever makes them.
func TestErrorsRepeatNothing(t *testing.T) {
	const secret = "s3cret"
	version := func(v string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"` + v + `"}}}`
	}
	for _, e := range eras[3:] {
		p := start(t, e)
		for _, frame := range []string{
			e.request("1", "tools/call", `"name":7,"arguments":{"a":"s3cret"}`),
			e.request("1", "tools/call", `"name":{"a":"s3cret"}`),
			e.request("1", "tools/call", `"name":"s3cret"`),
			e.request("1", "tools/list", `"cursor":["s3cret"]`),
			e.request("1", "tools/list", `"cursor":"s3cret"`),
			e.request("1", "initialize", `"protocolVersion":{"s3cret":1}`),
			e.request("1", "s3cret", ""),
			e.request("1", "prompts/s3cret", ""),
			`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":["s3cret"],` + eras[4].meta + `}}`,
			`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":"s3cret"}`,
			version("s3cret, and more"), version(strings.Repeat("s3cret", 6)),
			e.call("1", "panic"), e.call("1", "fail"),
		} {
			p.send(frame)
			m := p.next()
			if m.Error == nil || len(m.Error.Message) > 200 || string(m.ID) != "1" {
				t.Fatalf("%s: id %s, %s %+v", frame, m.ID, m.Result, m.Error)
			}
			if strings.Contains(m.Error.Message+string(m.Error.Data), secret) || strings.Contains(m.Error.Message, "no code") {
				t.Errorf("%s: %s %s", frame, m.Error.Message, m.Error.Data)
			}
		}
		p.send(version("1900-01-01"))
		if m := p.next(); m.Error == nil || !strings.Contains(string(m.Error.Data), `"requested":"1900-01-01"`) {
			t.Errorf("the revision asked for: %+v", m.Error)
		}
		p.wantWorks(e)
	}
}

// TestCancel: a cancelled call, and no other, ends at once and has no answer;
// its id can be used again.
func TestCancel(t *testing.T) {
	for _, e := range eras {
		t.Run(e.version, func(t *testing.T) {
			p := start(t, e)
			cancel := func(id string) (took time.Duration) {
				cancelled := fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s,"reason":"no"}}`, id)
				p.send(cancelled) // too early: nobody's
				p.send(e.call(id, "block"))
				<-p.started
				for _, other := range []string{"6", "5.5", `"5"`, `{"id":5}`, "null"} {
					p.send(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}`, other))
				}
				p.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"RequestId":` + id + `}}`)
				p.wantWorks(e)
				select {
				case <-p.ended:
					t.Fatal("a call was cancelled by another's id")
				default:
				}
				begin := time.Now()
				p.send(cancelled)
				<-p.ended
				took = time.Since(begin)
				p.wantWorks(e)
				p.send(cancelled) // too late
				m := p.again(e.call(id, "ok"))
				if string(m.ID) != id || !strings.Contains(string(m.Result), "fine") {
					t.Errorf("the id again: %+v", m)
				}
				return took
			}
			for _, id := range []string{"5", `"x"`} {
				need.Within(t, 200*time.Millisecond, func() time.Duration { return cancel(id) })
			}
		})
	}
}

// again sends a frame until it is answered: the answer of a cancelled call has
// to be dropped first, for which there is no sign.
func (p *peer) again(frame string) message {
	p.t.Helper()
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		p.send(frame)
		if m := p.next(); m.Error == nil || time.Since(begin) > need.Patience {
			return m
		}
	}
}

// TestIDInUse: an answer is never mistaken for that of a running call.
func TestIDInUse(t *testing.T) {
	e := eras[4]
	p := start(t, e)
	p.send(e.call("5", "block"))
	<-p.started
	for _, frame := range []string{
		e.call("5", "ok"),
		`{"id":5,"method":"tools/list"}`, `{"jsonrpc":"2.0","id":5,"method":"tools/list","params":[]}`,
	} {
		p.send(frame)
		if m := p.next(); m.Error == nil || m.ID != nil {
			t.Errorf("%s: id %s, %+v", frame, m.ID, m.Error)
		}
	}
	p.wantWorks(e)
}

// TestTooManyCalls: the number of calls in flight is bounded, and a client
// can still cancel.
func TestTooManyCalls(t *testing.T) {
	e := eras[4]
	p := start(t, e)
	const most = 128
	for i := range most {
		p.send(e.call(fmt.Sprint(i), "block"))
	}
	for range most {
		<-p.started
	}
	p.send(e.call("1000", "ok"))
	if m := p.next(); m.Error == nil || m.Error.Code != -32603 || string(m.ID) != "1000" {
		t.Errorf("got %s %+v", m.ID, m.Error)
	}
	p.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}`)
	<-p.ended
	if m := p.again(e.call(`"again"`, "ok")); m.Error != nil {
		t.Errorf("after a cancel: %+v", m.Error)
	}
}

// TestEnd: at the end of input short requests are still answered, also one
// without a newline, and long ones are cancelled; the end of the context
// cancels them at once.
func TestEnd(t *testing.T) {
	e := eras[3]
	t.Run("input", func(t *testing.T) {
		p := start(t, e)
		p.send(e.call("1", "block"))
		<-p.started
		p.in.Close()
		p.wantEnd()
		<-p.ended
		if m, ok := <-p.out; ok {
			t.Errorf("after the end: %+v", m)
		}
	})
	t.Run("input, a short request", func(t *testing.T) {
		// Both have time limits, which a busy machine may miss.
		const most = 80 * time.Millisecond // less than if it always waited
		answered, best := false, time.Hour
		for deadline := time.Now().Add(need.Patience); (!answered || best > most) && time.Now().Before(deadline); {
			p := start(t, e)
			if _, err := io.WriteString(p.in, e.call("2", "ok")); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			p.in.Close()
			p.wantEnd()
			best = min(best, time.Since(begin))
			m, ok := <-p.out
			answered = answered || ok && string(m.ID) == "2" && strings.Contains(string(m.Result), "fine")
		}
		if !answered || best > most {
			t.Errorf("the last line is answered: %v; it took %s", answered, best)
		}
	})
	t.Run("context", func(t *testing.T) {
		p := start(t, e)
		p.send(e.call("1", "block"))
		<-p.started
		p.cancel()
		p.wantEnd()
		<-p.ended
	})
	t.Run("half a line", func(t *testing.T) {
		p := start(t, e)
		if _, err := io.WriteString(p.in, `{"jsonrpc":`); err != nil {
			t.Fatal(err)
		}
		p.in.Close()
		if m := p.next(); m.Error == nil || m.Error.Code != -32700 {
			t.Errorf("got %+v", m)
		}
		p.wantEnd()
	})
	t.Run("output closed", func(t *testing.T) {
		p := serve(t)
		p.reader.Close()
		p.send(e.request("1", "ping", ""))
		select {
		case err := <-p.done:
			if err == nil {
				t.Error("a client that is gone is no orderly end")
			}
		case <-time.After(need.Patience):
			t.Fatal("Serve does not end")
		}
	})
}

// TestNeverReads: a client that takes no answers is not listened to, costs no
// memory, and can't hold up the end.
func TestNeverReads(t *testing.T) {
	e := eras[4]
	for _, tt := range []struct {
		name     string
		requests int
		end      func(*peer)
	}{
		{"end of input", 64, func(p *peer) { p.in.Close() }}, // which can only be seen when all before it is read
		{"end of context", 64, func(p *peer) { p.cancel() }},
		{"end of context in a flood", 20_000, func(p *peer) { p.cancel() }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := serve(t)
			var taken atomic.Int64
			flooded := make(chan struct{})
			go func() {
				defer close(flooded)
				for i := range tt.requests {
					if _, err := fmt.Fprintln(p.in, e.call(fmt.Sprint(i), "large")); err != nil {
						return
					}
					taken.Add(1)
				}
			}()
			n := int64(-1)
			for now := taken.Load(); n < 64 && now < 64 || n != now; now = taken.Load() {
				n = now
				time.Sleep(200 * time.Millisecond)
			}
			if n > 1000 {
				t.Errorf("%d requests were taken, and no answer was", n)
			}
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			if m.HeapAlloc > 50<<20 { // 128 answers of 80 kB, twice
				t.Errorf("%d MiB of heap", m.HeapAlloc>>20)
			}
			tt.end(p)
			p.wantEnd()
			p.in.Close()
			<-flooded
		})
	}
}

// TestEndlessLine: a line of 1 GiB is skipped in bounded memory.
func TestEndlessLine(t *testing.T) {
	e := eras[4]
	p := start(t, e)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	size := 1 << 30
	if testing.Short() {
		size = 32 << 20
	}
	chunk := strings.Repeat("[", 1<<20)
	for range size >> 20 {
		if _, err := io.WriteString(p.in, chunk); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if grown := int64(after.TotalAlloc) - int64(before.TotalAlloc); grown > 16<<20 {
		t.Errorf("%d bytes were allocated", grown)
	}
	p.send("")
	if m := p.next(); m.Error == nil || m.Error.Code != -32600 || m.ID != nil {
		t.Errorf("got %+v", m)
	}
	p.wantWorks(e)
}

// TestWholeLines: answers of calls that run at once don't mix (the peer checks
// each line), and each has its own.
func TestWholeLines(t *testing.T) {
	e := eras[4]
	p := start(t, e)
	const n = 100
	go func() {
		for i := range n {
			fmt.Fprintf(p.in, "%s\nnoise\n", e.call(fmt.Sprint(i), "large"))
		}
	}()
	seen := map[string]int{}
	for range 2 * n {
		m := p.next()
		seen[string(m.ID)]++
	}
	for i := range n {
		if seen[fmt.Sprint(i)] != 1 {
			t.Errorf("call %d has %d answers", i, seen[fmt.Sprint(i)])
		}
	}
	if seen[""] != n {
		t.Errorf("%d lines of noise have %d answers", n, seen[""])
	}
}
