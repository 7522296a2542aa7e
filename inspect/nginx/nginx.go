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
	// Variant names the choice among several rendered templates, such as "/opt/gem/nginx-server-active.conf from
	// /opt/gem/nginx-server-with-auth.conf".
	Variant string `json:"variant,omitempty"`
	// User and Group are those of the user directive, for the workers if nginx is started as root.
	User  string `json:"user,omitempty"`
	Group string `json:"group,omitempty"`
	// Files lists all files read, in nginx's order; for a rendered file its template.
	Files []string `json:"files"`
	// Includes are all include directives.
	Includes []Include `json:"includes,omitempty"`
	// Upstreams maps the name of each upstream block to its servers' addresses. Names of stream's blocks start with
	// "stream:".
	Upstreams map[string][]string `json:"upstreams,omitempty"`
	Maps      []Map               `json:"maps,omitempty"`
	Servers   []Server            `json:"servers"`
	// Notes lists errors that prevent nginx from starting (a duplicate location, an unknown variable, a missing file),
	// and parts that this package does not understand.
	Notes []tree.Note `json:"notes,omitempty"`
}

// Map is a map directive: Source determines the value of Variable.
type Map struct {
	Source   string            `json:"source"`
	Variable string            `json:"variable"`
	Values   map[string]string `json:"values"`
	Place    tree.Place        `json:"place"`
	// Keys are the keys of Values in the file's order: the first regular expression that matches wins.
	Keys []string `json:"keys,omitempty"`
	// Parts are the parts of the request that select the value, also through other maps and set: "$request_uri".
	Parts []string `json:"parts,omitempty"`
	// Decides is the use of the value, as far as it affects access: "location" (which location answers), "if" (a
	// condition), "address" (of a proxy), "auth", "files" (which directory). It is empty for headers, logs and the
	// like.
	Decides []string `json:"decides,omitempty"`
}

// Listen is a listen directive.
type Listen struct {
	// Value is as written: "8080", "[::]:8080", "127.0.0.1:8081", "unix:/run/x.sock".
	Value string `json:"value"`
	// Address is "*", "[::]", an IP address, a host name or "unix:/path"; Port is 0 for a unix socket and for an
	// unknown placeholder.
	Address string `json:"address"`
	Port    int    `json:"port,omitempty"`
	// Loopback is true for 127.0.0.0/8, ::1, localhost and unix sockets.
	Loopback bool `json:"loopback"`
	// Default is true for the server that answers on the socket if no name matches: the one marked as such, or the
	// first.
	Default bool       `json:"default,omitempty"`
	Place   tree.Place `json:"place"`
	// Options are the other arguments: "ssl", "udp", "proxy_protocol".
	Options []string `json:"options,omitempty"`
}

// Protocols of a Server other than HTTP.
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
	// Direct is the answer of the server block itself to every request (return, rewrite), before any location.
	Direct *Target `json:"direct,omitempty"`
	// Cases are its answers to some requests, before any location.
	Cases     []Case     `json:"cases,omitempty"`
	Locations []Location `json:"locations"`
	// Unmatched is the answer to a path without a location; nil if every path has one.
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
	// Internal is true if no request from outside reaches it directly. A rewrite, an error_page, a try_files, or an
	// upstream's X-Accel-Redirect may lead there.
	Internal bool `json:"internal,omitempty"`
	// Auth is the URI of the auth_request in effect, inherited or not. It is empty if there is none or it is off, if
	// Target answers before nginx asks (return, rewrite), and if the requested location itself admits everybody.
	Auth string `json:"auth,omitempty"`
	// Basic is the realm of the auth_basic in effect.
	Basic string `json:"basic,omitempty"`
	// Access lists the allow and deny rules in effect; the first match wins.
	Access []string `json:"access,omitempty"`
	// Methods lists those that limit_except admits if it denies all others; empty for every method. HEAD follows GET.
	Methods []string `json:"methods,omitempty"`
	// Target is the answer if no case applies.
	Target Target `json:"target"`
	// Cases are the answers to some requests: by if, rewrite, limit_except, try_files or error_page.
	Cases []Case `json:"cases,omitempty"`
	// SlashRedirect is true if nginx answers the path without the final slash with a redirect to the one with it.
	SlashRedirect bool `json:"slashRedirect,omitempty"`
	// Locations are its nested locations.
	Locations []Location `json:"locations,omitempty"`
	Place     tree.Place `json:"place"`
}

// Case is the answer to a part of the requests.
type Case struct {
	// When is the condition's directive: "if ($request_method = GET)", "error_page 404 = @x".
	When   string `json:"when"`
	Target Target `json:"target"`
	// Auth is like that of a Location.
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

// Target is an answer.
type Target struct {
	// Kind is one of the constants.
	Kind string `json:"kind"`
	// Value is as written: a URL, a directory, a URI, a directive's name for Handler.
	Value string `json:"value,omitempty"`
	// Status is that of Return and Redirect. For a Rewrite it replaces the answer's own status; 0 keeps that.
	Status int `json:"status,omitempty"`
	// Addresses are the meaning of Value after resolving upstreams: "127.0.0.1:8091", "unix:/run/x.sock". If maps
	// select the address, they are all possible ones. For a Rewrite they are the possible URIs of a Value with
	// variables, if all are known.
	Addresses []string `json:"addresses,omitempty"`
	// RawURI is true if the path is passed on as the client wrote it: a proxy_pass without URI (hole h).
	RawURI bool `json:"rawURI,omitempty"`
	// Chosen lists the parts of the request that select the address, host or port: "$http_x_aio_proxy_port", "$host",
	// "server_name capture $port" (holes b, c, f). For a Rewrite they select the location.
	Chosen []string `json:"chosen,omitempty"`
	// Free is true if the request supplies a part of the address itself; false if it only selects among Addresses.
	Free bool `json:"free,omitempty"`
	// Escapes is true for an alias that ends in "/" below a prefix that does not: /x../ leads to the parent directory.
	Escapes bool `json:"escapes,omitempty"`
}

// Options of conf.Read, and its result for an include directive.
type (
	// Options configures a reading.
	Options = conf.Options
	// Template is a file that envsubst turns into another.
	Template = conf.Template
	// Include is an include directive.
	Include = conf.Include
)

// Read reads the configuration whose main file is at path, as a Config for each choice of templates. A missing main
// file is fs.ErrNotExist, and the end of ctx is an error. Other problems become a Note, never an error or a panic.
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
