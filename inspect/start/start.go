// Package start finds out what an image does when it starts: the scripts from its entrypoint on, the files that they
// render, the words of the environment that they run, and the variables that change what the image exposes. start.go
// begins at the entrypoint, init.go describes the entry of a closed image, follow.go continues with the programs of
// supervisord, switches.go has the effect of each variable, and line.go finds the base's line. inspect/shell walks
// through the scripts.
package start

import (
	"context"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/shell"
)

// Report is the result of following a start.
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
	// Environment are the variables that the scripts set for the programs, sorted by name.
	Environment []Variable `json:"environment,omitempty"`
	// Clean is true when Environment and Choices are the whole environment of the programs, without the container's.
	Clean bool `json:"clean,omitempty"`
	// Hooks are the places at which words from the environment are run as a command.
	Hooks []Hook `json:"hooks,omitempty"`
	// Switches are the variables that change what the image exposes or who may use it.
	Switches []Switch `json:"switches,omitempty"`
	// Choices are the variables that the start itself sets for what it starts, to one of a few values.
	Choices []Choice `json:"choices,omitempty"`
	// Grants lists files that the scripts write and that grant rights, such as a line for sudo.
	Grants []tree.Note `json:"grants,omitempty"`
	// Notes lists parts that could not be followed.
	Notes []tree.Note `json:"notes,omitempty"`

	img     *tree.Image
	walk    *shell.Walk
	env     map[string]string   // the image's own environment
	decides map[string][]string // programs that a variable starts or stops
}

// Findings of a walk that a report has too.
type (
	// Script is a script that runs at start.
	Script = shell.Script
	// Rendering is a file that is made from a template.
	Rendering = shell.Rendering
	// Change is a file that is made, changed or removed otherwise.
	Change = shell.Change
	// Hook runs a variable's value as a command.
	Hook = shell.Hook
	// Variable is a variable that the scripts set for the programs.
	Variable = shell.Variable
	// Job is a program of supervisord.
	Job = shell.Job
)

// Made returns the files that the scripts make by other means than Renderings and that nothing removes again, by path.
// Whether a file is made may depend on the Change's Variables.
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

// Choice is a variable with the values that the start may set it to: SLIM_NGINX_CONF and the four main files of the
// closed image.
type Choice struct {
	Variable string   `json:"variable"`
	Values   []string `json:"values"`
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
	// Value is its value in the image's config; Set is true when the config has one.
	Value string `json:"value,omitempty"`
	Set   bool   `json:"set,omitempty"`
	// Programs are the supervisord programs that it starts or stops.
	Programs []string `json:"programs,omitempty"`
	// Dormant is true when it is read only in branches that the image's own files rule out, as in Rendering.
	Dormant bool `json:"dormant,omitempty"`
	// Places are where it is read.
	Places []tree.Place `json:"places,omitempty"`
}

// Read follows the start of img. What can't be followed becomes a Note, never an error or a panic.
func Read(ctx context.Context, img *tree.Image, config *v1.Config) (*Report, error) {
	r := &Report{img: img, env: map[string]string{}, decides: map[string][]string{}}
	r.walk = shell.New(img, r.env)
	if config == nil {
		config = &v1.Config{}
	}
	for _, e := range config.Env {
		name, v, _ := strings.Cut(e, "=")
		r.env[name] = v
	}
	r.Command = append(append([]string{}, config.Entrypoint...), config.Cmd...)
	switch {
	case len(r.Command) == 0:
		r.walk.Note(tree.Place{}, "the image has neither entrypoint nor command")
	case isInit(r.Command):
		r.describeInit(r.Command)
	default:
		if err := r.walk.Start(ctx, r.Command); err != nil {
			return nil, err
		}
		r.Supervisord = r.walk.Supervisord
	}
	r.useTemplate()
	r.copyFindings()
	if r.Clean {
		return r, nil
	}
	r.Environment = r.walk.Environment()
	r.setSwitches()
	return r, nil
}

// copyFindings sets the report's fields to the walk's findings so far.
func (r *Report) copyFindings() {
	w := r.walk
	r.Scripts, r.Renderings, r.Changes, r.Hooks, r.Grants, r.Notes = w.Scripts, w.Renderings, w.Changes, w.Hooks, w.Grants, w.Notes
}

// useTemplate replaces a supervisord configuration that is made at start by the template that it is made from.
func (r *Report) useTemplate() {
	if _, ok := r.img.Stat(r.Supervisord); ok || r.Supervisord == "" {
		return
	}
	for _, x := range r.walk.Renderings {
		if x.Output == r.Supervisord && !x.Dormant {
			r.walk.Note(x.Place, "supervisord is started with %s, which is made from %s: that is read in its place", x.Output, x.Template)
			r.Supervisord = x.Template
			return
		}
	}
}
