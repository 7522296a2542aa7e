package main_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// post sends one request of the newer era, whose client says of itself what it likes.
func (h *running) post(t *testing.T, id int, client string, argv ...string) string {
	t.Helper()
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": map[string]any{
		"name": "browser-shell", "arguments": map[string]any{"session_id": "s", "argv": argv},
		"_meta": map[string]any{
			"io.modelcontextprotocol/protocolVersion":    "2026-07-28",
			"io.modelcontextprotocol/clientCapabilities": map[string]any{},
			"io.modelcontextprotocol/clientInfo":         map[string]any{"name": client, "version": client},
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.url, strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "browser-shell",
	} {
		req.Header.Set(k, v)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			return text
		}
		if strings.HasPrefix(lines.Text(), "{") {
			return lines.Text()
		}
	}
	return ""
}

func (l *lab) auditFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(l.state, "audit.jsonl*"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestAuditCannotBeEmptied is the attack of a client that wants the line of one call gone: hundreds of others that are denied,
// with as many control characters as fit in its name, its arguments and its session.
func TestAuditCannotBeEmptied(t *testing.T) {
	t.Parallel()
	const bytes, denied = 1 << 16, 180
	l := newLab(t)
	l.policy["audit"] = map[string]any{"file": "", "max_bytes": bytes, "keep": 1}
	h := startServe(t, l)
	if res := h.post(t, 1, "evidence", "open", "https://example.com"); !strings.Contains(res, `"exit_code":0`) {
		t.Fatal(res)
	}
	begin := time.Now()
	for i := range denied {
		h.post(t, i+2, strings.Repeat("\x01", 4096), "eval", fmt.Sprint(i), strings.Repeat("\x01", 2000))
	}
	h.stop(t)
	files := l.auditFiles(t)
	out, err := exec.Command(binary, append([]string{"audit", "verify"}, files...)...).CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
	var all string
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all += string(text)
	}
	if !strings.Contains(all, `"client":{"name":"evidence"`) || !strings.Contains(all, `"seq":1,`) {
		t.Errorf("the first line is gone; left are %d files, %d bytes", len(files), len(all))
	}
	if len(all) > bytes*int(1+time.Since(begin)/time.Minute) { // each minute has a line for each kind
		t.Errorf("%d denied calls wrote %d bytes", denied, len(all))
	}
	// What was denied is counted to the last one.
	counted := map[string]int{}
	for line := range strings.Lines(all) {
		var a struct {
			Decision string
			Rule     string
			Data     struct{ Count int }
		}
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			t.Fatal(err)
		}
		if a.Decision == "deny" {
			counted[a.Rule] += max(a.Data.Count, 1)
		}
	}
	n := 0
	for _, c := range counted {
		n += c
	}
	if n != denied {
		t.Errorf("%d denials are counted: %v", n, counted)
	}
}

// TestFullAuditLog: a log without room stops calls and says so everywhere, loses no line, and goes on when a collector has
// taken older files away.
func TestFullAuditLog(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.policy["audit"] = map[string]any{"file": "", "max_bytes": 1 << 16, "keep": 1}
	h := startServe(t, l)
	s := h.connect(t)
	do := func(argv ...string) *mcp.CallToolResult {
		res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "browser-shell", Arguments: map[string]any{"session_id": "s", "argv": argv}})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	if res := do("open", "https://example.com"); res.IsError {
		t.Fatalf("%+v", res)
	}
	ran := 1
	var res *mcp.CallToolResult
	for range 1000 { // a call's line has more than 131 bytes
		if res = do("snapshot"); res.Meta["rule"] == "audit.full" {
			break
		}
		if !res.IsError {
			ran++
		}
	}
	if text := res.Content[0].(*mcp.TextContent).Text; !strings.Contains(text, "audit log is full") || res.Meta["code"] != float64(-32004) {
		t.Errorf("%s %+v", text, res)
	}
	if res := do("snapshot"); res.Meta["rule"] != "audit.full" {
		t.Errorf("%+v", res)
	}
	health, err := http.Get(strings.TrimSuffix(h.url, "/mcp") + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	defer health.Body.Close()
	if text, _ := io.ReadAll(health.Body); health.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(text), "audit log is full") {
		t.Errorf("health: %s %s", health.Status, text)
	}
	old, err := filepath.Glob(filepath.Join(l.state, "audit.jsonl.*"))
	if err != nil || len(old) != 1 {
		t.Fatalf("%q %v", old, err)
	}
	taken := filepath.Join(l.dir, "collected.jsonl")
	if err := os.Rename(old[0], taken); err != nil {
		t.Fatal(err)
	}
	if res := do("snapshot"); res.IsError {
		t.Errorf("with room again: %+v", res)
	}
	ran++
	h.stop(t)
	files := append([]string{taken}, l.auditFiles(t)...)
	out, err := exec.Command(binary, append([]string{"audit", "verify"}, files...)...).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "whole") {
		t.Errorf("%v: %s", err, out)
	}
	lines := 0
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		lines += strings.Count(string(text), `"event":"TOOL_FINISHED"`)
	}
	if lines != ran {
		t.Errorf("%d lines of %d calls that ran", lines, ran)
	}
	// A collector of the output has the last line of all, by which a log is known that was cut.
	last := h.out.String()
	last = last[strings.LastIndex(strings.TrimSuffix(last, "\n"), "\n")+1:]
	var a struct {
		Event, File, Head string
		Seq               int64
	}
	if err := json.Unmarshal([]byte(last), &a); err != nil || a.Event != "AUDIT_ANCHOR" || a.File != "audit.jsonl" {
		t.Fatalf("%s: %v", last, err)
	}
	verify := func(files ...string) error {
		return exec.Command(binary, append([]string{"audit", "verify", "--anchor", fmt.Sprintf("%d:%s", a.Seq, a.Head)}, files...)...).Run()
	}
	if err := verify(files...); err != nil {
		t.Errorf("by the anchor %+v: %v", a, err)
	}
	if err := verify(files[:1]...); err == nil {
		t.Error("the end is missing")
	}
}
