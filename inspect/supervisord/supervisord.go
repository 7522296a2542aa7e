// Package supervisord reads supervisord's configuration in an image, as supervisord 4 does.
package supervisord

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/shlex"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// Config is one supervisord.conf with everything that it includes.
type Config struct {
	// Path is the main file.
	Path string `json:"path"`
	// Files are all files read, in supervisord's order, the main one first.
	Files []string `json:"files"`
	// Includes are the patterns of [include], absolute.
	Includes []string `json:"includes,omitempty"`
	// User is that of [supervisord]; empty for whoever starts it.
	User string `json:"user,omitempty"`
	// Environment is that of [supervisord], which every program gets; values as written.
	Environment map[string]string `json:"environment,omitempty"`
	// Sockets are the control sockets. Anyone who can connect to one can stop and start programs.
	Sockets []Socket `json:"sockets,omitempty"`
	// Programs are those that this supervisord manages, in the order of their sections.
	Programs []Program `json:"programs"`
	// Notes lists programs that would not start, and invalid lines.
	Notes []tree.Note `json:"notes,omitempty"`
}

// Socket is a control socket of supervisord: [unix_http_server] or [inet_http_server].
type Socket struct {
	// Address is a path, or HOST:PORT; a HOST of "*" is every address.
	Address string `json:"address"`
	// Mode is the chmod of a unix socket as written; supervisord's default is 0700.
	Mode  string `json:"mode,omitempty"`
	Owner string `json:"owner,omitempty"`
	// Password is true if a user name and a password are required.
	Password bool       `json:"password,omitempty"`
	Place    tree.Place `json:"place"`
}

// Program is a [program:x], [eventlistener:x] or [fcgi-program:x] section.
type Program struct {
	Name string `json:"name"`
	// Kind is the section's: "program", "eventlistener" or "fcgi-program".
	Kind string `json:"kind"`
	// Group is the [group:x] that it belongs to; empty for one of its own.
	Group string `json:"group,omitempty"`
	// Command is as written, continuation lines joined by a space, %(ENV_X)s not expanded.
	Command string `json:"command"`
	// User is as written; empty is supervisord's own.
	User string `json:"user,omitempty"`
	// Directory is its working directory; empty for supervisord's.
	Directory string `json:"directory,omitempty"`
	// Priority is 999 by default, and -1 for an eventlistener; lower starts first.
	Priority int `json:"priority"`
	// Autostart is "true", "false", or an expression such as "%(ENV_AUTOSTART_VNC)s".
	Autostart string `json:"autostart"`
	// Processes is numprocs as written, the number of processes; empty is 1.
	Processes string `json:"processes,omitempty"`
	// Variables are the environment variables that command, user, autostart or numprocs use, sorted.
	Variables []string `json:"variables,omitempty"`
	// Environment is what `environment=` sets, values as written.
	Environment map[string]string `json:"environment,omitempty"`
	// Socket is the address on which supervisord listens for an fcgi-program: "unix:///path" or "tcp://HOST:PORT".
	Socket string     `json:"socket,omitempty"`
	Place  tree.Place `json:"place"`

	section string // the text after the colon in its header
}

// Limits for reading an image.
const (
	maxFile     = 1 << 20  // bytes of one file
	maxBytes    = 2 << 20  // of all files of a configuration, or read by Dormant
	maxFiles    = 2000     // matched by the patterns of [include], or read by Dormant
	maxSections = 500      // of a configuration, or found by Dormant; the base has 30
	maxValue    = 16 << 10 // bytes of an option
	maxPairs    = 500      // variables of one environment=

	maxListeners = 1000 // of all programs
)

// Read reads the configuration whose main file is at path. env is the environment for %(ENV_X)s in includes and the
// like; missing variables stay as written. A missing main file is fs.ErrNotExist. Other problems become a Note, never
// an error or a panic.
func Read(ctx context.Context, img *tree.Image, path string, env map[string]string) (*Config, error) {
	path = image.Clean(path)
	if _, ok := img.Stat(path); !ok {
		return nil, &fs.PathError{Op: "read", Path: path, Err: fs.ErrNotExist}
	}
	r := &reader{img: img, env: env, ini: newINI(), config: &Config{Path: path, Files: []string{path}}}
	content, err := r.contents(ctx, path)
	if err != nil {
		return nil, err
	}
	r.addFile(path, content)
	if err := r.include(ctx); err != nil {
		return nil, err
	}
	r.buildConfig()
	return r.config, nil
}

