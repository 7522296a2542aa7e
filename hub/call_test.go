package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/internal/need"
)

var eras = []string{newEra, lastLegacy}

// TestPairs: every pair of eras on both sides gets the same.
func TestPairs(t *testing.T) {
	for _, kind := range []string{"new", "old"} {
		h := one(t, kind, nil)
		for _, era := range eras {
			t.Run(era+" to "+kind, func(t *testing.T) {
				s := client(t, h.url, era, nil)
				if got := names(t, s); !slices.Contains(got, "echo") {
					t.Errorf("tools %v", got)
				}
				if got := s.InitializeResult().Instructions; !strings.Contains(got, "instructions of "+kind) {
					t.Errorf("instructions %q", got)
				}
				_, res := run(t, s, "structured", nil)
				got, _ := json.Marshal(res.StructuredContent)
				if string(got) != `{"list":[null,true],"n":1.5}` || res.Meta["own"] != "meta" {
					t.Errorf("structured %s %v", got, res.Meta)
				}
				if text, res := run(t, s, "bad", nil); text != "it went wrong" || !res.IsError {
					t.Errorf("isError: %q %v", text, res.IsError)
				}
				_, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "error"})
				var e *jsonrpc.Error
				if !errors.As(err, &e) || e.Code != 4242 || e.Message != "own words" || string(e.Data) != `{"why":["a",1]}` {
					t.Errorf("error %v", err)
				}
				r, err := s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "test://" + kind + "/5"})
				if err != nil || r.Contents[0].Text != "of "+kind {
					t.Errorf("resource %v %v", r, err)
				}
				_, err = s.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "test://" + kind + "/.ssh"})
				if !errors.As(err, &e) || e.Code != jsonrpc.CodeInvalidParams || !strings.Contains(string(e.Data), "arguments.path") {
					t.Errorf("a sensitive resource: %v", err)
				}
				if p, err := s.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "greet"}); err != nil || p.Description != kind {
					t.Errorf("prompt %v %v", p, err)
				}
				if _, err := s.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "greet", Arguments: map[string]string{"a": "/etc/shadow"}}); err == nil {
					t.Error("a prompt's argument may be a system file")
				}
				c, err := s.Complete(t.Context(), &mcp.CompleteParams{Ref: &mcp.CompleteReference{Type: "ref/prompt", Name: "greet"}, Argument: mcp.CompleteParamsArgument{Name: "a", Value: "v"}})
				if err != nil || !slices.Equal(c.Completion.Values, []string{"greetv"}) {
					t.Errorf("completion %v %v", c, err)
				}
			})
		}
	}
}

// TestMeta: what a request carries besides its arguments reaches the server, but nothing that would be of the wrong era
// there.
func TestMeta(t *testing.T) {
	for _, kind := range []string{"new", "old"} {
		h := one(t, kind, nil)
		for _, era := range eras {
			t.Run(era+" to "+kind, func(t *testing.T) {
				s := client(t, h.url, era, &mcp.ClientOptions{ElicitationHandler: accept})
				res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "echo", Arguments: json.RawMessage(`{"z":"1","a":12345678901234567890}`), Meta: mcp.Meta{"x": "y"}})
				if err != nil {
					t.Fatal(err)
				}
				args, meta, _ := strings.Cut(textOf(res), " ")
				var m map[string]any
				if err := json.Unmarshal([]byte(meta), &m); err != nil || args != `{"z":"1","a":12345678901234567890}` || m["x"] != "y" {
					t.Fatalf("%s %s: %v", args, meta, err)
				}
				caps, _ := m[mcp.MetaKeyClientCapabilities].(map[string]any)
				info, _ := m[mcp.MetaKeyClientInfo].(map[string]any)
				second := kind == "new" && era == lastLegacy // a link of the older era, for clients that can be asked
				if kind == "new" && !second && (info["name"] != "tester" || caps["elicitation"] == nil || m[mcp.MetaKeyProtocolVersion] != newEra) {
					t.Errorf("the server does not know the client: %s", meta)
				}
				if (kind == "old" || second) && len(m) != 1 {
					t.Errorf("the server gets what is not of its era: %s", meta)
				}
			})
		}
	}
}

