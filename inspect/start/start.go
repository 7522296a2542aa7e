// Package start reads what an image does when it starts: the scripts from its entrypoint on, what they render, what of the
// environment they run, and which variables change what the image exposes.
package start

import (
	"context"

	v1 "github.com/google/go-containerregistry/pkg/v1"

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
	// Hooks are what runs words of the environment as a command.
	Hooks []Hook `json:"hooks,omitempty"`
	// Switches are the variables that change what the image exposes or who may use it.
	Switches []Switch `json:"switches,omitempty"`
	// Grants are what the scripts write that gives rights, such as a line for sudo.
	Grants []tree.Note `json:"grants,omitempty"`
	// Notes tell of what could not be followed.
	Notes []tree.Note `json:"notes,omitempty"`
}

// Script is a script that runs at start.
type Script struct {
	Path  string     `json:"path"`
	By    string     `json:"by"` // "entrypoint", or the script that runs it
	Place tree.Place `json:"place"`
}

// Rendering is a file that envsubst makes out of another one.
type Rendering struct {
	Template string `json:"template"`
	Output   string `json:"output"`
	// Variables are those that are replaced; nil for all.
	Variables []string `json:"variables,omitempty"`
	// Once is true when the template is deleted afterwards.
	Once  bool       `json:"once,omitempty"`
	Place tree.Place `json:"place"`
}

// Hook runs a variable's value as a command.
type Hook struct {
	Variable string `json:"variable"`
	// How is the program: "bash -c", "eval".
	How   string     `json:"how"`
	Place tree.Place `json:"place"`
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
	// Places are where it is read.
	Places []tree.Place `json:"places,omitempty"`
}

// Read follows the start of img. What can't be followed is a Note, never an error or a panic.
func Read(ctx context.Context, img *tree.Image, config *v1.Config) (*Report, error) {
	panic("not yet")
}