// dormantDirs lists directories that may contain a copy of a configuration.
var dormantDirs = []string{"/etc/supervisor", "/etc/supervisord.d", "/opt/gem", "/usr/local/etc"} // in the order of a walk

// Dormant reads files that look like supervisord's but that none of configs reads: a copy that something could
// activate. Each Config has the programs of one file.
func Dormant(ctx context.Context, img *tree.Image, configs ...*Config) ([]Config, error) {
	live := map[string]bool{}
	for _, c := range configs {
		for _, p := range c.Files {
			if e, ok := img.Stat(p); ok {
				live[e.Path] = true
			}
		}
	}
	var r reader
	r.img, r.config = img, &Config{}
	var paths []string
search:
	for _, dir := range dormantDirs {
		for e := range img.Walk(dir) {
			if e.Type != image.TypeFile && e.Type != image.TypeLink || !strings.HasSuffix(e.Path, ".conf") || live[e.Path] {
				continue
			}
			if len(paths) == maxFiles {
				r.addNote(e.Path, 0, "this file and what follows is not looked into: more than %d files of that kind", maxFiles)
				break search
			}
			paths = append(paths, e.Path)
		}
	}
	content, err := r.contents(ctx, paths...)
	if err != nil {
		return nil, err
	}
	var out []Config
	sections := 0
	for _, p := range paths {
		if sections >= maxSections {
			r.addNote(p, 0, "this file and what follows is not looked into: there are more than %d sections in files of that kind", maxSections)
			break
		}
		one := &reader{img: img, ini: newINI(), config: &Config{Path: p, Files: []string{p}}, dormant: true}
		one.addFile(p, content)
		one.buildConfig()
		sections += len(one.ini.order)
		if len(one.config.Programs) > 0 {
			out = append(out, *one.config)
		}
	}
	if len(r.config.Notes) > 0 { // files that can't be read
		out = append(out, Config{Path: r.config.Notes[0].Place.Path, Notes: r.config.Notes})
	}
	return out, nil
}

// Variables returns the names of the environment variables that a value as written uses by %(ENV_X)s, sorted.
func Variables(text string) []string {
	var out []string
	for _, m := range envName.FindAllStringSubmatch(text, -1) {
		out = append(out, m[1])
	}
	slices.Sort(out)
	return slices.Compact(out)
}

var envName = regexp.MustCompile(`%\(ENV_([^)]*)\)`)

// Args returns the words of the command as supervisord runs them, without a shell. It looks up %(ENV_X)s in env and in
// the program's own environment; missing variables stay as written.
func (p *Program) Args(env map[string]string) ([]string, error) {
	lookup := func(name string) (string, bool) {
		switch name {
		case "program_name":
			return p.Name, true
		case "group_name":
			return cmp.Or(p.Group, p.Name), true
		}
		return fromEnv(name, env)
	}
	own := map[string]string{}
	for k, v := range p.Environment {
		own[k], _ = expand(v, lookup)
	}
	command, err := expand(p.Command, func(name string) (string, bool) {
		if v, ok := fromEnv(name, own); ok {
			return v, true
		}
		return lookup(name)
	})
	words, err2 := shlex.Split(command)
	return words, cmp.Or(err, err2)
}

func fromEnv(name string, env map[string]string) (string, bool) {
	key, ok := strings.CutPrefix(name, "ENV_")
	if !ok {
		return "", false
	}
	v, ok := env[key]
	return v, ok
}

// reader reads one configuration.
type reader struct {
	img     *tree.Image
	env     map[string]string
	ini     *ini
	config  *Config
	dormant bool // a file of its own, which may be incomplete
	bytes   int64
}

func (r *reader) addNote(path string, line int, format string, args ...any) {
	const maxNotes = 200
	if len(r.config.Notes) < maxNotes {
		r.config.Notes = append(r.config.Notes, tree.Note{Place: r.img.Place(path, line), Text: fmt.Sprintf(format, args...)})
	}
}

