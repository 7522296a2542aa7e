package hub

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/slimctl/slimctl/server/hub/upstream"
)

// DefaultConfig is where the image has its file.
const DefaultConfig = "/opt/gem/mcp-hub.json"

// Naming says how the hub names what several servers offer.
type Naming string

const (
	Flat     Naming = "flat"         // as the server does; the default for one server
	Prefixed Naming = "server__tool" // the server's name before it; the default for several
)

// Config is a read mcp-hub.json.
type Config struct {
	Naming  Naming
	Servers []Server // in the file's order
}

// Server is one entry of mcpServers.
type Server struct {
	upstream.Config

	// PerSession gives each session of the older era a process of its own, as
	// stdio was meant to be: what the server asks or tells its client then has
	// one client to go to. Requests without a session share one process.
	PerSession bool
}

// entry is what the file says of a server; see its keys in known.
type entry struct {
	Type, Transport string
	Command         string
	Args            []string
	Env             map[string]string
	Cwd             string
	URL             string
	Timeout         float64
	Shell           bool
	PerSession      bool
}

var (
	knownTop   = []string{"$schema", "mcpServers", "naming"}
	knownEntry = []string{"args", "command", "cwd", "env", "perSession", "shell", "timeout", "transport", "type", "url"}
	serverName = regexp.MustCompile(`^[a-z0-9_-]{1,32}$`)
	envName    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// Bounds on a configuration.
const (
	maxConfig  = 1 << 20 // bytes
	maxServers = 64
	maxTimeout = time.Hour
)

// LoadConfig reads a file. It refuses unknown and doubled keys, null, and
// files that others may write; errors say where: file:line:column.
func LoadConfig(path string) (*Config, error) {
	text, err := readConfig(path)
	if err != nil {
		return nil, fmt.Errorf("hub configuration: %w", err)
	}
	c, err := parseConfig(text)
	if err != nil {
		return nil, fmt.Errorf("hub configuration %s:%w", path, err)
	}
	return c, nil
}

// readConfig checks what it opened, so that nothing can be put in its place.
func readConfig(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO would wait for its writer
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", path)
	case info.Mode().Perm()&0o002 != 0: // it names programs to run
		return nil, fmt.Errorf("anyone may write %s (mode %04o); chmod o-w", path, info.Mode().Perm())
	}
	text, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err == nil && len(text) > maxConfig {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxConfig)
	}
	return text, err
}

// fault is what is wrong at a place of the file.
type fault struct {
	at   int64
	text string
}

func (f *fault) Error() string { return f.text }

// reader walks through the text, because encoding/json would let a second key
// win, take keys in any case, and lose their order and places.
type reader struct {
	text []byte
	dec  *json.Decoder
}

func parseConfig(text []byte) (*Config, error) {
	r := &reader{text: text, dec: json.NewDecoder(bytes.NewReader(text))}
	c := &Config{}
	err := r.top(c)
	if err == nil {
		return c, nil
	}
	at := r.dec.InputOffset()
	var f *fault
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &f):
		at = f.at
	case errors.As(err, &syntax):
		at = syntax.Offset
	case errors.Is(err, io.EOF):
		err = errors.New("the file ends too early")
	}
	head := text[:min(int(at), len(text))]
	return nil, fmt.Errorf("%d:%d: %w", 1+bytes.Count(head, []byte("\n")), len(head)-bytes.LastIndexByte(head, '\n'), err)
}

func (r *reader) top(c *Config) error {
	names := map[string]bool{}
	err := r.object("the file", knownTop, func(key string, at int64) error {
		switch key {
		case "naming":
			return r.decode(key, at, &c.Naming)
		case "mcpServers":
			return r.object("mcpServers", nil, func(name string, at int64) error {
				s, err := r.server(name, at)
				c.Servers = append(c.Servers, s)
				names[name] = true
				return err
			})
		}
		return r.decode(key, at, new(string))
	})
	if err != nil {
		return err
	}
	if _, err := r.dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is text after the object; remove it")
	}
	switch {
	case len(c.Servers) == 0:
		return errors.New("mcpServers has no server")
	case len(c.Servers) > maxServers:
		return fmt.Errorf("mcpServers has %d servers; at most %d", len(c.Servers), maxServers)
	}
	switch c.Naming {
	case Flat, Prefixed:
	case "":
		c.Naming = Flat
		if len(c.Servers) > 1 {
			c.Naming = Prefixed
		}
	default:
		return fmt.Errorf("naming is %q; use %q or %q", c.Naming, Flat, Prefixed)
	}
	return nil
}

