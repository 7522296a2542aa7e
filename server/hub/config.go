package hub

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/slimctl/slimctl/internal/lazyregexp"
	"github.com/slimctl/slimctl/server/hub/upstream"
	"github.com/slimctl/slimctl/server/strictjson"
)

// DefaultConfig is the path of the file in the image.
const DefaultConfig = "/opt/gem/mcp-hub.json"

// Naming is the scheme for names that the hub offers.
type Naming string

const (
	Flat     Naming = "flat"         // the server's name; the default for one server
	Prefixed Naming = "server__tool" // prefixed by the server's name; the default for several
)

// Config is a parsed mcp-hub.json.
type Config struct {
	Naming  Naming
	Servers []Server // in the file's order
}

// Server is one entry of mcpServers.
type Server struct {
	upstream.Config

	// PerSession selects the sessions of the older era that have a process of their own, as intended for stdio: all,
	// none, or, if nil, those whose client accepts requests, so that a server's request has one destination. All other
	// requests share one process.
	PerSession *bool
}

// entry is the file's entry for a server.
type entry struct {
	Type, Transport string
	Command         string
	Args            []string
	Env             map[string]string
	Cwd             string
	URL             string
	Timeout         float64
	Shell           bool
	PerSession      *bool
	Path            []string
	Headers         map[string]upstream.Source
	Enabled         *bool
	Restart         *bool
}

