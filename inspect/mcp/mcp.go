// Package mcp finds the MCP servers that an image offers, and the tools that they are known to have.
package mcp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/server/strictjson"
)

// Server is an MCP server behind /mcp.
type Server struct {
	Name string `json:"name"`
	// Type is "stdio", "sse" or "streamable-http".
	Type    string   `json:"type"`
	Command string   `json:"command,omitempty"`
	Args    []string `json:"args,omitempty"`
	URL     string   `json:"url,omitempty"`
	Prefix  string   `json:"prefix,omitempty"`
	// Env are the names of the variables that it is started with besides the hub's; Directory is its working directory.
	Env       []string `json:"env,omitempty"`
	Directory string   `json:"directory,omitempty"`
	// Hidden is true when the base's hub lists its tools only in a search.
	Hidden bool `json:"hidden,omitempty"`
	// Tools are its known tools, with their prefix, sorted; Unknown is true when it may have others.
	Tools   []string   `json:"tools,omitempty"`
	Unknown bool       `json:"unknown,omitempty"`
	Place   tree.Place `json:"place"`
}

// Config is a file with MCP servers.
type Config struct {
	Path string `json:"path"`
	// Template is true for a file that is rendered at start, to the name without .template.
	Template bool     `json:"template,omitempty"`
	Servers  []Server `json:"servers"`
}

// Report lists every MCP server that was found.
type Report struct {
	Configs []Config `json:"configs"`
	// BuiltIn are servers that no file names: python-server's own on lines B and C.
	BuiltIn []Server    `json:"builtIn,omitempty"`
	Notes   []tree.Note `json:"notes,omitempty"`
}

// Servers yields the servers of every file, and then those that no file names, with nil.
func (r *Report) Servers() iter.Seq2[*Config, Server] {
	return func(yield func(*Config, Server) bool) {
		for i := range r.Configs {
			for _, s := range r.Configs[i].Servers {
				if !yield(&r.Configs[i], s) {
					return
				}
			}
		}
		for _, s := range r.BuiltIn {
			if !yield(nil, s) {
				return
			}
		}
	}
}

const (
	hubConfig    = "/opt/gem/mcp-hub.json" // every hub reads it: the base's two and browser-shell
	hubTemplate  = hubConfig + ".template"
	shellPolicy  = "/etc/agent-browser/browser-shell.policy.json"
	pythonServer = "/usr/local/bin/python-server"

	maxFile    = 1 << 20 // bytes of a file with servers
	maxFiles   = 100     // lookalikes
	maxServers = 500     // of one file
	maxNotes   = 200
)

// Read returns the MCP servers of img. programs are the names of the supervisord programs that the image runs.
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
	lookalikes := r.findLookalikes()
	content, err := r.readContents(ctx, append(slices.Clip(lookalikes), hubConfig, hubTemplate, shellPolicy))
	if err != nil {
		return nil, err
	}
	r.readPolicy(content)
	for _, p := range []string{hubConfig, hubTemplate} {
		if data, ok := content[p]; ok {
			r.report.Configs = append(r.report.Configs, Config{Path: p, Template: p == hubTemplate, Servers: r.readServers(p, data)})
		}
	}
	for _, p := range lookalikes {
		if bytes.Contains(content[p], []byte("mcpServers")) {
			r.addNote(p, 0, "the file names MCP servers, but no hub is known to read it")
		}
	}
	r.addBuiltIn(programs)
	return r.report, nil
}

// Hubs that read mcp-hub.json. They name tools differently.
const (
	hubA   = "mcp-hub"
	hubB   = "python-server"
	hubOwn = "browser-shell"
)

// reader collects a report.
type reader struct {
	img    *tree.Image
	report *Report
	hub    string // one of the constants; empty when no program is one
	shell  string // the name of browser-shell's tool
	of     *byte  // the first byte of the file that ends belongs to
	ends   []int  // offsets of line feeds
}

// addNote adds a note, formatted as by fmt.Sprintf, unless there are maxNotes.
func (r *reader) addNote(p string, line int, format string, args ...any) {
	switch n := len(r.report.Notes); {
	case n < maxNotes:
		r.report.Notes = append(r.report.Notes, tree.Note{Place: r.img.Place(p, line), Text: fmt.Sprintf(format, args...)})
	case n == maxNotes:
		r.report.Notes = append(r.report.Notes, tree.Note{Place: r.img.Place(p, line), Text: "this and further notes on MCP servers are left out"})
	}
}

// findLookalikes returns the files that have a name like a file with MCP servers, in the directories where hubs have
// theirs.
func (r *reader) findLookalikes() []string {
	var out []string
	for _, dir := range []string{"/opt/gem", "/etc/agent-browser", "/etc"} {
		for _, e := range r.img.Dir(dir) {
			name := path.Base(e.Path)
			json := strings.HasSuffix(name, ".json") || strings.Contains(name, ".json.")
			if !strings.Contains(name, "mcp") || !json || e.Path == hubConfig || e.Path == hubTemplate {
				continue
			}
			if len(out) == maxFiles {
				r.addNote(e.Path, 0, "this file and what follows is not looked into: more than %d are named like one with MCP servers", maxFiles)
				return out
			}
			out = append(out, e.Path)
		}
	}
	return out
}