func accept(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
	return &mcp.ElicitResult{Action: "accept"}, nil
}

// TestProgress: each call hears of its own progress alone, also when clients chose the same token, in order.
func TestProgress(t *testing.T) {
	for _, era := range eras {
		t.Run(era, func(t *testing.T) {
			h := one(t, "new", nil)
			var wg sync.WaitGroup
			for i := range 4 {
				wg.Go(func() {
					var mu sync.Mutex
					var heard []string
					s := client(t, h.url, era, &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
						mu.Lock()
						defer mu.Unlock()
						heard = append(heard, fmt.Sprint(r.Params.ProgressToken, r.Params.Message))
					}})
					args := fmt.Sprintf(`{"a":%d}`, i)
					p := &mcp.CallToolParams{Name: "progress", Arguments: json.RawMessage(args), Meta: mcp.Meta{"progressToken": "same"}}
					if _, err := s.CallTool(t.Context(), p); err != nil {
						t.Error(err)
					}
					// The last one may be lost or late: go-sdk's client handles an answer before what came before it.
					mu.Lock()
					defer mu.Unlock()
					for n, text := range heard {
						if text != fmt.Sprintf("same%s %d", args, n) {
							t.Errorf("heard %q", heard)
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// TestCancel: a cancelled call is cancelled at the server.
func TestCancel(t *testing.T) {
	h := one(t, "new", nil)
	for _, era := range eras {
		t.Run(era, func(t *testing.T) {
			s := client(t, h.url, era, nil)
			dir := t.TempDir()
			began, ended := filepath.Join(dir, "began"), filepath.Join(dir, "ended")
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				_, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "wait", Arguments: fields{"began": began, "ended": ended}})
				done <- err
			}()
			until(t, "the call runs", func() bool { return exists(began) })
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			until(t, "it is cancelled", func() bool { return exists(ended) })
		})
	}
}

func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	need.Eventually(t, ok, func() string { return "waited in vain: " + what })
}

// TestInput: a client is asked in the way of its own era, and the state of the newer one comes back as it was.
func TestInput(t *testing.T) {
	for _, tt := range []struct{ kind, era, tool, want string }{
		{"new", newEra, "input", "accept opaque"},
		{"new", lastLegacy, "ask", "accept"}, // over a second link
		{"old", lastLegacy, "input", "accept opaque"},
		{"old", lastLegacy, "ask", "accept"},
		{"single", lastLegacy, "ask", "accept"}, // there can be only one
		{"old", newEra, "ask", "no answer"},     // the client's era has no such request
	} {
		t.Run(tt.kind+" "+tt.era+" "+tt.tool, func(t *testing.T) {
			s := client(t, one(t, tt.kind, nil).url, tt.era, &mcp.ClientOptions{ElicitationHandler: accept})
			if text, _ := run(t, s, tt.tool, nil); !strings.HasPrefix(text, tt.want) {
				t.Errorf("answered %q", text)
			}
		})
	}
}

// TestAskOthers: while calls of two clients run, neither is asked what may be meant for the other.
func TestAskOthers(t *testing.T) {
	h := one(t, "old", nil)
	dir := t.TempDir()
	began := filepath.Join(dir, "began")
	waiting := client(t, h.url, lastLegacy, &mcp.ClientOptions{ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		t.Error("asked another's question")
		return nil, errors.New("not mine")
	}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := waiting.CallTool(ctx, &mcp.CallToolParams{Name: "wait", Arguments: fields{"began": began, "ended": filepath.Join(dir, "ended")}})
		done <- err
	}()
	until(t, "the call runs", func() bool { return exists(began) })
	s := client(t, h.url, lastLegacy, &mcp.ClientOptions{ElicitationHandler: accept})
	if text, _ := run(t, s, "ask", nil); !strings.Contains(text, "cannot be assigned to one client") {
		t.Errorf("answered %q", text)
	}
	cancel()
	<-done
}

// TestNews: log messages, changed lists and updated resources reach clients of both eras.
func TestNews(t *testing.T) {
	for _, kind := range []string{"new", "old"} {
		for _, era := range eras {
			t.Run(era+" to "+kind, func(t *testing.T) {
				h := one(t, kind, nil)
				heard := make(chan string, 100)
				s := client(t, h.url, era, &mcp.ClientOptions{
					LoggingMessageHandler:  func(_ context.Context, r *mcp.LoggingMessageRequest) { heard <- fmt.Sprint("log ", r.Params.Data) },
					ToolListChangedHandler: func(context.Context, *mcp.ToolListChangedRequest) { heard <- "tools" },
					ResourceUpdatedHandler: func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) { heard <- r.Params.URI },
				})
				await := func(want string) {
					t.Helper()
					until(t, want, func() bool {
						select {
						case got := <-heard:
							return got == want
						default:
							return false
						}
					})
				}
				meta := mcp.Meta{}
				if era == newEra {
					meta[mcp.MetaKeyLogLevel] = "info"
				} else if err := s.SetLoggingLevel(t.Context(), &mcp.SetLoggingLevelParams{Level: "info"}); err != nil {
					t.Fatal(err)
				}
				for range 100 { // each message comes right before its answer
					if _, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "log", Meta: mcp.Meta(meta)}); err != nil {
						t.Fatal(err)
					}
					await("log hello")
				}
				if err := s.Subscribe(t.Context(), &mcp.SubscribeParams{URI: "test://" + kind}); err != nil {
					t.Fatal(err)
				}
				until(t, "the subscription holds", func() bool {
					run(t, s, "touch", nil)
					select {
					case got := <-heard:
						return got == "test://"+kind
					default:
						return false
					}
				})
				run(t, s, "grow", nil)
				await("tools")
				if !slices.Contains(names(t, s), "grown") {
					t.Error("the new tool is not listed")
				}
			})
		}
	}
}

