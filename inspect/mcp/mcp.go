// Package mcp reads which MCP servers an image offers, and which tools they are known to have.
package mcp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/server/strictjson"
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
	root, err := parseJSON(data)
	if err != nil {
		r.note(shellPolicy, 0, "no policy: %v", err)
		return
	}
	if m, ok := lastMember(root, "tool_name"); ok {
		r.decodeMember(shellPolicy, data, m, &r.shell)
	}
}

// servers reads the file at p.
func (r *reader) servers(p string, data []byte) []Server {
	root, err := parseJSON(data)
	if err != nil {
		r.note(p, 0, "it is no JSON object, so no server in it is seen: %v", err)
		return nil
	}
	r.duplicates(p, data, root)
	entries, ok := lastMember(root, "mcpServers")
	if !ok {
		r.note(p, 0, "it has no mcpServers")
		return nil
	}
	if entries.Members == nil {
		r.note(p, r.lineOf(data, entries.Node.At), "mcpServers: %v", errNoObject)
		return nil
	}
	r.duplicates(p, data, entries.Node)
	members := entries.Members
	naming := ""
	if m, ok := lastMember(root, "naming"); ok {
		r.decodeMember(p, data, m, &naming)
	}
	prefixed := naming == "server__tool" || naming == "" && len(members) > 1
	var out []Server
	if len(members) > maxServers {
		r.note(p, r.lineOf(data, members[maxServers].Node.At), "it has %d servers; more than %d are not read", len(members), maxServers)
		members = members[:maxServers]
	}
	for _, m := range members {
		s := r.readServer(p, data, m)
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

func (r *reader) readServer(p string, data []byte, m strictjson.Member) Server {
	s := Server{Name: m.Name, Place: r.img.Place(p, r.lineOf(data, m.Node.At))}
	if m.Members == nil {
		r.note(p, s.Place.Line, "server %q: %v", m.Name, errNoObject)
		return s
	}
	r.duplicates(p, data, m.Node)
	transport, env := "", map[string]json.RawMessage{}
	into := map[string]any{
		"type": &s.Type, "transport": &transport, "command": &s.Command, "args": &s.Args, "url": &s.URL, "prefix": &s.Prefix,
		"hidden": &s.Hidden, "env": &env, "cwd": &s.Directory,
	}
	for _, k := range m.Members { // of two with one name the last counts
		if into[k.Name] != nil {
			r.decodeMember(p, data, k, into[k.Name])
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

func (r *reader) decodeMember(p string, data []byte, m strictjson.Member, into any) {
	if err := json.Unmarshal(m.Raw, into); err != nil {
		r.note(p, r.lineOf(data, m.Node.At), "%s: %v", m.Name, err)
	}
}

// duplicates notes keys that are there twice: parsers differ on which of them counts.
func (r *reader) duplicates(p string, data []byte, o strictjson.Node) {
	seen := map[string]bool{}
	for _, m := range o.Members {
		if seen[m.Name] {
			r.note(p, r.lineOf(data, m.Node.At), "key %q is there twice: readers differ on which of them counts", m.Name)
		}
		seen[m.Name] = true
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

// parseJSON reads a JSON object, and nothing after it.
func parseJSON(data []byte) (strictjson.Node, error) {
	root, err := strictjson.ParseNulls(data)
	if err == nil && root.Members == nil {
		err = errNoObject
	}
	return root, err
}

var errNoObject = errors.New("it is no object")

// lastMember returns the last member of that name: of two with one name the last counts.
func lastMember(o strictjson.Node, name string) (m strictjson.Member, ok bool) {
	for _, m := range slices.Backward(o.Members) {
		if m.Name == name {
			return m, true
		}
	}
	return m, false
}

// lineOf is the line of a place in data.
func (r *reader) lineOf(data []byte, at int64) int {
	if len(data) > 0 && r.of != &data[0] {
		r.of, r.ends = &data[0], nil
		for i, c := range data {
			if c == '\n' {
				r.ends = append(r.ends, i)
			}
		}
	}
	n, _ := slices.BinarySearch(r.ends, int(at))
	return n + 1
}
