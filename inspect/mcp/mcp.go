// Package mcp reads which MCP servers an image offers, and which tools they are known to have.
package mcp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// Server is an MCP server that /mcp leads to.
type Server struct {
	Name string `json:"name"`
	// Type is "stdio", "sse" or "streamable-http".
	Type    string   `json:"type"`
	Command string   `json:"command,omitempty"`
	Args    []string `json:"args,omitempty"`
	URL     string   `json:"url,omitempty"`
	Prefix  string   `json:"prefix,omitempty"`
	// Env are the names of the variables that it is started with besides the hub's; Directory is where it is started.
	Env       []string `json:"env,omitempty"`
	Directory string   `json:"directory,omitempty"`
	// Hidden is true for one whose tools the base's hub lists only for who searches.
	Hidden bool `json:"hidden,omitempty"`
	// Tools are those known by name, with their prefix, sorted; Unknown says that there may be others.
	Tools   []string   `json:"tools,omitempty"`
	Unknown bool       `json:"unknown,omitempty"`
	Place   tree.Place `json:"place"`
}

// Config is a file with MCP servers.
type Config struct {
	Path string `json:"path"`
	// Template is true for one that is rendered to a file of the same name at start.
	Template bool     `json:"template,omitempty"`
	Servers  []Server `json:"servers"`
}

// Report is every MCP server that was found.
type Report struct {
	Configs []Config `json:"configs"`
	// BuiltIn are servers that no file names: python-server's own on lines B and C.
	BuiltIn []Server    `json:"builtIn,omitempty"`
	Notes   []tree.Note `json:"notes,omitempty"`
}

const (
	hubConfig    = "/opt/gem/mcp-hub.json" // of every hub: the base's two and browser-shell's
	hubTemplate  = hubConfig + ".template"
	shellPolicy  = "/etc/agent-browser/browser-shell.policy.json"
	pythonServer = "/usr/local/bin/python-server"

	maxFile    = 1 << 20 // bytes of a file with servers
	maxFiles   = 100     // files that only look like one
	maxServers = 500     // of one file
	maxNotes   = 200
)

// Read finds them. programs are the names of the supervisord programs that the image runs.
func Read(ctx context.Context, img *tree.Image, programs []string) (*Report, error) {
	r := reader{img: img, report: &Report{}, shell: browserShell}
	switch {
	case slices.Contains(programs, "mcp-hub"):
		r.hub = hubA
	case slices.Contains(programs, "python-server"):
		r.hub = hubB
	case slices.Contains(programs, "browser-shell"):
		r.hub = hubOwn
	}
	lookalikes := r.lookalikes()
	content, err := r.contents(ctx, append(slices.Clip(lookalikes), hubConfig, hubTemplate, shellPolicy))
	if err != nil {
		return nil, err
	}
	r.policy(content)
	for _, p := range []string{hubConfig, hubTemplate} {
		if data, ok := content[p]; ok {
			r.report.Configs = append(r.report.Configs, Config{Path: p, Template: p == hubTemplate, Servers: r.servers(p, data)})
		}
	}
	for _, p := range lookalikes {
		if bytes.Contains(content[p], []byte("mcpServers")) {
			r.note(p, 0, "it names MCP servers, but no hub is known to read it")
		}
	}
	r.builtIn(programs)
	return r.report, nil
}

// Hubs that read mcp-hub.json. They name tools differently.
const (
	hubA   = "mcp-hub"
	hubB   = "python-server"
	hubOwn = "browser-shell"
)

type reader struct {
	img    *tree.Image
	report *Report
	hub    string // one of the constants; empty when no program is one
	shell  string // the name of browser-shell's tool
	of     *byte  // the beginning of the file that ends has the line feeds of
	ends   []int
}

func (r *reader) note(p string, line int, format string, args ...any) {
	switch n := len(r.report.Notes); {
	case n < maxNotes:
		r.report.Notes = append(r.report.Notes, tree.Note{Place: r.img.Place(p, line), Text: fmt.Sprintf(format, args...)})
	case n == maxNotes:
		r.report.Notes = append(r.report.Notes, tree.Note{Place: r.img.Place(p, line), Text: "this and further notes on MCP servers are left out"})
	}
}