// TestNaming: clients see one form; calls may have the other, too.
func TestNaming(t *testing.T) {
	for _, tt := range []struct{ naming, want string }{{"server.tool", "a.echo"}, {"server__tool", "a__echo"}} {
		h := startHub(t, fields{"a": childEntry(t, "new", nil), "b": childEntry(t, "bare", nil)}, fields{"naming": tt.naming})
		s := client(t, h.url, newEra, nil)
		if got := names(t, s); !slices.Contains(got, tt.want) || !slices.Contains(got, strings.Replace(tt.want, "a", "b", 1)) {
			t.Errorf("%s: tools %v", tt.naming, got)
		}
		for _, name := range []string{"a.echo", "b__echo"} {
			if text, res := run(t, s, name, nil); res.IsError {
				t.Errorf("%s: %s", name, text)
			}
		}
		_, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "echo"})
		if err == nil || !strings.Contains(err.Error(), "unknown tool") {
			t.Errorf("a name without a server: %v", err)
		}
	}
}

// TestGuard: what is denied never reaches the server, and has a line that says so.
func TestGuard(t *testing.T) {
	h := startHub(t, fields{"slow": childEntry(t, "new", fields{"timeout": 0.2}), "fs": childEntry(t, "new", fields{"security": fields{"allowed_directories": []string{"/home/user/docs"}}}), "ro": childEntry(t, "old", fields{"security": fields{"read_only": true}})},
		fields{"mcp": fields{"security": fields{"whitelist_mode": true, "allowed_tools": []string{"fs.*", "ro.*", "slow.*"}, "blocked_tools": []string{"*.crash"}, "max_argument_size_bytes": 1000}}})
	s := client(t, h.url, newEra, nil)
	listed, seen := names(t, s), map[string]bool{}
	for _, tt := range []struct {
		tool      string
		arguments fields
		rule      string // "" is allowed
		listed    bool
	}{
		{"fs.echo", fields{"z": "/home/user/docs/readme.md"}, "", true},
		{"fs.echo", fields{"z": "/home/user/.ssh/id_rsa"}, "arguments.path", true},
		{"fs.echo", fields{"z": "/home/user/other"}, "arguments.path", true},
		{"fs.echo", fields{"z": "/etc/passwd"}, "arguments.path", true},
		{"fs.echo", fields{"z": strings.Repeat("x", 1000)}, "arguments.size", true},
		{"fs.echo", fields{"a": "no number"}, "arguments.schema", true},
		{"fs.crash", nil, "tool.blocked", false},
		{"ro.echo", nil, "", true},
		{"ro.structured", nil, "tool.blocked", false}, // no readOnlyHint
		{"slow.wait", nil, "call.timeout", true},
		{"fs.gone", nil, "tool.unknown", false},
	} {
		if got := slices.Contains(listed, tt.tool); got != tt.listed {
			t.Errorf("%s is listed: %v", tt.tool, got)
		}
		before := len(h.lines(t))
		rule := ""
		res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: tt.tool, Arguments: tt.arguments})
		if err != nil {
			rule = "tool.unknown"
		} else if res.IsError {
			rule, _ = res.Meta["rule"].(string)
		}
		if rule != tt.rule {
			t.Errorf("%s %v: rule %q, want %q (%v)", tt.tool, tt.arguments, rule, tt.rule, err)
		}
		lines := h.lines(t)[before:]
		deny := tt.rule == "tool.blocked" || tt.rule == "tool.unknown" || tt.rule == "arguments.path" || tt.rule == "arguments.size"
		if seen[tt.tool+rule] && deny {
			continue // the log counts a refusal like an earlier one, and writes the count later
		}
		seen[tt.tool+rule] = true
		if len(lines) != 1 || lines[0]["tool"] != tt.tool {
			t.Errorf("%s %v: lines %v", tt.tool, tt.arguments, lines)
			continue
		}
		if got := lines[0]["decision"] == "deny" && lines[0]["exit_code"] == 126.0 && lines[0]["rule"] == tt.rule; got != deny {
			t.Errorf("%s %v: %v", tt.tool, tt.arguments, lines[0])
		}
	}
}