// object reads one object and gives each of its keys, which must be in known
// unless that is nil, to value.
func (r *reader) object(what string, known []string, value func(key string, at int64) error) error {
	at := r.place()
	tok, err := r.dec.Token()
	if err != nil {
		return err
	}
	if tok != json.Delim('{') {
		return &fault{at, what + " must be an object"}
	}
	seen := map[string]bool{}
	for r.dec.More() {
		at := r.place()
		tok, err := r.dec.Token()
		if err != nil {
			return err
		}
		key, _ := tok.(string) // the decoder gives strings here
		switch {
		case seen[key]:
			return &fault{at, fmt.Sprintf("%s has the key %q twice", what, key)}
		case known != nil && !slices.Contains(known, key):
			return &fault{at, fmt.Sprintf("%s has an unknown key %q; known are %s", what, key, strings.Join(known, ", "))}
		}
		seen[key] = true
		if err := value(key, at); err != nil {
			return err
		}
	}
	_, err = r.dec.Token()
	return err
}

// place is where the next token begins.
func (r *reader) place() int64 {
	rest := r.text[r.dec.InputOffset():]
	return r.dec.InputOffset() + int64(len(rest)-len(bytes.TrimLeft(rest, ",: \t\r\n")))
}

// decode reads the value of a key.
func (r *reader) decode(key string, at int64, into any) error {
	var raw json.RawMessage
	if err := r.dec.Decode(&raw); err != nil {
		return err
	}
	if string(raw) == "null" {
		return &fault{at, key + " may not be null; leave it out"}
	}
	var wrong *json.UnmarshalTypeError
	if err := json.Unmarshal(raw, into); errors.As(err, &wrong) {
		return &fault{at, fmt.Sprintf("%s must be %s, found %s", key, mustBe[key], wrong.Value)}
	} else if err != nil {
		return &fault{at, key + ": " + err.Error()}
	}
	return nil
}

// mustBe says what a key's value must be.
var mustBe = map[string]string{
	"$schema": "a string", "naming": "a string", "type": "a string", "transport": "a string", "command": "a string", "cwd": "a string", "url": "a string",
	"args": "a list of strings", "env": "an object of strings", "timeout": "a number of seconds", "shell": "true or false", "perSession": "true or false",
}

func (r *reader) server(name string, at int64) (Server, error) {
	var e entry
	into := map[string]any{
		"type": &e.Type, "transport": &e.Transport, "command": &e.Command, "args": &e.Args, "env": &e.Env,
		"cwd": &e.Cwd, "url": &e.URL, "timeout": &e.Timeout, "shell": &e.Shell, "perSession": &e.PerSession,
	}
	places := map[string]int64{}
	err := r.object("server "+name, knownEntry, func(key string, at int64) error {
		places[key] = at
		return r.decode(key, at, into[key])
	})
	if err != nil {
		return Server{}, err
	}
	if !serverName.MatchString(name) {
		return Server{}, &fault{at, fmt.Sprintf("a server's name has 1 to 32 of a-z 0-9 _ -, not %q", name)}
	}
	s, key, why := e.server(name, places)
	if why != "" {
		if p, ok := places[key]; ok {
			at = p
		}
		return Server{}, &fault{at, fmt.Sprintf("server %s: %s", name, why)}
	}
	return s, nil
}

// server checks an entry. If something is wrong it says why, and at which key.
func (e entry) server(name string, given map[string]int64) (s Server, key, why string) {
	s = Server{PerSession: e.PerSession, Config: upstream.Config{
		Name: name, Command: e.Command, Args: e.Args, Env: e.Env, Cwd: e.Cwd, URL: e.URL,
		CallTimeout: time.Duration(e.Timeout * float64(time.Second)), Shell: e.Shell,
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
		return s, "", "it needs a command or a url, and not both"
	}
	if e.URL != "" {
		return s.remote(kind, given)
	}
	switch {
	case kind != "" && kind != "stdio":
		return s, "type", fmt.Sprintf("a command speaks stdio, not %q", kind)
	case !filepath.IsAbs(e.Command):
		return s, "command", "command must be an absolute path: nothing is looked up in PATH"
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

// remote checks what belongs to an address only.
func (s Server) remote(kind string, given map[string]int64) (_ Server, key, why string) {
	for _, k := range []string{"args", "cwd", "env", "perSession"} {
		if _, ok := given[k]; ok {
			return s, k, k + " is for a command, not for a url"
		}
	}
	u, err := url.Parse(s.URL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || u.User != nil || u.Fragment != "" {
		return s, "url", "url must be http:// or https:// with a host, without a user or a fragment"
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