// lookalikes are files that are named like one with MCP servers, and lie where hubs have theirs.
func (r *reader) lookalikes() []string {
	var out []string
	for _, dir := range []string{"/opt/gem", "/etc/agent-browser", "/etc"} {
		for _, e := range r.img.Dir(dir) {
			name := path.Base(e.Path)
			json := strings.HasSuffix(name, ".json") || strings.Contains(name, ".json.")
			if !strings.Contains(name, "mcp") || !json || e.Path == hubConfig || e.Path == hubTemplate {
				continue
			}
			if len(out) == maxFiles {
				r.note(e.Path, 0, "this file and what follows is not looked into: more than %d are named like one with MCP servers", maxFiles)
				return out
			}
			out = append(out, e.Path)
		}
	}
	return out
}

// contents reads those of paths that are there; what can't be read is a Note.
func (r *reader) contents(ctx context.Context, paths []string) (map[string][]byte, error) {
	var readable []string
	for _, p := range paths {
		e, ok := r.img.Stat(p)
		if !ok {
			if _, there := r.img.Lookup(p); there {
				r.note(p, 0, "it leads nowhere")
			}
			continue
		}
		switch {
		case e.Type != image.TypeFile && e.Type != image.TypeLink:
			r.note(p, 0, "it is a %s, no file", e.Type)
		case e.Size > maxFile:
			r.note(p, 0, "it has %d bytes; more than %d are not read", e.Size, maxFile)
		default:
			readable = append(readable, p)
		}
	}
	if len(readable) == 0 {
		return nil, nil
	}
	return r.img.ReadFiles(ctx, readable...)
}

// policy reads what browser-shell's tool is called.
func (r *reader) policy(content map[string][]byte) {
	data, ok := content[shellPolicy]
	if !ok {
		return
	}
	root, err := object(data)
	if err != nil {
		r.note(shellPolicy, 0, "no policy: %v", err)
		return
	}
	if m, ok := root.get("tool_name"); ok {
		r.decode(shellPolicy, data, m, &r.shell)
	}
}

// servers reads the file at p.
func (r *reader) servers(p string, data []byte) []Server {
	root, err := object(data)
	if err != nil {
		r.note(p, 0, "it is no JSON object, so no server in it is seen: %v", err)
		return nil
	}
	r.duplicates(p, data, root)
	entries, ok := root.get("mcpServers")
	if !ok {
		r.note(p, 0, "it has no mcpServers")
		return nil
	}
	members, err := object(entries.value)
	if err != nil {
		r.note(p, r.lineOf(data, entries.at), "mcpServers: %v", err)
		return nil
	}
	members.shift(entries.at)
	r.duplicates(p, data, members)
	naming := ""
	if m, ok := root.get("naming"); ok {
		r.decode(p, data, m, &naming)
	}
	prefixed := naming == "server__tool" || naming == "" && len(members) > 1
	var out []Server
	if len(members) > maxServers {
		r.note(p, r.lineOf(data, members[maxServers].at), "it has %d servers; more than %d are not read", len(members), maxServers)
		members = members[:maxServers]
	}
	for _, m := range members {
		s := r.server(p, data, m)
		prefix := ""
		switch {
		case r.hub == hubOwn && prefixed:
			prefix = s.Name + "__"
		case r.hub != hubOwn && s.Prefix != "":
			prefix = s.Prefix + "_"
		}
		s.Tools, s.Unknown = r.tools(s)
		for i := range s.Tools {
			s.Tools[i] = prefix + s.Tools[i]
		}
		slices.Sort(s.Tools)
		out = append(out, s)
	}
	return out
}

