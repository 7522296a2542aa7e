// Package nginx reads nginx's configuration out of an image: servers, listeners, routes and what each leads to, with
// nginx's own precedence.
package nginx

import (
	"context"

	"github.com/slimctl/slimctl/image/tree"
)

// Config is one main file with everything that it includes.
type Config struct {
	// Path is the main file.
	Path string `json:"path"`
	// Variant names the choice of rendered templates where there are several, such as
	// "/opt/gem/nginx-server-active.conf from /opt/gem/nginx-server-with-auth.conf".
	Variant string `json:"variant,omitempty"`
	// User is the user directive's.
	User string `json:"user,omitempty"`
	// Files are all files read, in the order that nginx reads them; of a rendered file the template.
	Files []string `json:"files"`
	// Includes are all include directives.
	Includes []Include `json:"includes,omitempty"`
	// Upstreams maps the name of each upstream block to its servers' addresses.
	Upstreams map[string][]string `json:"upstreams,omitempty"`
	Maps      []Map               `json:"maps,omitempty"`
	Servers   []Server            `json:"servers"`
	// Notes tell of what nginx would not start with (a duplicate location, an unknown variable, a missing file), and of
	// what this package does not understand.
	Notes []tree.Note `json:"notes,omitempty"`
}

// Include is an include directive.
type Include struct {
	Pattern string     `json:"pattern"`
	Files   []string   `json:"files,omitempty"`
	Place   tree.Place `json:"place"`
}

// Map is a map directive: Variable has a value by Source.
type Map struct {
	Source   string            `json:"source"`
	Variable string            `json:"variable"`
	Values   map[string]string `json:"values"`
	Place    tree.Place        `json:"place"`
}

// Listen is a listen directive.
type Listen struct {
	// Value is as written: "8080", "[::]:8080", "127.0.0.1:8081", "unix:/run/x.sock".
	Value string `json:"value"`
	// Address is "*", "[::]", an IP address, a host name or "unix:/path"; Port is 0 for a unix socket and for a
	// placeholder that nothing is known of.
	Address string `json:"address"`
	Port    int    `json:"port,omitempty"`
	// Loopback is true for 127.0.0.0/8, ::1, localhost and unix sockets.
	Loopback bool       `json:"loopback"`
	Default  bool       `json:"default,omitempty"`
	Place    tree.Place `json:"place"`
}

// Server is a server block.
type Server struct {
	Listen []Listen `json:"listen"`
	// Names are the server_name arguments; a regular expression starts with "~".
	Names []string `json:"names,omitempty"`
	// Direct is what the server block itself does with every request (return, rewrite), before any location.
	Direct    *Target    `json:"direct,omitempty"`
	Locations []Location `json:"locations"`
	Place     tree.Place `json:"place"`
}

// Location is a location block.
type Location struct {
	// Modifier is "", "=", "^~", "~", "~*" or "@".
	Modifier string `json:"modifier,omitempty"`
	Pattern  string `json:"pattern"`
	// Internal is true for what no request from outside reaches.
	Internal bool `json:"internal,omitempty"`
	// Auth is the URI of the auth_request in force, with inheritance; empty when there is none or it is off.
	Auth   string `json:"auth,omitempty"`
	Target Target `json:"target"`
	// Locations are those nested in it.
	Locations []Location `json:"locations,omitempty"`
	Place     tree.Place `json:"place"`
}

// Kinds of a Target.
const (
	Proxy    = "proxy"    // proxy_pass, grpc_pass, fastcgi_pass, uwsgi_pass, scgi_pass, memcached_pass
	Static   = "static"   // files, by root or alias
	Return   = "return"   // a status of its own
	Rewrite  = "rewrite"  // another location of the same server
	Deny     = "deny"     // access rules refuse everybody
	Redirect = "redirect" // a 3xx to somewhere else
)

// Target is what answers.
type Target struct {
	// Kind is one of the constants.
	Kind string `json:"kind"`
	// Value is as written: an URL, a directory, an URI.
	Value string `json:"value,omitempty"`
	// Status is that of Return and Redirect.
	Status int `json:"status,omitempty"`
	// Addresses are what Value means once upstreams are looked up: "127.0.0.1:8091", "unix:/run/x.sock".
	Addresses []string `json:"addresses,omitempty"`
	// RawURI is true when the path goes on as the client wrote it: a proxy_pass without URI (hole h).
	RawURI bool `json:"rawURI,omitempty"`
	// Chosen names the parts of the request that choose the address, host or port: "$http_x_aio_proxy_port", "$host",
	// "server_name capture $port" (holes b, c, f).
	Chosen []string `json:"chosen,omitempty"`
}

// Route is a location as a request meets it, for lists.
type Route struct {
	// Server names the server: its listeners and names.
	Server string `json:"server"`
	// Path is modifier and pattern: "= /mcp", "/v1", "~ ^/(tickets|actions)$". Pattern is the pattern alone.
	Path    string `json:"path"`
	Pattern string `json:"pattern"`
	Target  Target `json:"target"`
	Auth    string `json:"auth,omitempty"`
	// Public is false when every listener of the server is on loopback.
	Public bool `json:"public"`
	// Answers is true when something other than an error (4xx, 5xx, deny, internal) answers.
	Answers bool       `json:"answers"`
	Place   tree.Place `json:"place"`
}

// Options say what is known of a run.
type Options struct {
	// Rendered maps a file that is made at start to the templates it can be made from. Where one has several, Read gives
	// a Config for each.
	Rendered map[string][]Template
	// Env is the environment that placeholders are filled from. What it lacks stays as written: ${NAME}.
	Env map[string]string
}

// Template is a file that envsubst turns into another.
type Template struct {
	Path string
	// Variables are those that envsubst replaces; nil for all.
	Variables []string
}

// Read reads the configuration whose main file is at path. A main file that isn't there is fs.ErrNotExist; whatever else
// is wrong is a Note, and never an error or a panic.
func Read(ctx context.Context, img *tree.Image, path string, o Options) ([]Config, error) {
	panic("not yet")
}

// Routes lists every location of every server, nested ones too, and each server's Direct.
func (c *Config) Routes() []Route { panic("not yet") }

// Server finds the server that answers on the listener at address:port for the Host given (nginx's order: exact name,
// longest wildcard before, longest wildcard after, first regular expression, default server).
func (c *Config) Server(address string, port int, host string) *Server { panic("not yet") }

// Match finds the location for a path that is decoded and normalised as nginx does it: exact, then the longest prefix
// unless it is ^~, then the first regular expression in order, nested locations included. nil when none is there.
func (s *Server) Match(path string) *Location { panic("not yet") }
