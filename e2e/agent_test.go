package e2e

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/internal/need"
)

// agent is an MCP client with the key that runs in the world.
type agent struct {
	t       *testing.T
	session *mcp.ClientSession
}

type withKey struct{ next http.RoundTripper }

func (k withKey) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-AIO-API-Key", key)
	return k.next.RoundTrip(r)
}

// newAgent connects one to the closed image.
func newAgent(t *testing.T, w *world) *agent { return newAgentOf(t, w, nil) }

// newAgentWithSession connects one of a protocol that has MCP sessions: it is another client than those with the same key.
func newAgentWithSession(t *testing.T, w *world) *agent {
	return newAgentOf(t, w, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
}

func newAgentOf(t *testing.T, w *world, options *mcp.ClientSessionOptions) *agent {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "e2e", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{
		Endpoint: "http://" + public + "/mcp", DisableStandaloneSSE: true,
		HTTPClient: &http.Client{Timeout: need.Patience, Transport: withKey{&http.Transport{DialContext: w.dial}}},
	}, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return &agent{t, session}
}

// said is what the tool answered.
type said struct {
	ExitCode       int `json:"exit_code"`
	Stdout, Stderr string
	Rule           string
}

// call calls browser-shell for a session of the tool.
func (a *agent) call(session string, argv ...string) said {
	a.t.Helper()
	r, err := a.session.CallTool(a.t.Context(), &mcp.CallToolParams{Name: "browser-shell", Arguments: map[string]any{"session_id": session, "argv": argv}})
	if err != nil {
		a.t.Fatalf("%q: %v", argv, err)
	}
	raw, err := json.Marshal(r.StructuredContent)
	if err != nil {
		a.t.Fatal(err)
	}
	var got said
	if err := json.Unmarshal(raw, &got); err != nil {
		a.t.Fatalf("%q: %v: %s", argv, err, raw)
	}
	got.Rule, _ = r.Meta["rule"].(string)
	return got
}

// must is call, for what has to work.
func (a *agent) must(session string, argv ...string) string {
	a.t.Helper()
	r := a.call(session, argv...)
	if r.ExitCode != 0 {
		a.t.Fatalf("%s: %q: %+v", session, argv, r)
	}
	return strings.TrimSpace(r.Stdout)
}
