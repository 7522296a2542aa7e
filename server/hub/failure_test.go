package hub

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/server/audit"
	"github.com/slimctl/slimctl/server/hub/guard"
	"github.com/slimctl/slimctl/server/protocol"
)

// TestFailuresHaveFourKeys: docs/mcp.md promises them for every result of the tool, also for one of a call that didn't
// reach it. Another server's tool has its own outputSchema, which clients check.
func TestFailuresHaveFourKeys(t *testing.T) {
	ours := &tool{fourKeys: func() bool {
		return hasFourKeys(&mcp.Tool{OutputSchema: map[string]any{"required": []string{"session_id", "exit_code", "stdout", "stderr"}}})
	}}
	foreign := &tool{fourKeys: func() bool {
		return hasFourKeys(&mcp.Tool{OutputSchema: map[string]any{"required": []string{"stdout"}}})
	}}
	busy := tooMany(fmt.Errorf("call: %w", &jsonrpc.Error{Code: protocol.CodeTooMany, Message: "128 requests are in flight", Data: json.RawMessage(protocol.TooMany)}))
	if busy == nil || tooMany(&jsonrpc.Error{Code: protocol.CodeTooMany, Message: "internal error"}) != nil {
		t.Fatal("a full server isn't told from a broken one")
	}
	for name, tt := range map[string]struct {
		f       *failure
		t       *tool
		args    string
		session string
		exit    float64 // 0: no structured content
	}{
		"log full":       {unrecorded(audit.ErrFull), ours, `{"session_id":"s","argv":["close"]}`, "s", 126},
		"log broken":     {unrecorded(errors.New("x")), ours, `{"session_id":"../x"}`, "", 126},
		"too many":       {busy, ours, `{"session_id":"s"}`, "s", 75},
		"policy":         {denied(&guard.Denial{Rule: "tool.blocked"}), ours, `[]`, "", 126},
		"timeout":        {&failure{name: "TIMEOUT", code: codeTimeout}, ours, ``, "", 124},
		"down":           {&failure{name: "SERVER_DOWN"}, ours, `{}`, "", 69},
		"executor":       {noExecutor("bash"), nil, `{"cmd":"id"}`, "", 126},
		"foreign server": {unrecorded(audit.ErrFull), foreign, `{"session_id":"s"}`, "", 0},
	} {
		res := tt.f.result(tt.t, json.RawMessage(tt.args))
		if !res.IsError || len(res.Content) != 1 || res.Meta["rule"] != tt.f.rule {
			t.Errorf("%s: %+v", name, res)
		}
		if tt.exit == 0 {
			if res.StructuredContent != nil {
				t.Errorf("%s: %s", name, res.StructuredContent)
			}
			continue
		}
		raw, _ := res.StructuredContent.(json.RawMessage)
		var keys map[string]any
		if err := json.Unmarshal(raw, &keys); err != nil || len(keys) != 4 || keys["session_id"] != tt.session || keys["exit_code"] != tt.exit || keys["stdout"] != "" || keys["stderr"] == "" {
			t.Errorf("%s: %s %v", name, raw, err)
		}
		if text := res.Content[0].(*mcp.TextContent).Text; text != string(raw) {
			t.Errorf("%s: the text is %s", name, text)
		}
	}
}