func (r *reader) noteAt(at tree.Place, format string, args ...any) {
	r.addNote(at.Path, at.Line, format, args...)
}

// contents reads files; one that can't be read becomes a Note.
func (r *reader) contents(ctx context.Context, paths ...string) (map[string][]byte, error) {
	var readable []string
	for _, p := range paths {
		switch e, ok := r.img.Stat(p); {
		case !ok:
			r.addNote(p, 0, "the link leads nowhere")
		case e.Type != image.TypeFile && e.Type != image.TypeLink:
			r.addNote(p, 0, "a %s, not a file", e.Type)
		case e.Size > maxFile:
			r.addNote(p, 0, "the file has %d bytes; more than %d are not read", e.Size, maxFile)
		case r.bytes+e.Size > maxBytes:
			r.addNote(p, 0, "not read: there are more than %d bytes of configuration", maxBytes)
		default:
			r.bytes += e.Size
			readable = append(readable, p)
		}
	}
	if len(readable) == 0 {
		return nil, nil
	}
	return r.img.ReadFiles(ctx, readable...)
}

// addFile reads one file with %(here)s replaced.
func (r *reader) addFile(p string, content map[string][]byte) {
	data, ok := content[p]
	if !ok {
		return
	}
	r.ini.readFile(string(data), path.Dir(p), func(line int) tree.Place { return r.img.Place(p, line) },
		func(line int, format string, args ...any) { r.addNote(p, line, format, args...) })
}

func (r *reader) include(ctx context.Context) error {
	s := r.ini.sections["include"]
	if s == nil {
		return nil
	}
	files, ok := r.ini.get(s, "files")
	if !ok {
		r.noteAt(s.headers[0], "[include] has no files: supervisord does not start")
		return nil
	}
	value := r.expand(files, "include.files")
	var paths []string
	for _, pattern := range strings.Fields(value) {
		if !strings.HasPrefix(pattern, "/") {
			pattern = path.Dir(r.config.Path) + "/" + pattern
		}
		r.config.Includes = append(r.config.Includes, pattern)
		if strings.Contains(pattern, "%(") {
			r.noteAt(files.place, "what %q includes depends on the environment", pattern)
			continue
		}
		found, err := tree.Glob(r.img, path.Clean(pattern), maxFiles-len(paths))
		if err != nil {
			r.noteAt(files.place, "not every file that %q names is read: %v", pattern, err)
		}
		paths = append(paths, found...)
	}
	content, err := r.contents(ctx, paths...)
	if err != nil {
		return err
	}
	for _, p := range paths {
		if _, ok := content[p]; ok {
			r.config.Files = append(r.config.Files, p)
			r.addFile(p, content)
		}
	}
	return nil
}

// expand replaces known references; name is for the Note.
func (r *reader) expand(o option, name string) string {
	value, err := expand(o.value, func(name string) (string, bool) { return fromEnv(name, r.env) })
	if err != nil {
		r.noteAt(o.place, "%s: %v: supervisord does not start", name, err)
	}
	return value
}

// buildConfig converts the sections to a Config.
func (r *reader) buildConfig() {
	groups := r.groups()
	for _, s := range r.ini.order {
		if len(s.headers) > 1 {
			r.noteAt(s.headers[1], "[%s] is also at %s: supervisord takes both as one, and of each option the last", s.name, s.headers[0])
		}
		kind, _, named := strings.Cut(s.name, ":")
		switch {
		case named && (kind == "program" || kind == "eventlistener" || kind == "fcgi-program"):
			r.program(s, kind, groups)
		case s.name == "supervisord":
			r.config.User = r.text(s, "user")
			r.config.Environment = r.environment(s)
		case strings.HasPrefix(s.name, "unix_http_server"), strings.HasPrefix(s.name, "inet_http_server"):
			r.socket(s)
		case named && kind == "rpcinterface":
			if f := r.text(s, "supervisor.rpcinterface_factory"); f != "supervisor.rpcinterface:make_main_rpcinterface" {
				r.noteAt(s.headers[0], "[%s] loads Python code by %q", s.name, f)
			}
		case s.name == "include", s.name == "supervisorctl", named && (kind == "group" || kind == "ctlplugin"):
		default:
			r.noteAt(s.headers[0], "[%s] means nothing to supervisord", s.name)
		}
	}
	if r.ini.sections["supervisord"] == nil && !r.dormant {
		r.addNote(r.config.Path, 0, "there is no [supervisord]: supervisord does not start")
	}
}

