package e2e

import (
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

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

// newAgentWithSession connects one of a protocol that has MCP sessions: another client than those with the same key.
func newAgentWithSession(t *testing.T, w *world) *agent {
	return newAgentOf(t, w, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
}

func newAgentOf(t *testing.T, w *world, options *mcp.ClientSessionOptions) *agent {
	t.Helper()
	a, err := connectAgent(t, w, options)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func connectAgent(t *testing.T, w *world, options *mcp.ClientSessionOptions) (*agent, error) {
	client := mcp.NewClient(&mcp.Implementation{Name: "e2e", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{
		Endpoint: "http://" + public + "/mcp", DisableStandaloneSSE: true,
		HTTPClient: &http.Client{Timeout: need.Patience, Transport: withKey{&http.Transport{DialContext: w.dial}}},
	}, options)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = session.Close() })
	return &agent{t, session}, nil
}

// timeLimit matches the words of a call that failed for its time alone: browser-shell's, and those of agent-browser, which on
// Node allows a page 10 s, however busy the machine is.
var timeLimit = regexp.MustCompile(`(?i)\btime(d )?out\b|\bin time\b|cannot be checked`)

// repeats reports whether a call that failed is made again: its time was too short, and made twice it does no more than once.
func repeats(t *testing.T, began time.Time, argv []string, words string) bool {
	t.Helper()
	harmless := slices.Contains([]string{"close", "fill", "focus", "open", "screenshot", "snapshot", "wait"}, argv[0])
	if !harmless || !timeLimit.MatchString(words) || time.Since(began) > 2*need.Patience {
		return false
	}
	t.Logf("%q is repeated: %s", argv, words)
	return true
}

// click clicks, and waits for what comes of it. One that failed for its time may have clicked, so it is made again only if
// nothing came.
func (a *agent) click(session, selector, what string, came func() error) {
	a.t.Helper()
	began := time.Now()
	for r := a.call(session, "click", selector); r.ExitCode != 0; r = a.call(session, "click", selector) {
		if !timeLimit.MatchString(r.Stderr) || time.Since(began) > need.Patience {
			a.t.Fatalf("%s: click %s: %+v", session, selector, r)
		}
		if came() == nil {
			return
		}
	}
	await(a.t, need.Patience, what, came)
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
	got, err := a.try(session, argv...)
	if err != nil {
		a.t.Fatalf("%q: %v", argv, err)
	}
	return got
}

// try is call, for what may not reach the tool.
func (a *agent) try(session string, argv ...string) (got said, err error) {
	a.t.Helper()
	r, err := a.session.CallTool(a.t.Context(), &mcp.CallToolParams{Name: "browser-shell", Arguments: map[string]any{"session_id": session, "argv": argv}})
	if err != nil {
		return got, err
	}
	raw, err := json.Marshal(r.StructuredContent)
	if err != nil {
		a.t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &got); err != nil {
		a.t.Fatalf("%q: %v: %s", argv, err, raw)
	}
	got.Rule, _ = r.Meta["rule"].(string)
	return got, nil
}

// must is call, for what has to work.
func (a *agent) must(session string, argv ...string) string {
	a.t.Helper()
	began := time.Now()
	r := a.call(session, argv...)
	for r.ExitCode != 0 && repeats(a.t, began, argv, r.Stderr) {
		r = a.call(session, argv...)
	}
	if r.ExitCode != 0 {
		a.t.Fatalf("%s: %q: %+v", session, argv, r)
	}
	return strings.TrimSpace(r.Stdout)
}