func (r *reader) server(p string, data []byte, m member) Server {
	s := Server{Name: m.name, Place: r.img.Place(p, r.lineOf(data, m.at))}
	keys, err := object(m.value)
	if err != nil {
		r.note(p, s.Place.Line, "server %q: %v", m.name, err)
		return s
	}
	keys.shift(m.at)
	r.duplicates(p, data, keys)
	transport, env := "", map[string]json.RawMessage{}
	into := map[string]any{
		"type": &s.Type, "transport": &transport, "command": &s.Command, "args": &s.Args, "url": &s.URL, "prefix": &s.Prefix,
		"hidden": &s.Hidden, "env": &env, "cwd": &s.Directory,
	}
	for _, k := range keys { // of two with one name the last counts
		if into[k.name] != nil {
			r.decode(p, data, k, into[k.name])
		}
	}
	s.Env = slices.Sorted(maps.Keys(env))
	s.Type = cmp.Or(s.Type, transport)
	if s.Type == "" && s.Command != "" && s.URL == "" {
		s.Type = "stdio"
	}
	s.Type = cmp.Or(s.Type, "streamable-http")
	switch {
	case s.Type != "stdio" && s.Type != "sse" && s.Type != "streamable-http":
		r.note(p, s.Place.Line, "server %q: type %q is not known", s.Name, s.Type)
	case (s.Command == "") == (s.URL == ""):
		r.note(p, s.Place.Line, "server %q: it needs a command or a URL, and not both", s.Name)
	}
	return s
}

func (r *reader) decode(p string, data []byte, m member, into any) {
	if err := json.Unmarshal(m.value, into); err != nil {
		r.note(p, r.lineOf(data, m.at), "%s: %v", m.name, err)
	}
}

// duplicates notes keys that are there twice: parsers differ on which of them counts.
func (r *reader) duplicates(p string, data []byte, o members) {
	seen := map[string]bool{}
	for _, m := range o {
		if seen[m.name] {
			r.note(p, r.lineOf(data, m.at), "key %q is there twice: readers differ on which of them counts", m.name)
		}
		seen[m.name] = true
	}
}

// builtIn adds python-server's own tools. On line A it is a server of its own, which mcp-hub's file names.
func (r *reader) builtIn(programs []string) {
	if !slices.Contains(programs, "python-server") {
		return
	}
	s := Server{
		Name: "python-server", Type: "streamable-http", URL: "http://127.0.0.1:${SANDBOX_SRV_PORT}/mcp",
		Tools: slices.Clone(pythonTools), Place: r.img.Place(pythonServer, 0),
	}
	if r.hub == hubA {
		s.Tools = slices.Clone(sandboxTools)
		for _, c := range r.report.Configs {
			if slices.ContainsFunc(c.Servers, isSandbox) {
				return
			}
		}
	}
	slices.Sort(s.Tools)
	r.report.BuiltIn = append(r.report.BuiltIn, s)
}

// members is a JSON object, in the file's order.
type members []member

type member struct {
	name  string
	value json.RawMessage
	at    int // where the value starts
}

// get gives the last member of that name.
func (o members) get(name string) (member, bool) {
	for _, m := range slices.Backward(o) {
		if m.name == name {
			return m, true
		}
	}
	return member{}, false
}

func (o members) shift(by int) {
	for i := range o {
		o[i].at += by
	}
}

// object reads a JSON object, and nothing after it. Names of members are taken exactly, which json.Unmarshal doesn't.
func object(data []byte) (members, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	t, err := dec.Token()
	if err != nil {
		return nil, err
	}
	if t != json.Delim('{') {
		return nil, fmt.Errorf("it is no object")
	}
	var out members
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return nil, err
		}
		name, ok := t.(string)
		if !ok {
			return nil, fmt.Errorf("%v is no key", t)
		}
		m := member{name: name}
		if err := dec.Decode(&m.value); err != nil {
			return nil, err
		}
		m.at = int(dec.InputOffset()) - len(m.value)
		out = append(out, m)
	}
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	if dec.More() {
		return nil, fmt.Errorf("more follows the object")
	}
	return out, nil
}

// lineOf is the line of a place in data.
func (r *reader) lineOf(data []byte, at int) int {
	if len(data) > 0 && r.of != &data[0] {
		r.of, r.ends = &data[0], nil
		for i, c := range data {
			if c == '\n' {
				r.ends = append(r.ends, i)
			}
		}
	}
	n, _ := slices.BinarySearch(r.ends, at)
	return n + 1
}