// groups maps the section name of each program to its group.
func (r *reader) groups() map[string]string {
	out := map[string]string{}
	for _, s := range r.ini.order {
		name, ok := strings.CutPrefix(s.name, "group:")
		if !ok {
			continue
		}
		for _, p := range strings.Split(r.text(s, "programs"), ",") {
			p = strings.TrimSpace(p)
			switch {
			case r.ini.sections["program:"+p] != nil:
				out["program:"+p] = name
			case r.ini.sections["fcgi-program:"+p] != nil:
				out["fcgi-program:"+p] = name
			case !r.dormant:
				r.noteAt(s.headers[0], "[%s] names a program %q that isn't there: supervisord does not start", s.name, p)
			}
		}
	}
	return out
}

// text returns an option's value on one line; empty if it is missing.
func (r *reader) text(s *section, name string) string {
	o, _ := r.ini.get(s, name)
	return strings.Join(strings.FieldsFunc(o.value, func(r rune) bool { return r == '\n' }), " ")
}

func (r *reader) environment(s *section) map[string]string {
	o, ok := r.ini.get(s, "environment")
	if !ok {
		return nil
	}
	env, err := pairs(o.value)
	if err != nil {
		r.noteAt(o.place, "environment: %v: supervisord does not start", err)
	}
	if len(env) > maxPairs {
		r.noteAt(o.place, "environment: it has %d variables; more than %d are not read", len(env), maxPairs)
		env = nil
	}
	return env
}

func (r *reader) socket(s *section) {
	kind := "port"
	if strings.HasPrefix(s.name, "unix") {
		kind = "file"
	}
	o, ok := r.ini.get(s, kind)
	if !ok {
		r.noteAt(s.headers[0], "[%s] has no %s: supervisord does not start", s.name, kind)
		return
	}
	address := strings.TrimSpace(r.expand(o, s.name+"."+kind))
	if kind == "port" {
		i := strings.LastIndexByte(address, ':')
		address = cmp.Or(address[:max(i, 0)], "*") + ":" + address[i+1:]
	}
	_, password := r.ini.get(s, "password")
	r.config.Sockets = append(r.config.Sockets, Socket{
		Address: address, Mode: r.text(s, "chmod"), Owner: r.text(s, "chown"), Password: password, Place: o.place,
	})
}

func (r *reader) program(s *section, kind string, groups map[string]string) {
	_, name, _ := strings.Cut(s.name, ":")
	p := Program{
		Name: strings.TrimSpace(name), Kind: kind, Group: groups[s.name], Command: r.text(s, "command"), User: r.text(s, "user"),
		Directory: r.text(s, "directory"), Priority: 999, Autostart: "true", Processes: r.text(s, "numprocs"),
		Environment: r.environment(s), Place: s.headers[0], section: name,
	}
	if kind == "eventlistener" {
		p.Priority = -1
	}
	if kind == "fcgi-program" {
		p.Socket = r.text(s, "socket")
	}
	if o, ok := r.ini.get(s, "priority"); ok {
		if n, ok := integer(r.expand(o, "priority")); ok {
			p.Priority = n
		}
	}
	if o, ok := r.ini.get(s, "autostart"); ok {
		if b, ok := boolean(o.value); ok {
			p.Autostart = strconv.FormatBool(b)
		} else if strings.Contains(o.value, "%(") {
			p.Autostart = o.value
		}
	}
	p.Variables = Variables(strings.Join([]string{p.Command, p.User, p.Autostart, p.Processes}, "\n"))
	if words, err := p.Args(r.env); err != nil || len(words) == 0 {
		r.noteAt(p.Place, "[%s] has no command that supervisord could start: %q", s.name, p.Command)
	}
	if f := r.text(s, "result_handler"); f != "" {
		r.noteAt(p.Place, "[%s] loads Python code by %q", s.name, f)
	}
	r.config.Programs = append(r.config.Programs, p)
}