// TestAuditAll: without audit_all_calls only what is denied or fails has a line.
func TestAuditAll(t *testing.T) {
	h := startHub(t, fields{"fs": childEntry(t, "new", nil)}, fields{"mcp": fields{"security": fields{"audit_all_calls": false}}})
	s := client(t, h.url, newEra, nil)
	before := len(h.lines(t))
	run(t, s, "fs.echo", nil)
	run(t, s, "fs.bad", nil)
	run(t, s, "fs.echo", fields{"z": "/etc/passwd"})
	lines := h.lines(t)[before:]
	if len(lines) != 2 || lines[0]["error_name"] != "tool_error" || lines[1]["rule"] != "arguments.path" {
		t.Errorf("lines %v", lines)
	}
}

// TestFilesystemServer: a server that others made, of the older era, once with all its tools and once with read_only.
// Tools that write are not listed then, and a call of one that the client knows by heart writes nothing.
func TestFilesystemServer(t *testing.T) {
	script := need.FilesystemServer(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.txt"), []byte("what is in it"), 0o600); err != nil {
		t.Fatal(err)
	}
	entry := func(readOnly bool) fields {
		return fields{"command": need.Program(t, "node"), "args": []string{script, dir}, "security": fields{"read_only": readOnly, "allowed_directories": []string{dir}}}
	}
	h := startHub(t, fields{"all": entry(false), "ro": entry(true)}, nil)
	for _, era := range eras {
		s := client(t, h.url, era, nil)
		listed := names(t, s)
		for _, tt := range []struct {
			tool, file   string
			listed, runs bool
		}{
			{"all.write_file", "new-" + era, true, true},
			{"ro.read_text_file", "a.txt", true, true},
			{"ro.read_text_file", "../b.txt", true, false},
			{"ro.write_file", "never", false, false},
		} {
			if slices.Contains(listed, tt.tool) != tt.listed {
				t.Errorf("%s is listed: %v (%v)", tt.tool, !tt.listed, listed)
			}
			arguments := fields{"path": dir + "/" + tt.file}
			if strings.HasSuffix(tt.tool, "write_file") {
				arguments["content"] = "written"
			}
			text, res := run(t, s, tt.tool, arguments)
			if res.IsError == tt.runs || strings.HasSuffix(tt.tool, "text_file") && tt.runs && !strings.Contains(text, "what is in it") {
				t.Errorf("%s %s: %s", tt.tool, tt.file, text)
			}
		}
		if !exists(filepath.Join(dir, "new-"+era)) || exists(filepath.Join(dir, "never")) {
			t.Errorf("%s: the wrong call wrote", era)
		}
	}
}
