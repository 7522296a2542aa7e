// Package supervisord reads supervisord's configuration out of an image, as supervisord 4 would read it.
package supervisord

import (
	"context"

	"github.com/slimctl/slimctl/image/tree"
)

// Config is what one supervisord.conf says, with everything that it includes.
type Config struct {
	// Path is the main file.
	Path string `json:"path"`
	// Files are all files read, in supervisord's order, the main one first.
	Files []string `json:"files"`
	// Includes are the patterns of [include], absolute.
	Includes []string `json:"includes,omitempty"`
	// User is that of [supervisord]; empty for whoever starts it.
	User string `json:"user,omitempty"`
	// Sockets are the control sockets: who reaches one stops and starts programs.
	Sockets []Socket `json:"sockets,omitempty"`
	// Programs are what this supervisord manages, in the order of their sections.
	Programs []Program `json:"programs"`
	// Notes tell of what would not start, and of lines that make no sense.
	Notes []tree.Note `json:"notes,omitempty"`
}

// Socket is a control socket of supervisord: [unix_http_server] or [inet_http_server].
type Socket struct {
	// Address is a path, or HOST:PORT.
	Address string `json:"address"`
	// Mode is the chmod of a unix socket as written; supervisord's default is 0700.
	Mode  string     `json:"mode,omitempty"`
	Owner string     `json:"owner,omitempty"`
	Place tree.Place `json:"place"`
}

// Program is a [program:x], [eventlistener:x] or [fcgi-program:x] section.
type Program struct {
	Name string `json:"name"`
	// Kind is the section's: "program", "eventlistener" or "fcgi-program".
	Kind string `json:"kind"`
	// Command is as written, continuation lines joined by a space, %(ENV_X)s not expanded.
	Command string `json:"command"`
	// User is as written; empty is supervisord's own.
	User string `json:"user,omitempty"`
	// Priority is 999 when not said; lower starts first.
	Priority int `json:"priority"`
	// Autostart is "true", "false", or an expression such as "%(ENV_AUTOSTART_VNC)s".
	Autostart string `json:"autostart"`
	// Variables are the environment variables that command, user, autostart or numprocs take in, sorted.
	Variables []string `json:"variables,omitempty"`
	// Environment is what `environment=` sets, values as written.
	Environment map[string]string `json:"environment,omitempty"`
	Place       tree.Place        `json:"place"`
}

// Read reads the configuration whose main file is at path. env is the environment that %(ENV_X)s is looked up in for
// includes and the like; what it lacks stays as written. A main file that isn't there is fs.ErrNotExist; whatever else is
// wrong is a Note, and never an error or a panic.
func Read(ctx context.Context, img *tree.Image, path string, env map[string]string) (*Config, error) {
	panic("not yet")
}

// Dormant reads files that look like supervisord's but are read by none of configs: a copy that something could put in
// place. Each Config has the programs of one file.
func Dormant(ctx context.Context, img *tree.Image, configs ...*Config) ([]Config, error) {
	panic("not yet")
}
