package mcp_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slimctl/slimctl/assets"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/mcp"
	"github.com/slimctl/slimctl/internal/ocitest"
	"github.com/slimctl/slimctl/internal/standin"
)

func read(t testing.TB, img *tree.Image, programs ...string) *mcp.Report {
	t.Helper()
	r, err := mcp.Read(t.Context(), img, programs)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// files makes an image: path, content, path, content.
func files(t testing.TB, pairs ...string) *tree.Image {
	t.Helper()
	var all []image.File
	for i := 0; i < len(pairs); i += 2 {
		all = append(all, image.Bytes(pairs[i], 0o644, []byte(pairs[i+1])))
	}
	img, err := tree.FromFiles(t.Context(), nil, all...)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func base(t testing.TB, line string) *tree.Image {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "base")
	if _, err := standin.Write(t.Context(), dir, standin.Options{Line: line, Platforms: []string{"linux/amd64"}}); err != nil {
		t.Fatal(err)
	}
	img, err := tree.Cache{}.Open(t.Context(), ocitest.Layout(t, dir)["linux/amd64"], tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

const hub = "/opt/gem/mcp-hub.json"

// TestLines goes from facts/aio-base.md section 5.
func TestLines(t *testing.T) {
	sandboxA := []string{
		"sandbox_browser_execute_action", "sandbox_browser_screenshot", "sandbox_convert_to_markdown", "sandbox_execute_bash", "sandbox_execute_code",
		"sandbox_file_operations", "sandbox_get_browser_info", "sandbox_get_context", "sandbox_get_packages", "sandbox_str_replace_editor",
	}
	sandboxB := []string{
		"browser_get_info", "browser_gui_execute_action", "browser_gui_screenshot", "sandbox_convert_to_markdown", "sandbox_execute_bash",
		"sandbox_execute_code", "sandbox_file_operations", "sandbox_get_context", "sandbox_get_packages", "sandbox_load_skill", "sandbox_str_replace_editor",
	}
	for _, line := range []string{"A", "B", "C"} {
		t.Run(line, func(t *testing.T) {
			programs := []string{"browser", "nginx", "python-server", "mcp-server-browser"}
			if line == "A" {
				programs = append(programs, "mcp-hub")
			}
			r := read(t, base(t, line), programs...)
			if len(r.Configs) != 1 || r.Configs[0].Path != hub+".template" || !r.Configs[0].Template || len(r.Notes) > 0 {
				t.Fatalf("configs %+v, notes %v", r.Configs, r.Notes)
			}
			servers := map[string]mcp.Server{}
			var names []string
			for _, s := range r.Configs[0].Servers {
				servers[s.Name] = s
				names = append(names, s.Name)
				if s.Place.Path != hub+".template" || s.Place.Line < 3 || s.Place.Layer == "" {
					t.Errorf("%s: %+v", s.Name, s.Place)
				}
			}
			browser := servers["browser"]
			if browser.Type != "streamable-http" || browser.URL != "http://127.0.0.1:${MCP_SERVER_BROWSER_PORT}/mcp" || !browser.Unknown ||
				!slices.Contains(browser.Tools, "browser_evaluate") || slices.Contains(browser.Tools, "browser_vision_screen_click") != (line == "A") || len(browser.Tools) < 20 {
				t.Errorf("browser %+v", browser)
			}
			if line != "A" {
				if diff := cmp.Diff([]string{"browser"}, names); diff != "" {
					t.Errorf("servers (-facts +read):\n%s", diff)
				}
				if len(r.BuiltIn) != 1 || r.BuiltIn[0].Name != "python-server" || r.BuiltIn[0].Unknown {
					t.Fatalf("built in %+v", r.BuiltIn)
				}
				if diff := cmp.Diff(sandboxB, r.BuiltIn[0].Tools); diff != "" {
					t.Errorf("built in (-facts +read):\n%s", diff)
				}
				if n := len(r.BuiltIn[0].Tools) + len(browser.Tools); n != 32 { // "about 32 in all"
					t.Errorf("%d tools", n)
				}
				return
			}
			if diff := cmp.Diff([]string{"sandbox", "browser", "chrome_devtools"}, names); diff != "" {
				t.Errorf("servers (-facts +read):\n%s", diff)
			}
			if diff := cmp.Diff(sandboxA, servers["sandbox"].Tools); diff != "" || servers["sandbox"].Unknown {
				t.Errorf("sandbox (-facts +read):\n%s", diff)
			}
			devtools := servers["chrome_devtools"]
			if !devtools.Hidden || devtools.Type != "stdio" || devtools.Command != "/usr/bin/chrome-devtools-mcp" || devtools.Prefix != "chrome_devtools" ||
				!slices.Contains(devtools.Tools, "chrome_devtools_click") || !slices.Equal(devtools.Args, []string{"--browserUrl", "http://127.0.0.1:${BROWSER_REMOTE_DEBUGGING_PORT}"}) {
				t.Errorf("chrome_devtools %+v", devtools)
			}
			if len(r.BuiltIn) > 0 { // the file names it
				t.Errorf("built in %+v", r.BuiltIn)
			}
			if shown := len(servers["sandbox"].Tools) + len(browser.Tools); shown != 33 { // "about 33 tools"; the third is hidden
				t.Errorf("%d tools", shown)
			}
		})
	}
}

func asset(t *testing.T, name string) string {
	t.Helper()
	data, err := assets.FS.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestClosed(t *testing.T) {
	template := asset(t, "mcp-hub.json.template")
	policy := asset(t, "policy/browser-shell.policy.json")
	img := files(t, hub, template, hub+".template", template, "/etc/agent-browser/browser-shell.policy.json", policy)
	r := read(t, img, "browser-shell", "nginx", "browser")
	if len(r.Configs) != 2 || r.Configs[0].Template || !r.Configs[1].Template || len(r.BuiltIn)+len(r.Notes) > 0 {
		t.Fatalf("%+v", r)
	}
	for _, c := range r.Configs {
		if len(c.Servers) != 1 {
			t.Fatalf("%+v", c)
		}
		s := c.Servers[0]
		if s.Name != "browser_shell" || s.Type != "stdio" || s.Command != "/usr/local/bin/browser-shell" || s.Unknown || !slices.Equal(s.Tools, []string{"browser-shell"}) {
			t.Errorf("%+v", s)
		}
	}
	// Another name of the tool is the policy's to give.
	other := strings.Replace(policy, `"tool_name": "browser-shell"`, `"tool_name": "sandbox_execute_bash"`, 1)
	r = read(t, files(t, hub, template, "/etc/agent-browser/browser-shell.policy.json", other), "browser-shell")
	if got := r.Configs[0].Servers[0].Tools; !slices.Equal(got, []string{"sandbox_execute_bash"}) {
		t.Errorf("with policy %.200s\ntools %v", other, got)
	}
}

func TestServers(t *testing.T) {
	for name, tt := range map[string]struct {
		json     string
		programs string
		want     []string
		notes    []string
	}{
		"two servers of the closed hub": {
			`{"mcpServers": {"a": {"command": "/usr/local/bin/browser-shell", "args": ["mcp"]}, "b": {"url": "http://127.0.0.1:1/mcp"}}}`, "browser-shell",
			[]string{"a stdio [a__browser-shell]", "b streamable-http [] +"},
			nil,
		},
		"flat": {
			`{"naming": "flat", "mcpServers": {"a": {"command": "/x/browser-shell", "args": ["mcp"]}, "b": {"url": "x"}}}`, "browser-shell",
			[]string{"a stdio [browser-shell]", "b streamable-http [] +"},
			nil,
		},
		"unknown flags may give it another policy": {
			`{"mcpServers": {"a": {"command": "/x/browser-shell", "args": ["mcp", "--policy", "/tmp/p"]}}}`, "browser-shell",
			[]string{"a stdio [browser-shell] +"},
			nil,
		},
		"any program":        {`{"mcpServers": {"x": {"command": "touch", "args": ["/tmp/x"], "prefix": "p"}}}`, "python-server", []string{"x stdio [] +"}, nil},
		"a prefix":           {`{"mcpServers": {"x": {"url": "http://localhost:8091/mcp", "prefix": "p"}}}`, "python-server", []string{"x streamable-http [p_browser_get_info 11]"}, nil},
		"not this machine's": {`{"mcpServers": {"x": {"url": "http://10.0.0.1:8091/mcp"}, "y": {"url": "http://127.0.0.1:18091/mcp"}}}`, "mcp-hub", []string{"x streamable-http [] +", "y streamable-http [] +"}, nil},
		"transport":          {`{"mcpServers": {"x": {"transport": "sse", "url": "http://x"}}}`, "browser-shell", []string{"x sse [] +"}, nil},
		"both":               {`{"mcpServers": {"x": {"command": "c", "url": "u"}}}`, "", []string{"x streamable-http [] +"}, []string{":1: server \"x\": want a command or a URL"}},
		"neither":            {`{"mcpServers": {"x": {}}}`, "", []string{"x streamable-http [] +"}, []string{":1: server \"x\": want a command or a URL"}},
		"a strange type":     {`{"mcpServers": {"x": {"type": "exec", "command": "c"}}}`, "", []string{"x exec [] +"}, []string{":1: server \"x\": type \"exec\" is not known"}},
		"twice": {
			"{\"mcpServers\": {},\n\"mcpServers\": {\"x\": {\"url\": \"a\"},\n\"x\": {\"url\": \"b\",\n\"url\": \"c\"}}}", "",
			[]string{"x streamable-http [] +", "x streamable-http [] +"},
			[]string{":2: key \"mcpServers\" is there twice", ":3: key \"x\" is there twice", ":4: key \"url\" is there twice"},
		},
		"another case is another key": {`{"MCPSERVERS": {"x": {"url": "u"}}, "mcpServers": {"y": {"URL": "u"}}}`, "", []string{"y streamable-http [] +"}, []string{":1: server \"y\": want a command"}},
		"wrong types": {
			`{"mcpServers": {"x": {"command": ["a"], "args": "b"}, "y": 1, "z": null}}`, "",
			[]string{"x streamable-http [] +", "y  [] +", "z  [] +"},
			[]string{":1: command: json", ":1: args: json", ":1: server \"x\": want a command", ":1: server \"y\": not an object", ":1: server \"z\": not an object"},
		},
		"no JSON":            {`{"mcpServers": {"x": {"url": ${URL}}}}`, "", nil, []string{": not a JSON object"}},
		"something after it": {`{"mcpServers": {}} {"mcpServers": {"x": {}}}`, "", nil, []string{": not a JSON object"}},
		"a list":             {`[]`, "", nil, []string{": not a JSON object"}},
		"nothing":            {``, "", nil, []string{": not a JSON object"}},
		"no servers":         {`{}`, "", nil, []string{": the file has no mcpServers"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := read(t, files(t, hub, tt.json), strings.Fields(tt.programs)...)
			var got []string
			for _, s := range r.Configs[0].Servers {
				tools := fmt.Sprint(s.Tools)
				if len(s.Tools) > 3 {
					tools = fmt.Sprintf("[%s %d]", s.Tools[0], len(s.Tools))
				}
				if s.Unknown {
					tools += " +"
				}
				got = append(got, s.Name+" "+s.Type+" "+tools)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			var notes []string
			for _, n := range r.Notes {
				notes = append(notes, n.String())
			}
			for _, want := range tt.notes {
				if !slices.ContainsFunc(notes, func(n string) bool { return strings.HasPrefix(n, hub+want) }) {
					t.Errorf("no note %q; they are %q", want, notes)
				}
			}
			if len(notes) != len(tt.notes) {
				t.Errorf("notes %q, want %q", notes, tt.notes)
			}
		})
	}
}

// TestOtherFiles: what can't be read, and what only looks like it.
func TestOtherFiles(t *testing.T) {
	img, err := tree.FromFiles(t.Context(), nil,
		image.Symlink(hub, "real.json"), image.Bytes("/opt/gem/real.json", 0o644, []byte(`{"mcpServers": {"x": {"url": "u"}}}`)),
		image.Dir(hub+".template", 0o755), image.Bytes("/opt/gem/mcp.json", 0o644, []byte(`{"mcpServers": {}}`)),
		image.Bytes("/opt/gem/mcp-notes.json", 0o644, []byte(`{}`)), image.Symlink("/etc/mcp.json", "/nowhere"),
		image.Bytes("/etc/agent-browser/mcp-large.json", 0o644, []byte(strings.Repeat(" ", 1<<20+1))),
	)
	if err != nil {
		t.Fatal(err)
	}
	r := read(t, img, "browser-shell")
	if len(r.Configs) != 1 || r.Configs[0].Path != hub || len(r.Configs[0].Servers) != 1 {
		t.Errorf("%+v", r.Configs)
	}
	var notes []string
	for _, n := range r.Notes {
		notes = append(notes, n.String())
	}
	slices.Sort(notes)
	want := []string{
		"/etc/agent-browser/mcp-large.json: the file has 1048577 bytes; more than 1048576 are not read", "/etc/mcp.json: the link leads nowhere",
		"/opt/gem/mcp-hub.json.template: a dir, not a file", "/opt/gem/mcp.json: the file names MCP servers, but no hub is known to read it",
	}
	if diff := cmp.Diff(want, notes); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if r := read(t, files(t, "/x", ""), "python-server", "mcp-hub"); len(r.BuiltIn) != 1 || len(r.BuiltIn[0].Tools) != 10 {
		t.Errorf("python-server of line A answers on its own port: %+v", r)
	}
}

func FuzzConfig(f *testing.F) {
	f.Add(`{"mcpServers": {"a": {"type": "stdio", "command": "/usr/local/bin/browser-shell", "args": ["mcp"], "hidden": true}}}`, true)
	f.Add(`{"mcpServers": {"a": {"url": "http://127.0.0.1:${SANDBOX_SRV_PORT}/mcp"}, "a": {}}, "naming": "flat"}`, false)
	f.Fuzz(func(t *testing.T, text string, own bool) {
		program := "python-server"
		if own {
			program = "browser-shell"
		}
		r := read(t, files(t, hub, text), program)
		if len(r.Configs) != 1 {
			t.Fatalf("%+v", r)
		}
		for _, s := range r.Configs[0].Servers {
			if s.Place.Line < 1 || s.Place.Line > strings.Count(text, "\n")+1 || s.Type == "" && len(r.Notes) == 0 {
				t.Errorf("%+v, notes %v", s, r.Notes)
			}
		}
	})
}

// Of more servers, or more to say of them, than any hub has, the rest is told and not read.
func TestManyServers(t *testing.T) {
	var servers, keys strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&servers, "%q: {\"command\": \"/x\"},\n", fmt.Sprint(i))
		fmt.Fprintf(&keys, "\"type\": 1,\n")
	}
	for name, tt := range map[string]struct{ text, note string }{
		"servers": {`{"mcpServers": {` + servers.String() + `"last": {}}}`, "the file has 20001 servers"},
		"keys":    {`{"mcpServers": {"a": {` + keys.String() + `"last": 1}}}`, "are left out"},
	} {
		r := read(t, files(t, hub, tt.text))
		if len(r.Configs[0].Servers) > 500 || len(r.Notes) > 201 {
			t.Errorf("%s: %d servers, %d notes", name, len(r.Configs[0].Servers), len(r.Notes))
		}
		if !slices.ContainsFunc(r.Notes, func(n tree.Note) bool { return strings.Contains(n.Text, tt.note) && n.Place.Line > 1 }) {
			t.Errorf("%s: no note has %q: %v", name, tt.note, r.Notes[len(r.Notes)-1])
		}
	}
}
