package acceptance

import (
	"bytes"
	"context"
	"encoding/json"
	"image"
	"image/color"
	"image/png"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/server/policy"
)

func TestNewSite(t *testing.T) {
	for policy, want := range map[string]string{
		`{"version": 1}`: "example.com",
		`{"version": 1, "open": {"allow_hosts": ["*.shop.test", "x.test"]}}`:                           "slimctl.shop.test",
		`{"version": 1, "open": {"allow_hosts": ["pay.test"]}}`:                                        "pay.test",
		`{"version": 1, "open": {"allow_schemes": ["https"], "allow_hosts": ["*"]}}`:                   "",
		`{"version": 1, "open": {"allow_hosts": ["localhost", "ok.test"], "allow_schemes": ["http"]}}`: "ok.test",
		`{`: "", ``: "", `{"version": 1, "open": {"allow_hosts": [`: "",
	} {
		s, err := newSite([]byte(policy))
		if got := ""; err == nil {
			if got = s.host; got != want {
				t.Errorf("%s: host %q, want %q", policy, got, want)
			}
		} else if want != "" {
			t.Errorf("%s: %v", policy, err)
		}
	}
}

// picture is a PNG whose first pixel has one colour and the others another.
func picture(t *testing.T, width, height int, others color.Color) []byte {
	t.Helper()
	p := image.NewPaletted(image.Rect(0, 0, width, height), color.Palette{color.White, others})
	p.SetColorIndex(width-1, height-1, 1)
	var b bytes.Buffer
	if err := png.Encode(&b, p); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestClientPatience: an answer that takes a call's whole time, and what the tool looks at after it, is heard.
func TestClientPatience(t *testing.T) {
	call := time.Duration(policy.Default().Limits.TimeoutSec) * time.Second
	if waits := boxAt(t, http.NotFoundHandler()).client(nil).Timeout; waits < call+20*time.Second {
		t.Errorf("the client waits %s, and a call has %s", waits, call)
	}
}

// TestBrowse: a tool that does no work is found, in its own words, whatever it claims.
func TestBrowse(t *testing.T) {
	shot := picture(t, 40, 30, color.Black)
	type answer struct {
		code           int
		stdout, stderr string
		image          []byte
	}
	late := 4
	for name, c := range map[string]struct {
		change func(s *site, argv []string, a *answer)
		want   string // in the finding; none: it works
	}{
		"it works": {func(*site, []string, *answer) {}, ""},
		"a busy machine": {func(_ *site, argv []string, a *answer) {
			if argv[0] == "open" && late > 0 {
				late--
				*a = answer{code: 124, stderr: "TIMEOUT (-32007) timeout.run: the command did not finish in time"}
			}
		}, ""},
		"a dead daemon": {func(_ *site, argv []string, a *answer) {
			if argv[0] == "open" {
				*a = answer{code: 1, stderr: "Failed to start daemon\x1b[2J"}
			}
		}, `"Failed to start daemon\x1b[2J"`},
		"a bad certificate": {func(_ *site, argv []string, a *answer) {
			if strings.HasPrefix(argv[len(argv)-1], "https:") {
				*a = answer{}
			}
		}, "open https://example.com/ succeeded, although its certificate is self-signed"},
		"no NSS": {func(_ *site, argv []string, a *answer) {
			if strings.HasPrefix(argv[len(argv)-1], "https:") {
				*a = answer{code: 69, stderr: "Chromium has ended or hangs"}
			}
		}, "exit code 69 for another reason than its self-signed certificate"},
		"another page": {func(_ *site, argv []string, a *answer) {
			a.stdout = strings.ReplaceAll(a.stdout, "page", "stage")
		}, "the snapshot lacks the page's button"},
		"no click": {func(s *site, argv []string, _ *answer) {
			if argv[0] == "click" {
				<-s.told
			}
		}, "the page received no click"},
		"another text": {func(s *site, argv []string, _ *answer) {
			if argv[0] == "click" {
				<-s.told
				s.told <- "another"
			}
		}, `and the page received "another"`},
		"a blank picture":  {func(_ *site, _ []string, a *answer) { a.image = picture(t, 40, 30, color.White) }, "is blank"},
		"no picture":       {func(_ *site, _ []string, a *answer) { a.image = []byte("\x89PNG\r\n") }, "is not a PNG"},
		"half a picture":   {func(_ *site, _ []string, a *answer) { a.image = shot[:len(shot)-20] }, "is not a PNG"},
		"a picture bomb":   {func(_ *site, _ []string, a *answer) { a.image = picture(t, 20_000, 1000, color.Black) }, "20000 x 1000 pixels"},
		"an empty picture": {func(_ *site, _ []string, a *answer) { a.image = []byte{} }, "is not a PNG"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := newSite([]byte(`{"version": 1}`))
			if err != nil {
				t.Fatal(err)
			}
			page := httptest.NewServer(s)
			defer page.Close()
			typed := ""
			server := mcp.NewServer(&mcp.Implementation{Name: "x", Version: "1"}, nil)
			server.AddTool(&mcp.Tool{Name: "browser-shell", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				var in struct{ Argv []string }
				if err := json.Unmarshal(r.Params.Arguments, &in); err != nil {
					return nil, err
				}
				a := answer{}
				switch in.Argv[0] {
				case "open":
					if strings.HasPrefix(in.Argv[1], "https:") {
						a = answer{code: 1, stderr: "UNREACHABLE (-32003) site.tls: the site has no valid certificate"}
					}
				case "snapshot":
					res, err := http.Get(page.URL)
					if err != nil {
						return nil, err
					}
					defer res.Body.Close()
					text, _ := io.ReadAll(res.Body)
					a.stdout = string(text)
				case "fill":
					typed = in.Argv[2]
				case "click":
					res, err := http.Post(page.URL+"/told", "text/plain", strings.NewReader(typed))
					if err != nil {
						return nil, err
					}
					res.Body.Close()
				case "screenshot":
					a.image = shot
				}
				c.change(s, in.Argv, &a)
				out := &mcp.CallToolResult{StructuredContent: map[string]any{"exit_code": a.code, "stdout": a.stdout, "stderr": a.stderr}}
				if a.image != nil && in.Argv[0] == "screenshot" {
					out.Content = []mcp.Content{&mcp.ImageContent{Data: a.image, MIMEType: "image/png"}}
				}
				return out, nil
			})
			b := boxAt(t, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
			b.site = s
			session, err := b.connect(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer session.Close()
			b.browse(t.Context(), session, "browser-shell")
			said := ""
			for _, f := range b.findings {
				said += f.Rule + ": " + f.Message + "\n"
			}
			if c.want == "" && said != "" || !strings.Contains(said, c.want) || c.want != "" && !strings.HasPrefix(said, "run-tool: ") || strings.Contains(said, "\x1b") {
				t.Errorf("found %q, want %q", said, c.want)
			}
		})
	}
}