// readContents returns the contents of those of paths that are there. A file that can't be read becomes a note.
func (r *reader) readContents(ctx context.Context, paths []string) (map[string][]byte, error) {
	var readable []string
	for _, p := range paths {
		e, ok := r.img.Stat(p)
		if !ok {
			if _, there := r.img.Lookup(p); there {
				r.addNote(p, 0, "the link leads nowhere")
			}
			continue
		}
		switch {
		case e.Type != image.TypeFile && e.Type != image.TypeLink:
			r.addNote(p, 0, "a %s, not a file", e.Type)
		case e.Size > maxFile:
			r.addNote(p, 0, "the file has %d bytes; more than %d are not read", e.Size, maxFile)
		default:
			readable = append(readable, p)
		}
	}
	if len(readable) == 0 {
		return nil, nil
	}
	return r.img.ReadFiles(ctx, readable...)
}

// readPolicy sets the name of browser-shell's tool from its policy.
func (r *reader) readPolicy(content map[string][]byte) {
	data, ok := content[shellPolicy]
	if !ok {
		return
	}
	root, err := parseJSON(data)
	if err != nil {
		r.addNote(shellPolicy, 0, "no policy: %v", err)
		return
	}
	if m, ok := lastMember(root, "tool_name"); ok {
		r.decodeMember(shellPolicy, data, m, &r.shell)
	}
}

// readServers returns the servers in data, the file at p.
func (r *reader) readServers(p string, data []byte) []Server {
	root, err := parseJSON(data)
	if err != nil {
		r.addNote(p, 0, "not a JSON object, so no server in it is seen: %v", err)
		return nil
	}
	r.noteDuplicates(p, data, root)
	entries, ok := lastMember(root, "mcpServers")
	if !ok {
		r.addNote(p, 0, "the file has no mcpServers")
		return nil
	}
	if entries.Members == nil {
		r.addNote(p, r.lineOf(data, entries.Node.At), "mcpServers: %v", errNoObject)
		return nil
	}
	r.noteDuplicates(p, data, entries.Node)
	members := entries.Members
	naming := ""
	if m, ok := lastMember(root, "naming"); ok {
		r.decodeMember(p, data, m, &naming)
	}
	prefixed := naming == "server__tool" || naming == "" && len(members) > 1
	var out []Server
	if len(members) > maxServers {
		r.addNote(p, r.lineOf(data, members[maxServers].Node.At), "the file has %d servers; more than %d are not read", len(members), maxServers)
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
		s.Tools, s.Unknown = r.toolsOf(s)
		for i := range s.Tools {
			s.Tools[i] = prefix + s.Tools[i]
		}
		slices.Sort(s.Tools)
		out = append(out, s)
	}
	return out
}

// readServer returns the server in m, a member of data, the file at p.
func (r *reader) readServer(p string, data []byte, m strictjson.Member) Server {
	s := Server{Name: m.Name, Place: r.img.Place(p, r.lineOf(data, m.Node.At))}
	if m.Members == nil {
		r.addNote(p, s.Place.Line, "server %q: %v", m.Name, errNoObject)
		return s
	}
	r.noteDuplicates(p, data, m.Node)
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
		r.addNote(p, s.Place.Line, "server %q: type %q is not known", s.Name, s.Type)
	case (s.Command == "") == (s.URL == ""):
		r.addNote(p, s.Place.Line, "server %q: want a command or a URL, not both", s.Name)
	}
	return s
}

// decodeMember decodes the value of m; a value of another type becomes a note.
func (r *reader) decodeMember(p string, data []byte, m strictjson.Member, into any) {
	if err := json.Unmarshal(m.Raw, into); err != nil {
		r.addNote(p, r.lineOf(data, m.Node.At), "%s: %v", m.Name, err)
	}
}

// noteDuplicates adds a note for each key that o has twice: parsers differ on which of them counts.
func (r *reader) noteDuplicates(p string, data []byte, o strictjson.Node) {
	seen := map[string]bool{}
	for _, m := range o.Members {
		if seen[m.Name] {
			r.addNote(p, r.lineOf(data, m.Node.At), "key %q is there twice: readers differ on which of them counts", m.Name)
		}
		seen[m.Name] = true
	}
}

// addBuiltIn adds python-server's own tools. On line A, python-server is a server of its own in mcp-hub's file.
func (r *reader) addBuiltIn(programs []string) {
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

// parseJSON parses a JSON object with nothing after it.
func parseJSON(data []byte) (strictjson.Node, error) {
	root, err := strictjson.ParseNulls(data)
	if err == nil && root.Members == nil {
		err = errNoObject
	}
	return root, err
}

var errNoObject = errors.New("not an object")

// lastMember returns the last member of that name: of two with one name the last counts.
func lastMember(o strictjson.Node, name string) (m strictjson.Member, ok bool) {
	for _, m := range slices.Backward(o.Members) {
		if m.Name == name {
			return m, true
		}
	}
	return m, false
}

// lineOf returns the line, from 1, of offset at in data.
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
