// Package nginx reads nginx's configuration out of an image: servers, listeners, routes and what each leads to, with
// nginx's own precedence. The files, their words and includes are read by inspect/nginx/conf; here is what they mean:
//
//	build.go      from directives to servers; listen.go, location.go, pass.go, rewrite.go and errors.go their parts
//	variables.go  what a variable can be, and which part of the request decides
//	check.go      what nginx refuses of all that
//	match.go      which server and which location a request meets
//	routes.go     what each request ends in
//
// Words, includes, precedence and the phases of a request are nginx's, and tests hold them against nginx itself. Of what the
// model leaves out, it notes what could matter: modules, Lua, njs, Perl, SSI, and directives that neither the base nor a closed
// image has (conf's notFollowed). Two ways between locations are not in it: an
// upstream's X-Accel-Redirect, and the redirect of the index directive to a file by the path.
package nginx

import (
	"context"

	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/nginx/conf"
)

// Config is one main file with everything that it includes.
type Config struct {
	// Path is the main file.
	Path string `json:"path"`
	// Variant names the choice of rendered templates where there are several, such as
	// "/opt/gem/nginx-server-active.conf from /opt/gem/nginx-server-with-auth.conf".
	Variant string `json:"variant,omitempty"`
	// User and Group are the user directive's: whom the workers run as when nginx is started as root.
	User  string `json:"user,omitempty"`
	Group string `json:"group,omitempty"`
	// Files are all files read, in the order that nginx reads them; of a rendered file the template.
	Files []string `json:"files"`
	// Includes are all include directives.
	Includes []Include `json:"includes,omitempty"`
	// Upstreams maps the name of each upstream block to its servers' addresses. Names of stream's blocks start with
	// "stream:".
	Upstreams map[string][]string `json:"upstreams,omitempty"`
	Maps      []Map               `json:"maps,omitempty"`
	Servers   []Server            `json:"servers"`
	// Notes tell of what nginx would not start with (a duplicate location, an unknown variable, a missing file), and of
	// what this package does not understand.
	Notes []tree.Note `json:"notes,omitempty"`
}

// Map is a map directive: Variable has a value by Source.
type Map struct {
	Source   string            `json:"source"`
	Variable string            `json:"variable"`
	Values   map[string]string `json:"values"`
	Place    tree.Place        `json:"place"`
	// Keys are those of Values, as ordered in the file: the first regular expression that matches counts.
	Keys []string `json:"keys,omitempty"`
	// Parts are the parts of the request that choose the value, through other maps and set too: "$request_uri".
	Parts []string `json:"parts,omitempty"`
	// Decides says what the value is used for, as far as it matters who gets where: "location" (which location answers),
	// "if" (a condition), "address" (of a proxy), "auth", "files" (which directory). Empty when it is used for headers, logs
	// and the like only.
	Decides []string `json:"decides,omitempty"`
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
	Loopback bool `json:"loopback"`
	// Default is true for the server that answers on the socket when no name fits: the one that says so, or the first.
	Default bool       `json:"default,omitempty"`
	Place   tree.Place `json:"place"`
	// Options are the other arguments: "ssl", "udp", "proxy_protocol".
	Options []string `json:"options,omitempty"`
}

// Protocols of a Server. An HTTP server has none.
const (
	Stream = "stream" // TCP or UDP, by stream {}
	Mail   = "mail"   // IMAP, POP3 or SMTP, by mail {}
)

// Server is a server block.
type Server struct {
	// Protocol is "" for HTTP, or one of the constants.
	Protocol string   `json:"protocol,omitempty"`
	Listen   []Listen `json:"listen"`
	// Names are the server_name arguments; a regular expression starts with "~".
	Names []string `json:"names,omitempty"`
	// Direct is what the server block itself does with every request (return, rewrite), before any location.
	Direct *Target `json:"direct,omitempty"`
	// Cases are what it does with some requests, before any location.
	Cases     []Case     `json:"cases,omitempty"`
	Locations []Location `json:"locations"`
	// Unmatched is what answers a path that no location takes; nil when there is a location for every path.
	Unmatched *Location `json:"unmatched,omitempty"`
	// KeepSlashes is merge_slashes off: //x is not /x.
	KeepSlashes bool       `json:"keepSlashes,omitempty"`
	Place       tree.Place `json:"place"`
}

