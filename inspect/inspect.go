// Package inspect reads the surface of an image: its programs, routes, listeners, tools, switches, privileges, users,
// packages and sizes.
package inspect

import (
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/mcp"
	"github.com/slimctl/slimctl/inspect/nginx"
	"github.com/slimctl/slimctl/inspect/packages"
	"github.com/slimctl/slimctl/inspect/privilege"
	"github.com/slimctl/slimctl/inspect/size"
	"github.com/slimctl/slimctl/inspect/start"
	"github.com/slimctl/slimctl/inspect/supervisord"
)

// Image is an image of one platform, with everything read from it.
type Image struct {
	// Reference is the image's name as its user wrote it.
	Reference string
	// Digest is that of the manifest.
	Digest   v1.Hash
	Platform v1.Platform
	// RawManifest is the stored manifest.
	RawManifest []byte
	// Annotations are those of the manifest.
	Annotations map[string]string
	// RawConfig is the stored image config.
	RawConfig []byte
	Files     *tree.Image
	// Packages maps paths to packages.
	Packages *packages.Database
	Surface  *Surface
}

// Surface is what an image exposes. It is the JSON of slimctl inspect: fields are added, never renamed.
type Surface struct {
	Reference string `json:"reference"`
	Digest    string `json:"digest"`
	// IndexDigest is the digest of the index through which the image was opened; empty without one.
	IndexDigest string `json:"indexDigest,omitempty"`
	Platform    string `json:"platform"`
	// Line is the generation of the base's layout, A, B or C; empty if unknown.
	Line   string       `json:"line,omitempty"`
	Config Config       `json:"config"`
	Start  start.Report `json:"start"`
	// Programs are those of supervisord; Supervisord is the rest of its configuration, or nil if there is none.
	Programs    []supervisord.Program `json:"programs"`
	Supervisord *supervisord.Config   `json:"supervisord,omitempty"`
	// Dormant lists files like supervisord's configuration that nothing reads.
	Dormant []supervisord.Config `json:"dormant,omitempty"`
	// Nginx holds a configuration for each main file with which a program starts nginx, and for each choice of its
	// templates.
	Nginx []nginx.Config `json:"nginx,omitempty"`
	// Routes lists the locations of all these configurations, each once.
	Routes    []nginx.Route      `json:"routes"`
	MCP       mcp.Report         `json:"mcp"`
	Listeners []Listener         `json:"listeners"`
	Privilege privilege.Report   `json:"privilege"`
	Packages  []packages.Package `json:"packages"`
	Size      size.Sizes         `json:"size"`
	// Notes lists everything that a reader could not interpret.
	Notes []tree.Note `json:"notes,omitempty"`
}

// Config is the part of the image config that starts a container.
type Config struct {
	Entrypoint   []string          `json:"entrypoint,omitempty"`
	Cmd          []string          `json:"cmd,omitempty"`
	User         string            `json:"user,omitempty"`
	WorkingDir   string            `json:"workingDir,omitempty"`
	Env          map[string]string `json:"env,omitempty"`
	ExposedPorts []string          `json:"exposedPorts,omitempty"`
	Volumes      []string          `json:"volumes,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
	Healthcheck  []string          `json:"healthcheck,omitempty"`
	StopSignal   string            `json:"stopSignal,omitempty"`
}

// Outside counts the routes that answer requests from outside the container other than with an error, and the listeners
// reachable from there.
func (s *Surface) Outside() (routes, listeners int) {
	for _, r := range s.Routes {
		if r.Public && r.Answers {
			routes++
		}
	}
	for _, l := range s.Listeners {
		if !l.Loopback {
			listeners++
		}
	}
	return routes, listeners
}

// Listener is an address on which something will listen, according to the configuration.
type Listener struct {
	// Address is "*", an IP address, or "unix:/path"; Port is 0 for a socket file.
	Address  string     `json:"address"`
	Port     int        `json:"port,omitempty"`
	Loopback bool       `json:"loopback"`
	By       string     `json:"by"` // "nginx", or a program's name
	Place    tree.Place `json:"place"`
}

// String returns "ADDRESS:PORT", or "unix:/path".
func (l Listener) String() string {
	if l.Port == 0 {
		return l.Address
	}
	return fmt.Sprintf("%s:%d", l.Address, l.Port)
}
