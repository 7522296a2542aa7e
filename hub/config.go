package hub

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/slimctl/slimctl/hub/guard"
	"github.com/slimctl/slimctl/server/strictjson"
)

// Naming is the form of the names that clients see.
type Naming string

const (
	Dotted     Naming = "server.tool"  // the default
	Underlined Naming = "server__tool" // for clients that refuse a dot
	Flat       Naming = "flat"         // the server's own names
)

// Config is what the configuration files say.
type Config struct {
	Naming   Naming
	Disabled bool // "mcp": {"enabled": false}: no server is started
	AuditAll bool // false: only denied and failed calls have a line in the audit log
	Servers  []Server
}

// Server is one entry of mcpServers.
type Server struct {
	Name      string
	Transport string // stdio, http or sse
	Command   string
	Args      []string
	Env       map[string]string
	Cwd       string
	URL       string
	Headers   map[string]string
	Timeout   time.Duration // of a call
	NoRestart bool
	Disabled  bool // not started with the hub
	Rules     guard.Rules
}

var (
	serverName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,32}$`)
	envName    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	variable   = regexp.MustCompile(`\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(:-[^}]*)?\}`)
)

// Limits of a configuration.
const (
	maxConfig  = 1 << 20 // bytes of a file
	maxServers = 64
	callTime   = 30 * time.Second // without timeout
	maxTimeout = 3600             // seconds
)

// LoadConfig reads configuration files. Each top-level key may stand in one of them. It refuses unknown and repeated
// keys, null, and files of other users or that others can write; errors begin with file:line:column.
func LoadConfig(paths ...string) (*Config, error) {
	c := &Config{Naming: Dotted, AuditAll: true}
	r := reader{Config: c, base: guard.Default(), seen: map[string]string{}}
	for _, path := range paths {
		text, err := readOwn(path)
		if err != nil {
			return nil, fmt.Errorf("configuration: %w", err)
		}
		if err := r.readFile(path, text); err != nil {
			return nil, fmt.Errorf("%s:%w", path, err)
		}
	}
	if len(r.entries) == 0 {
		return nil, fmt.Errorf(`%s: no server; add "mcpServers": {"NAME": {"command": "…"}}`, strings.Join(paths, ", "))
	}
	for _, e := range r.entries { // last, because their rules build on mcp.security
		s, err := r.readServer(e.Member)
		if err != nil {
			return nil, fmt.Errorf("%s:%w", e.path, strictjson.Locate(e.text, err))
		}
		c.Servers = append(c.Servers, s)
	}
	return c, nil
}

// readOwn reads a file that names programs to run: only the user or root may own it.
func readOwn(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w; name another one with --config", err)
	} else if err != nil {
		return nil, err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("%s belongs to user %d, and names programs that would run as you; copy it to a file of your own", path, st.Uid)
	}
	return strictjson.Read(path, maxConfig)
}

// reader collects what several files say.
type reader struct {
	*Config
	base    guard.Rules
	seen    map[string]string // by top-level key, the file that has it
	entries []entry
}

// entry is a server's entry with its file.
type entry struct {
	strictjson.Member
	path string
	text []byte
}

// readFile reads one file. Errors begin with line:column.
func (r *reader) readFile(path string, text []byte) error {
	root, err := strictjson.Parse(text)
	if err == nil {
		err = r.readRoot(path, text, root)
	}
	return strictjson.Locate(text, err)
}

func (r *reader) readRoot(path string, text []byte, root strictjson.Node) error {
	enabled := true
	naming := ""
	err := decode(root, "the file", map[string]any{
		"$schema": new(string), "naming": &naming,
		"mcpServers": func(n strictjson.Node) error {
			members, err := n.Object("mcpServers")
			for _, m := range members {
				r.entries = append(r.entries, entry{m, path, text})
			}
			if err == nil && len(r.entries) > maxServers {
				return strictjson.Errorf(n.At, "mcpServers has %d servers; at most %d", len(r.entries), maxServers)
			}
			return err
		},
		"mcp": func(n strictjson.Node) error {
			return decode(n, "mcp", map[string]any{"enabled": &enabled, "security": func(n strictjson.Node) error {
				return decodeRules(n, "mcp.security", &r.base, &r.AuditAll)
			}})
		},
	})
	if err != nil {
		return err
	}
	for _, m := range root.Members {
		if other, ok := r.seen[m.Name]; ok {
			return strictjson.Errorf(m.At, "%s stands in %s too; keep it in one file", m.Name, other)
		}
		r.seen[m.Name] = path
		if m.Name == "naming" {
			r.Naming = Naming(naming)
			if !slices.Contains([]Naming{Dotted, Underlined, Flat}, r.Naming) {
				return strictjson.Errorf(m.Node.At, "naming is %q; use %q, %q or %q", naming, Dotted, Underlined, Flat)
			}
		}
	}
	r.Disabled = r.Disabled || !enabled
	return nil
}

// decode reads an object: into has, for each known key, a pointer or a function.
func decode(n strictjson.Node, what string, into map[string]any) error {
	members, err := n.Object(what, slices.Sorted(maps.Keys(into))...)
	if err != nil {
		return err
	}
	for _, m := range members {
		if err := decodeValue(m, what+"."+m.Name, into[m.Name]); err != nil {
			return err
		}
	}
	return nil
}

func decodeValue(m strictjson.Member, what string, into any) error {
	must := "a string"
	switch into := into.(type) {
	case func(strictjson.Node) error:
		return into(m.Node)
	case *bool:
		must = "true or false"
	case **bool:
		must, *into = "true or false", nil // json would write to the memory of an outer key
	case *int:
		must = "a whole number"
	case *float64:
		must = "a number of seconds"
	case *[]string:
		must, *into = "a list of strings", nil
	case *map[string]string:
		must = "an object of strings"
	}
	if json.Unmarshal(m.Raw, into) != nil {
		return strictjson.Errorf(m.Node.At, "%s must be %s, not %.40s", what, must, m.Raw)
	}
	return nil
}

// decodeRules changes the rules that a security object names. all is nil in a server's entry.
func decodeRules(n strictjson.Node, what string, r *guard.Rules, all *bool) error {
	var blocked []string
	into := map[string]any{
		"whitelist_mode": &r.Whitelist, "allowed_tools": &r.Allowed, "blocked_tools": &blocked, "read_only": &r.ReadOnly,
		"max_argument_size_bytes": &r.MaxBytes, "path_tools": &r.PathTools, "sensitive_paths": &r.Sensitive,
		"denied_directories": &r.DeniedDirs, "allowed_directories": &r.AllowedDirs, "shell": &r.Shell, "shell_characters": &r.ShellCharacters,
	}
	if all != nil {
		into["audit_all_calls"] = all
	}
	if err := decode(n, what, into); err != nil {
		return err
	}
	r.Blocked = slices.Concat(r.Blocked, blocked) // no entry unblocks
	for _, m := range n.Members {
		if why := checkRule(m.Name, r, blocked); why != "" {
			return strictjson.Errorf(m.Node.At, "%s.%s %s", what, m.Name, why)
		}
	}
	r.Sensitive = strings.Fields(strings.ToLower(strings.Join(r.Sensitive, " "))) // they have no blanks
	return nil
}

// checkRule returns what is wrong with a rule's value, or "".
func checkRule(name string, r *guard.Rules, blocked []string) string {
	visible := func(list []string, least int) bool {
		return len(list) <= 256 && !slices.ContainsFunc(list, func(s string) bool {
			return len(s) < least || len(s) > 256 || strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c > '~' })
		})
	}
	relative := func(dir string) bool { return !filepath.IsAbs(dir) }
	switch {
	case name == "max_argument_size_bytes" && (r.MaxBytes < 64 || r.MaxBytes > 16<<20):
		return "must be from 64 to 16777216"
	case name == "allowed_tools" && !visible(r.Allowed, 1), name == "blocked_tools" && !visible(blocked, 1), name == "path_tools" && !visible(r.PathTools, 1):
		return "must be at most 256 patterns of 1 to 256 visible ASCII characters, for instance filesystem.*"
	case name == "sensitive_paths" && !visible(r.Sensitive, 3):
		return "must be at most 256 texts of 3 to 256 visible ASCII characters"
	case name == "allowed_directories" && slices.ContainsFunc(r.AllowedDirs, relative), name == "denied_directories" && slices.ContainsFunc(r.DeniedDirs, relative):
		return "must be absolute directories"
	case name == "shell_characters" && strings.Trim(r.ShellCharacters, guard.Default().ShellCharacters+"^-,=%.:/+@_") != "" || name == "shell_characters" && r.ShellCharacters == "":
		return "must be ASCII punctuation"
	}
	return ""
}

// readServer reads a server's entry over the rules of mcp.security.
func (r *reader) readServer(m strictjson.Member) (Server, error) {
	s := Server{Name: m.Name, Rules: r.base}
	if !serverName.MatchString(m.Name) {
		return s, strictjson.Errorf(m.At, "a server's name has 1 to 32 of A-Z a-z 0-9 _ -, not %q", m.Name)
	}
	what := "server " + m.Name
	kind, transport, seconds, enabled, restart := "", "", callTime.Seconds(), true, true
	var ignored json.RawMessage
	err := decode(m.Node, what, map[string]any{
		"type": &kind, "transport": &transport, "command": &s.Command, "args": &s.Args, "env": &s.Env, "cwd": &s.Cwd, "url": &s.URL, "headers": &s.Headers,
		"timeout": &seconds, "restart": &restart, "enabled": &enabled, "disabled": &s.Disabled,
		"security":    func(n strictjson.Node) error { return decodeRules(n, what+".security", &s.Rules, nil) },
		"alwaysAllow": &ignored, "autoApprove": &ignored, "description": &ignored, // for clients that ask their user
	})
	if err != nil {
		return s, err
	}
	s.Timeout, s.NoRestart, s.Disabled = time.Duration(seconds*float64(time.Second)), !restart, s.Disabled || !enabled
	key, why := "", ""
	if kind != "" && transport != "" && kind != transport {
		key, why = "transport", "type and transport differ; give one"
	} else if s.Transport = cmp.Or(kind, transport); seconds < 0.001 || seconds > maxTimeout {
		key, why = "timeout", fmt.Sprintf("timeout must be 0.001 to %d seconds", maxTimeout)
	} else if key, why = s.expand(); why == "" {
		key, why = s.checkKeys()
	}
	if why == "" {
		return s, nil
	}
	at := m.At
	for _, k := range m.Members {
		if k.Name == key {
			at = k.At
		}
	}
	return s, strictjson.Errorf(at, "%s: %s", what, why)
}

// expand replaces ${NAME}, ${env:NAME} and ${NAME:-default} by the hub's own environment. On an error it also returns
// the key.
func (s *Server) expand() (key, why string) {
	into := func(k string, text *string) {
		for _, m := range variable.FindAllStringSubmatch(*text, -1) {
			value, ok := os.LookupEnv(m[1])
			if !ok && m[2] == "" {
				key, why = k, fmt.Sprintf("the variable %s is not set; export it, or write ${%s:-default}", m[1], m[1])
			} else if !ok {
				value = m[2][len(":-"):]
			}
			*text = strings.Replace(*text, m[0], value, 1)
		}
	}
	into("command", &s.Command)
	into("cwd", &s.Cwd)
	into("url", &s.URL)
	for i := range s.Args {
		into("args", &s.Args[i])
	}
	for k, of := range map[string]map[string]string{"env": s.Env, "headers": s.Headers} {
		for name, text := range of {
			into(k, &text)
			of[name] = text
		}
	}
	return key, why
}

// checkKeys returns the key of a wrong value and what is wrong, or "".
func (s *Server) checkKeys() (key, why string) {
	if (s.Command == "") == (s.URL == "") {
		return "", "give a command or a url, not both"
	}
	if s.URL != "" {
		return s.checkRemote()
	}
	switch {
	case s.Transport != "" && s.Transport != "stdio":
		return "type", fmt.Sprintf("a command speaks stdio, not %q", s.Transport)
	case len(s.Headers) > 0:
		return "headers", "headers is for a url, not for a command"
	case s.Cwd != "" && !filepath.IsAbs(s.Cwd):
		return "cwd", "cwd must be an absolute path"
	case strings.ContainsRune(strings.Join(append([]string{s.Command, s.Cwd}, s.Args...), ""), 0):
		return "args", "no program can be given a NUL"
	}
	for _, k := range slices.Sorted(maps.Keys(s.Env)) {
		if !envName.MatchString(k) || strings.ContainsRune(s.Env[k], 0) {
			return "env", fmt.Sprintf("env has %q, which can't be a variable", k)
		}
	}
	s.Transport = "stdio"
	return "", ""
}

// checkRemote checks a server with an address.
func (s *Server) checkRemote() (key, why string) {
	u, err := url.Parse(s.URL)
	switch {
	case err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || u.User != nil || u.Fragment != "":
		return "url", "url must be http:// or https:// with a host, without a user or a fragment"
	case s.Args != nil:
		return "args", "args is for a command, not for a url"
	case s.Env != nil:
		return "env", "env is for a command, not for a url"
	case s.Cwd != "":
		return "cwd", "cwd is for a command, not for a url"
	}
	for _, name := range slices.Sorted(maps.Keys(s.Headers)) {
		if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(s.Headers[name]) {
			return "headers", fmt.Sprintf("%q can't be a header", name)
		}
	}
	switch s.Transport {
	case "", "http", "streamable-http", "streamableHttp", "streamable_http":
		s.Transport = "http"
	case "sse":
	default:
		return "type", fmt.Sprintf("a url is of type http, streamable-http or sse, not %q", s.Transport)
	}
	return "", ""
}