var (
	serverName = lazyregexp.New(`^[a-z0-9_-]{1,32}$`)
	envName    = lazyregexp.New(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// Limits of a configuration.
const (
	maxConfig  = 1 << 20 // bytes
	maxServers = 64
	maxTimeout = time.Hour
)

// LoadConfig reads a file. It refuses unknown and repeated keys, null, and files that others can write; errors begin
// with file:line:column.
func LoadConfig(path string) (*Config, error) {
	text, err := strictjson.Read(path, maxConfig)
	if err != nil {
		return nil, fmt.Errorf("hub configuration: %w", err)
	}
	c, err := ParseConfig(text)
	if err != nil {
		return nil, fmt.Errorf("hub configuration %s:%w", path, err)
	}
	return c, nil
}

// ParseConfig parses the text of a configuration; errors begin with line:column.
func ParseConfig(text []byte) (*Config, error) {
	c, err := readConfig(text)
	if err != nil {
		return nil, strictjson.Locate(text, err)
	}
	return c, nil
}

func readConfig(text []byte) (*Config, error) {
	root, err := strictjson.Parse(text)
	if err != nil {
		return nil, err
	}
	members, err := root.Object("the file", "$schema", "mcpServers", "naming")
	if err != nil {
		return nil, err
	}
	c := &Config{}
	naming := root.At
	for _, m := range members {
		switch m.Name {
		case "$schema":
			err = decodeEntry(m, new(string))
		case "naming":
			naming, err = m.Node.At, decodeEntry(m, &c.Naming)
		case "mcpServers":
			c.Servers, err = readServers(m.Node)
		}
		if err != nil {
			return nil, err
		}
	}
	switch {
	case len(c.Servers) == 0:
		return nil, strictjson.Errorf(root.At, "mcpServers has no server")
	case c.Naming == "" && len(c.Servers) > 1:
		c.Naming = Prefixed
	case c.Naming == "":
		c.Naming = Flat
	case c.Naming != Flat && c.Naming != Prefixed:
		return nil, strictjson.Errorf(naming, "naming is %q; use %q or %q", c.Naming, Flat, Prefixed)
	}
	return c, nil
}

func readServers(n strictjson.Node) (list []Server, err error) {
	members, err := n.Object("mcpServers")
	if err != nil {
		return nil, err
	}
	if len(members) > maxServers {
		return nil, strictjson.Errorf(members[maxServers].At, "mcpServers has %d servers; at most %d", len(members), maxServers)
	}
	for _, m := range members {
		s, err := readServer(m)
		if err != nil {
			return nil, err
		}
		if s.Name != "" {
			list = append(list, s)
		}
	}
	return list, nil
}

func decodeEntry(m strictjson.Member, into any) error {
	if _, isMap := into.(*map[string]string); isMap {
		if _, err := m.Object(m.Name); err != nil { // if a variable is repeated, the second would win
			return err
		}
	}
	var wrong *json.UnmarshalTypeError
	if err := json.Unmarshal(m.Raw, into); errors.As(err, &wrong) {
		return strictjson.Errorf(m.Node.At, "%s must be %s, found %s", m.Name, mustBe[m.Name], wrong.Value)
	} else if err != nil {
		return strictjson.Errorf(m.Node.At, "%s: %s", m.Name, err)
	}
	return nil
}

// mustBe returns the error for a key with a wrong value.
var mustBe = map[string]string{
	"$schema": "a string", "naming": "a string", "type": "a string", "transport": "a string", "command": "a string", "cwd": "a string", "url": "a string",
	"args": "a list of strings", "env": "an object of strings", "timeout": "a number of seconds", "shell": "true or false", "perSession": "true or false",
	"path": "a list of directories", "headers": `an object of {"file": "…"} or {"env": "…"}`, "enabled": "true or false", "restart": "true or false",
}

func readServer(m strictjson.Member) (Server, error) {
	var e entry
	into := map[string]any{
		"type": &e.Type, "transport": &e.Transport, "command": &e.Command, "args": &e.Args, "env": &e.Env,
		"cwd": &e.Cwd, "url": &e.URL, "path": &e.Path, "headers": &e.Headers, "enabled": &e.Enabled, "restart": &e.Restart, "timeout": &e.Timeout, "shell": &e.Shell, "perSession": &e.PerSession,
	}
	if !serverName.MatchString(m.Name) {
		return Server{}, strictjson.Errorf(m.At, "a server's name has 1 to 32 of a-z 0-9 _ -, not %q", m.Name)
	}
	for _, k := range m.Members {
		if k.Name == "security" {
			return Server{}, strictjson.Errorf(k.At, "security of server %s belongs into hub.policy.json, as servers.%s.allowed_directories and read_only", m.Name, m.Name)
		}
	}
	members, err := m.Object("server "+m.Name, slices.Sorted(maps.Keys(into))...)
	if err != nil {
		return Server{}, err
	}
	places := map[string]int64{}
	for _, k := range members {
		places[k.Name] = k.At
		if err := decodeEntry(k, into[k.Name]); err != nil {
			return Server{}, err
		}
	}
	if e.Enabled != nil && !*e.Enabled {
		return Server{}, nil
	}
	s, key, why := e.checkEntry(m.Name, places)
	if why != "" {
		at, ok := places[key]
		if !ok {
			at = m.At
		}
		return Server{}, strictjson.Errorf(at, "server %s: %s", m.Name, why)
	}
	return s, nil
}

// checkEntry checks an entry. On an error it also returns the key.
func (e entry) checkEntry(name string, given map[string]int64) (s Server, key, why string) {
	s = Server{PerSession: e.PerSession, Config: upstream.Config{
		Name: name, Command: e.Command, Args: e.Args, Env: e.Env, Cwd: e.Cwd, URL: e.URL,
		CallTimeout: time.Duration(e.Timeout * float64(time.Second)), Shell: e.Shell,
		Path: e.Path, Headers: e.Headers, NoRestart: e.Restart != nil && !*e.Restart,
	}}
	kind := e.Type
	if kind == "" {
		kind = e.Transport
	}
	if e.Type != "" && e.Transport != "" && e.Type != e.Transport {
		return s, "transport", "type and transport differ; give one"
	}
	if _, ok := given["timeout"]; ok && (s.CallTimeout < time.Millisecond || s.CallTimeout > maxTimeout) {
		return s, "timeout", "timeout must be 0.001 to 3600 seconds"
	}
	if (e.Command == "") == (e.URL == "") {
		return s, "", "give a command or a url, not both"
	}
	if e.URL != "" {
		return s.checkRemote(kind, given)
	}
	switch {
	case kind != "" && kind != "stdio":
		return s, "type", fmt.Sprintf("a command speaks stdio, not %q", kind)
	case len(e.Headers) > 0:
		return s, "headers", "headers is for a url, not for a command"
	case slices.ContainsFunc(e.Path, func(dir string) bool { return !filepath.IsAbs(dir) || strings.ContainsAny(dir, ":\x00") }):
		return s, "path", "path must be a list of absolute directories without a colon"
	case !filepath.IsAbs(e.Command) && (len(e.Path) == 0 || strings.Contains(e.Command, "/")):
		return s, "command", "command must be an absolute path, or a name with a list of directories in path; the hub's own PATH is not used"
	case e.Cwd != "" && !filepath.IsAbs(e.Cwd):
		return s, "cwd", "cwd must be an absolute path"
	}
	for _, text := range append([]string{e.Command, e.Cwd}, e.Args...) {
		if strings.ContainsRune(text, 0) {
			return s, "args", "no program can be given a NUL"
		}
	}
	for _, k := range slices.Sorted(maps.Keys(e.Env)) {
		if !envName.MatchString(k) || strings.ContainsRune(e.Env[k], 0) {
			return s, "env", fmt.Sprintf("env has %q, which can't be a variable", k)
		}
	}
	return s, "", ""
}

// checkRemote checks the keys of a server with an address.
func (s Server) checkRemote(kind string, given map[string]int64) (_ Server, key, why string) {
	for _, k := range []string{"args", "cwd", "env", "path", "perSession"} {
		if _, ok := given[k]; ok {
			return s, k, k + " is for a command, not for a url"
		}
	}
	u, err := url.Parse(s.URL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || u.User != nil || u.Fragment != "" {
		return s, "url", "url must be http:// or https:// with a host, without a user or a fragment"
	}
	for _, name := range slices.Sorted(maps.Keys(s.Headers)) {
		if from := s.Headers[name]; !httpguts.ValidHeaderFieldName(name) || (from.File == "") == (from.Env == "") || from.File != "" && !filepath.IsAbs(from.File) {
			return s, "headers", fmt.Sprintf(`header %q must be {"file": "/absolute/path"} or {"env": "NAME"}`, name)
		}
	}
	switch kind {
	case "", "http", "streamable-http":
		s.Transport = "streamable-http"
	case "sse":
		s.Transport = "sse"
	default:
		return s, "type", fmt.Sprintf("a url is of type streamable-http, http or sse, not %q", kind)
	}
	return s, "", ""
}
