// Package start reads what an image does when it starts: the scripts from its entrypoint on, what they render, what of the
// environment they run, and which variables change what the image exposes.
package start

import (
	"context"
	"path"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"mvdan.cc/sh/v3/syntax"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// Report is what is known of a start.
type Report struct {
	// Command is entrypoint and command together.
	Command []string `json:"command"`
	// Scripts are the shell scripts from there on, in the order that they are met.
	Scripts []Script `json:"scripts,omitempty"`
	// Supervisord is the main file of the supervisord that is started; empty when none is seen.
	Supervisord string `json:"supervisord,omitempty"`
	// Renderings are the files made from templates.
	Renderings []Rendering `json:"renderings,omitempty"`
	// Changes are files that are made, changed or removed otherwise.
	Changes []Change `json:"changes,omitempty"`
	// Environment is what the scripts set for the programs, sorted by name.
	Environment []Variable `json:"environment,omitempty"`
	// Clean is true when that and Choices are the whole environment of the programs: nothing of the container's goes on.
	Clean bool `json:"clean,omitempty"`
	// Hooks are what runs words of the environment as a command.
	Hooks []Hook `json:"hooks,omitempty"`
	// Switches are the variables that change what the image exposes or who may use it.
	Switches []Switch `json:"switches,omitempty"`
	// Choices are the variables that the start itself sets for what it starts, to one of a few values.
	Choices []Choice `json:"choices,omitempty"`
	// Grants are what the scripts write that gives rights, such as a line for sudo.
	Grants []tree.Note `json:"grants,omitempty"`
	// Notes tell of what could not be followed.
	Notes []tree.Note `json:"notes,omitempty"`

	shell *shell
}

// Script is a script that runs at start.
type Script struct {
	// Path is where it lies, links followed; Link is how it is called when that is by a link.
	Path string `json:"path"`
	Link string `json:"link,omitempty"`
	// By is "entrypoint", the script that runs it, or the supervisord program whose command it is.
	By    string     `json:"by"`
	Place tree.Place `json:"place"`
}

// Rendering is a file that envsubst makes out of another one, or a copy of it: then Variables is empty and not nil.
type Rendering struct {
	Template string `json:"template"`
	Output   string `json:"output"`
	// Variables are those that are replaced; nil for all.
	Variables []string `json:"variables,omitempty"`
	// Values are those of Variables that are known when the container is started with the image's own environment.
	Values map[string]string `json:"values,omitempty"`
	// Once is true when the template is deleted afterwards.
	Once bool `json:"once,omitempty"`
	// Dormant is true when the image as it is doesn't come to it: the template isn't there, or a script asks for a file
	// that is or isn't there.
	Dormant bool       `json:"dormant,omitempty"`
	Place   tree.Place `json:"place"`
}

// Choice is a variable with the values that it can have: SLIM_NGINX_CONF and the four main files of the closed image.
type Choice struct {
	Variable string   `json:"variable"`
	Values   []string `json:"values"`
}

// Change is a file that scripts make, change or remove by other means than envsubst.
type Change struct {
	Path string `json:"path"`
	// How is the means: ">", ">>", "touch", "tee", "sed -i", "rm".
	How string `json:"how"`
	// Variables are those of the environment that decide on its content or on whether it happens, sorted.
	Variables []string `json:"variables,omitempty"`
	// Dormant is as in Rendering.
	Dormant bool       `json:"dormant,omitempty"`
	Place   tree.Place `json:"place"`
}

// Made are the files that the scripts make and nothing takes away again, by path: those of Changes whose means makes a file,
// where the image comes to it. Whether one is made may depend on the Change's Variables. What Renderings make is not among them.
func (r *Report) Made() map[string]bool {
	made := map[string]bool{}
	for _, c := range r.Changes {
		switch c.How {
		case ">", ">>", "touch", "tee", "cp", "mv", "install", "ln":
			if !c.Dormant {
				made[c.Path] = true
			}
		}
	}
	for _, c := range r.Changes {
		if c.How == "rm" {
			delete(made, c.Path)
		}
	}
	return made
}

// Variable is one that the scripts give to the programs.
type Variable struct {
	Name string `json:"name"`
	// Value is what it is when the container is started with the image's own environment, if Known.
	Value string `json:"value,omitempty"`
	Known bool   `json:"known,omitempty"`
	// From are the variables of the environment that decide on it, sorted.
	From []string `json:"from,omitempty"`
}

// Hook runs a variable's value as a command, or as part of one that a shell reads.
type Hook struct {
	Variable string `json:"variable"`
	// How is the program: "bash -c", "eval"; "exec" and "command" for a variable that names the program itself.
	How string `json:"how"`
	// Dormant is as in Rendering.
	Dormant bool       `json:"dormant,omitempty"`
	Place   tree.Place `json:"place"`
}

// Kinds of a Switch.
const (
	Program  = "program"  // starts or stops a program
	Command  = "command"  // is run as a command
	Listener = "listener" // moves or adds a listener
	Auth     = "auth"     // decides who may come in
	MCP      = "mcp"      // adds MCP servers
	Outbound = "proxy"    // decides where traffic goes, or adds servers that proxy
	Browser  = "browser"  // changes the browser's command line or policies
	Code     = "code"     // names code or configuration that is loaded
	Account  = "account"  // names or numbers accounts and places
	Wait     = "wait"     // makes the start wait or skip
	Other    = "other"    // is read, with no effect known
)

// Switch is an environment variable that the start reads.
type Switch struct {
	Name string `json:"name"`
	// Kind is one of the constants.
	Kind   string `json:"kind"`
	Effect string `json:"effect"`
	// Value is the image's own, from its config; Set says that it has one.
	Value string `json:"value,omitempty"`
	Set   bool   `json:"set,omitempty"`
	// Programs are the supervisord programs that it starts or stops.
	Programs []string `json:"programs,omitempty"`
	// Dormant is true when it is read only where the image as it is doesn't come to, as in Rendering.
	Dormant bool `json:"dormant,omitempty"`
	// Places are where it is read.
	Places []tree.Place `json:"places,omitempty"`
}

// Read follows the start of img. What can't be followed is a Note, never an error or a panic.
func Read(ctx context.Context, img *tree.Image, config *v1.Config) (*Report, error) {
	r := &Report{}
	sh := &shell{
		ctx: ctx, img: img, report: r, env: map[string]string{}, scripts: map[string]*script{}, templates: map[string][]string{}, reads: map[string]*reading{},
		touched: map[string]names{}, decides: map[string][]string{},
	}
	r.shell = sh
	if config == nil {
		config = &v1.Config{}
	}
	for _, e := range config.Env {
		name, v, _ := strings.Cut(e, "=")
		sh.env[name] = v
	}
	r.Command = append(append([]string{}, config.Entrypoint...), config.Cmd...)
	switch {
	case len(r.Command) == 0:
		sh.note(tree.Place{}, "the image has neither entrypoint nor command")
	case isInit(r.Command):
		sh.init(r.Command)
	default:
		f := sh.frame()
		var args []value
		for _, w := range r.Command {
			args = append(args, literal(w))
		}
		if err := sh.prefetch(r.Command[0]); err != nil {
			return nil, err
		}
		before := len(r.Scripts)
		sh.outside(f, args, syntax.Pos{})
		if len(r.Scripts) == before && r.Supervisord == "" && len(r.Notes) == 0 {
			sh.note(img.Place(r.Command[0], 0), "it is what the image starts, and it can't be followed")
		}
	}
	if sh.err != nil {
		return nil, sh.err
	}
	sh.madeConfiguration()
	if r.Clean {
		return r, nil
	}
	for _, name := range sorted(sh.started) {
		v := sh.started[name]
		if !v.outer || len(v.why) > 0 {
			r.Environment = append(r.Environment, Variable{name, v.text, v.known, v.data.with(v.why)})
		}
	}
	sh.finish()
	return r, nil
}

// frame is where the entrypoint runs.
func (sh *shell) frame() *frame {
	return &frame{vars: &store{}, funcs: map[string]function{}, args: &[]value{}, bash: true}
}

// prefetch reads the scripts around the first one at once: each read of an image goes through whole layers.
func (sh *shell) prefetch(first string) error {
	e, ok := sh.img.Stat(first)
	if !ok {
		return nil
	}
	var paths []string
	dirs := []string{path.Dir(e.Path)}
	for _, d := range sh.img.Dir(dirs[0]) {
		if d.IsDir() {
			dirs = append(dirs, d.Path)
		}
	}
	for _, dir := range dirs {
		for _, d := range sh.img.Dir(dir) {
			if strings.HasSuffix(d.Path, ".sh") && d.Type == image.TypeFile && d.Size <= maxScript && len(paths) < maxScripts/2 {
				paths = append(paths, d.Path)
			}
		}
	}
	if len(paths) == 0 {
		return nil
	}
	content, err := sh.img.ReadFiles(sh.ctx, paths...)
	if err != nil {
		return err
	}
	for p, data := range content {
		s := &script{path: p}
		sh.parsed(s, string(data))
		sh.scripts[p] = s
	}
	return nil
}

// madeConfiguration puts the template in the place of a supervisord configuration that is made from it.
func (sh *shell) madeConfiguration() {
	r := sh.report
	if _, ok := sh.img.Stat(r.Supervisord); ok || r.Supervisord == "" {
		return
	}
	for _, x := range r.Renderings {
		if x.Output == r.Supervisord && !x.Dormant {
			sh.note(x.Place, "supervisord is started with %s, which is made from %s: that is read in its place", x.Output, x.Template)
			r.Supervisord = x.Template
			return
		}
	}
}