// Location is a location block.
type Location struct {
	// Modifier is "", "=", "^~", "~", "~*" or "@".
	Modifier string `json:"modifier,omitempty"`
	Pattern  string `json:"pattern"`
	// Internal is true for what no request from outside reaches. A rewrite, an error_page, a try_files, or an upstream's
	// X-Accel-Redirect may lead there.
	Internal bool `json:"internal,omitempty"`
	// Auth is the URI of the auth_request in force, with inheritance; empty when there is none or it is off, when Target answers
	// before nginx asks (return, rewrite), and when the location that is asked lets everybody in by itself.
	Auth string `json:"auth,omitempty"`
	// Basic is the realm of the auth_basic in force.
	Basic string `json:"basic,omitempty"`
	// Access are the allow and deny rules in force, the first that fits counts.
	Access []string `json:"access,omitempty"`
	// Methods are those that limit_except lets through when it denies all others; empty for every method. HEAD goes with GET.
	Methods []string `json:"methods,omitempty"`
	// Target is what answers when no case does.
	Target Target `json:"target"`
	// Cases are what answers some requests instead: by if, rewrite, limit_except, try_files or error_page.
	Cases []Case `json:"cases,omitempty"`
	// SlashRedirect is true when nginx answers the path without the last slash with a redirect to the one with it.
	SlashRedirect bool `json:"slashRedirect,omitempty"`
	// Locations are those nested in it.
	Locations []Location `json:"locations,omitempty"`
	Place     tree.Place `json:"place"`
}

// Case is what answers a part of the requests.
type Case struct {
	// When is the directive that chooses: "if ($request_method = GET)", "error_page 404 = @x".
	When   string `json:"when"`
	Target Target `json:"target"`
	// Auth is as a Location's.
	Auth  string     `json:"auth,omitempty"`
	Place tree.Place `json:"place"`
}

// Kinds of a Target.
const (
	Proxy    = "proxy"    // proxy_pass
	Static   = "static"   // files, by root or alias
	Return   = "return"   // a status of its own
	Rewrite  = "rewrite"  // another location of the same server
	Deny     = "deny"     // access rules refuse everybody
	Redirect = "redirect" // a 3xx to somewhere else
	Handler  = "handler"  // a server of stream or mail
)

// Target is what answers.
type Target struct {
	// Kind is one of the constants.
	Kind string `json:"kind"`
	// Value is as written: an URL, a directory, an URI, a directive's name for Handler.
	Value string `json:"value,omitempty"`
	// Status is that of Return and Redirect. Of a Rewrite it is the one that the answer has instead of its own; 0 for its own.
	Status int `json:"status,omitempty"`
	// Addresses are what Value means once upstreams are looked up: "127.0.0.1:8091", "unix:/run/x.sock". Where maps choose
	// it is all that they can choose. Of a Rewrite they are the URIs that Value can mean, when it has variables and all of
	// them are known.
	Addresses []string `json:"addresses,omitempty"`
	// RawURI is true when the path goes on as the client wrote it: a proxy_pass without URI (hole h).
	RawURI bool `json:"rawURI,omitempty"`
	// Chosen names the parts of the request that choose the address, host or port: "$http_x_aio_proxy_port", "$host",
	// "server_name capture $port" (holes b, c, f). Of a Rewrite they choose the location.
	Chosen []string `json:"chosen,omitempty"`
	// Free is true when the request writes a part of the address itself; false when it only chooses among Addresses.
	Free bool `json:"free,omitempty"`
	// Escapes is true for an alias that ends in "/" below a prefix that does not: /x../ leads to the directory above.
	Escapes bool `json:"escapes,omitempty"`
}

// What conf.Read is asked with, and an include directive as it tells of it.
type (
	// Options say what is known of a run.
	Options = conf.Options
	// Template is a file that envsubst turns into another.
	Template = conf.Template
	// Include is an include directive.
	Include = conf.Include
)

// Read reads the configuration whose main file is at path, a Config for each choice of templates. A main file that isn't
// there is fs.ErrNotExist; whatever else is wrong is a Note, and never an error or a panic, but for a ctx that ends.
func Read(ctx context.Context, img *tree.Image, path string, o Options) ([]Config, error) {
	var out []Config
	for c, err := range conf.Read(ctx, img, path, o) {
		if err != nil {
			return nil, err
		}
		out = append(out, *meaning(c))
	}
	return out, nil
}
