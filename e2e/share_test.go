package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/assets"
	"github.com/slimctl/slimctl/internal/need"
)

// impatient is the image's policy, but that a session may be held for ten seconds only while another client waits for one.
func impatient(t *testing.T) []byte {
	t.Helper()
	text, err := assets.FS.ReadFile("policy/browser-shell.policy.json")
	if err != nil {
		t.Fatal(err)
	}
	var policy map[string]any
	if err := json.Unmarshal(text, &policy); err != nil {
		t.Fatal(err)
	}
	limits := policy["limits"].(map[string]any)
	limits["session_hold_sec"], limits["max_sessions"] = 10, 1 // as with agent-browser on Node
	if text, err = json.Marshal(policy); err != nil {
		t.Fatal(err)
	}
	return text
}

// testShare: a client that makes refused calls without end keeps another with the same key from nothing, and one that holds the only
// session and works in it without end keeps it no longer than the policy says.
func testShare(t *testing.T, b *box) {
	site := &httptest.Server{Listener: b.w.listen(t, siteIP+":80"), Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `<!doctype html><title>fine</title>fine`)
	})}}
	site.Start()
	defer site.Close()
	const address = "http://" + siteIP + "/"
	greedy, holder, other := newAgentWithSession(t, b.w), newAgentWithSession(t, b.w), newAgentWithSession(t, b.w)

	ctx, stop := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	var refused, pause atomic.Int64
	defer func() {
		stop()
		calls.Wait()
	}()
	repeat := func(a *agent, session string, argv ...string) {
		calls.Go(func() {
			for ctx.Err() == nil {
				r, err := a.session.CallTool(ctx, &mcp.CallToolParams{Name: "browser-shell", Arguments: map[string]any{"session_id": session, "argv": argv}})
				if err == nil && r.IsError {
					refused.Add(1)
				}
				time.Sleep(time.Duration(pause.Load()))
			}
		})
	}
	for i := range 4 {
		repeat(greedy, fmt.Sprint("none", i), "open", "http://127.0.0.1:9222/")
		repeat(greedy, "a", "eval", "1")
	}
	await(t, need.Patience, "refused calls", func() error {
		if n := refused.Load(); n < 100 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	other.must("b", "open", address)
	other.must("b", "close")
	pause.Store(int64(500 * time.Millisecond)) // who calls now and then isn't idle either, and leaves others the processor

	holder.must("a", "open", address)
	repeat(holder, "a", "snapshot") // so it is never idle
	began := refused.Load()
	await(t, need.Patience, "a session for the other client", func() error {
		r := other.call("b", "open", address)
		if r.ExitCode != 0 && r.Rule != "sessions.count" && !timeLimit.MatchString(r.Stderr) {
			t.Fatalf("the other client is refused: %+v", r)
		}
		if r.ExitCode != 0 {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	t.Logf("%d calls were refused, %d of them while the other client waited", refused.Load(), refused.Load()-began)
	stop()
	calls.Wait()
	if r := holder.call("a", "snapshot"); r.ExitCode == 0 {
		t.Errorf("two clients have the one session: %+v", r)
	}
	other.must("b", "close")
}
