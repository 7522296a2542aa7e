package upstream

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/server/process"
)

// role makes the test binary one of the servers below.
const role = "UPSTREAM_TEST_ROLE"

var roles = map[string]func(){
	"good":     serve,
	"noisy":    beNoisy,
	"silent":   func() { _, _ = io.Copy(io.Discard, os.Stdin) },
	"exits":    func() { fmt.Fprintln(os.Stderr, "no such display"); os.Exit(3) },
	"stubborn": beStubborn,
	"forking":  func() { fork("0"); fork("1"); serve() },
	"strict":   func() { beOld(func() { os.Exit(1) }) },
	"mute":     func() { beOld(func() {}) },
	"deaf":     beDeaf,
	"closes":   func() { os.Stdout.Close(); _, _ = io.Copy(io.Discard, os.Stdin) },
	"flooding": beFlooding,
	"asking":   beAsking,
	"env":      func() { fmt.Fprintf(os.Stderr, "%q\n", os.Environ()); serve() },
	"rude":     beRude,
	"sleeper":  func() { time.Sleep(time.Minute) },
	"parent":   beParent,
	"cycling":  beCycling,
	"hollow":   beHollow,

	"talkative": beTalkative,
}

func TestMain(m *testing.M) {
	if r := os.Getenv(role); r != "" {
		roles[r]()
		return
	}
	os.Exit(m.Run())
}

type nothing struct{}

type text struct {
	Text string `json:"text"`
}

// serve is a server with go-sdk.
func serve() {
	s := mcp.NewServer(&mcp.Implementation{Name: "stub", Version: "1"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "echo"}, func(_ context.Context, _ *mcp.CallToolRequest, in text) (*mcp.CallToolResult, text, error) {
		return nil, in, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "die"}, func(context.Context, *mcp.CallToolRequest, nothing) (*mcp.CallToolResult, nothing, error) {
		os.Exit(7)
		panic("unreachable")
	})
	mcp.AddTool(s, &mcp.Tool{Name: "wait"}, func(ctx context.Context, _ *mcp.CallToolRequest, _ nothing) (*mcp.CallToolResult, nothing, error) {
		<-ctx.Done()
		return nil, nothing{}, ctx.Err()
	})
	mcp.AddTool(s, &mcp.Tool{Name: "huge"}, func(context.Context, *mcp.CallToolRequest, nothing) (*mcp.CallToolResult, any, error) {
		return hugeResult(), nil, nil
	})
	_ = s.Run(context.Background(), &mcp.StdioTransport{})
}

// hugeResult returns a result that no line may hold.
func hugeResult() *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: strings.Repeat("x", 2*maxLine)}}}
}

func beNoisy() {
	fmt.Print("Starting up...\n{\"level\":\"info\"}\n[]\n[1,2]\nnull\n\"x\"\n\x00\xff\xfe\n\n\r\n{\"jsonrpc\":\"2.0\"}\n")
	fmt.Print("{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":{}}\n{\"jsonrpc\":\"1.0\",\"id\":1,\"result\":{}}\n")
	fmt.Println(strings.Repeat("[", 20_000))
	fmt.Println(strings.Repeat("{\"a\":", 9_000) + "1" + strings.Repeat("}", 9_000))
	fmt.Println(`{"jsonrpc":"2.0","id":99,"result":{}}`)       // of no request
	fmt.Println(`{"jsonrpc":"2.0","method":"no/such/method"}`) // of no revision
	fmt.Println(`[{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"batch"}}]`)
	fmt.Println("long " + strings.Repeat("x", maxLine))
	go func() {
		for range time.Tick(time.Millisecond) {
			fmt.Print("late noise\n")
		}
	}()
	serve()
}

func beStubborn() {
	signal.Ignore(syscall.SIGTERM)
	serve()
	forever()
}

// fork starts a program in a session of its own that holds our pipes, ignores
// SIGTERM, and has our environment but for "-": then it has none.
func fork(name string) {
	cmd := exec.Command("/bin/sh", "-c", `trap '' TERM HUP; while :; do sleep 60; done`, name)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if name == "-" {
		cmd.Env = []string{}
	}
	if err := cmd.Start(); err != nil {
		panic(err)
	}
}

// beParent is a hub with a program that doesn't notice the end of its stdin.
func beParent() {
	c, err := process.Start(process.Program{Path: "/proc/self/exe", Env: []string{role + "=sleeper"}})
	if err != nil {
		panic(err)
	}
	fmt.Println(c.PID)
	forever()
}

// beOld is a server that knows initialize, tools/list and no more.
func beOld(otherwise func()) {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var req struct {
			ID     any
			Method string
		}
		_ = json.Unmarshal(lines.Bytes(), &req)
		switch req.Method {
		case "initialize":
			answer(req.ID, `{"protocolVersion":"2025-06-18","capabilities":{},"serverInfo":{"name":"old","version":"0"}}`)
		case "notifications/initialized":
		default:
			otherwise()
		}
	}
}

func answer(id any, result string) {
	n, _ := json.Marshal(id)
	fmt.Printf(`{"jsonrpc":"2.0","id":%s,"result":%s}`+"\n", n, result)
}

// beRude refuses with many words.
func beRude() {
	words, _ := json.Marshal(strings.Repeat("no\nhub: all is well\x1b[2J", 100_000))
	for i, lines := 1, bufio.NewScanner(os.Stdin); lines.Scan(); i++ {
		fmt.Printf(`{"jsonrpc":"2.0","id":%d,"error":{"code":-32600,"message":%s}}`+"\n", i, words)
	}
}

// beDeaf answers the first request and reads nothing more.
func beDeaf() {
	_, _ = bufio.NewReaderSize(os.Stdin, 16).ReadString('\n')
	answer(1, `{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}`)
	forever()
}

// beFlooding sends notifications as fast as it can.
func beFlooding() {
	line := `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}` + "\n"
	go func() {
		for many := strings.Repeat(line, 30); ; { // less than a pipe writes at once
			_, _ = os.Stdout.WriteString(many)
			runtime.Gosched() // with little of a processor, its answers would wait for stdout for ever
		}
	}()
	serve()
}

// beAsking sends many requests, and some twice.
func beAsking() {
	for i := range 2 * maxCalls {
		fmt.Printf(`{"jsonrpc":"2.0","id":"q%d","method":"elicitation/create","params":{"message":"m","requestedSchema":{"type":"object","properties":{}}}}`+"\n", i/2)
	}
	for i := range 2 * maxCalls {
		fmt.Printf(`{"jsonrpc":"2.0","id":%d,"method":"elicitation/create","params":{"message":"m","requestedSchema":{"type":"object","properties":{}}}}`+"\n", 1000+i)
	}
	serve()
}

// beHollow says everything that a client understands without its parameters.
func beHollow() {
	go func() {
		for _, params := range []string{"", `,"params":null`} {
			for _, method := range notes {
				fmt.Printf(`{"jsonrpc":"2.0","method":%q%s}`+"\n", method, params)
			}
			for _, method := range []string{"ping", "roots/list", "sampling/createMessage", "elicitation/create"} {
				fmt.Printf(`{"jsonrpc":"2.0","id":"own %s","method":%q%s}`+"\n", method, method, params)
			}
		}
		fmt.Println(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"test://last"}}`)
	}()
	serve()
}

// beTalkative says something now and then.
func beTalkative() {
	go func() {
		for range time.Tick(time.Millisecond) {
			fmt.Println(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"here"}}`)
		}
	}()
	serve()
}

// forever stays. Without cgo the runtime calls select {} a deadlock, and ends the program.
func forever() { time.Sleep(math.MaxInt64) }
