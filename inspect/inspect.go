// Package inspect reads the surface of an image: what it exposes, to whom, and what could change that.
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

// Image is an image of one platform, with what was read of it.
type Image struct {
	// Reference is the image as it was given.
	Reference string
	// Digest is the manifest's.
	Digest   v1.Hash
	Platform v1.Platform
	// RawManifest is the manifest as it is stored.
	RawManifest []byte
	// Annotations are the manifest's.
	Annotations map[string]string
	// RawConfig is the image config as it is stored.
	RawConfig []byte
	Files     *tree.Image
	// Packages answers which package a path belongs to.
	Packages *packages.Database
	Surface  *Surface
}

// Surface is what an image exposes. It is slimctl inspect's JSON: fields are added, never renamed.
type Surface struct {
	Reference string `json:"reference"`
	Digest    string `json:"digest"`
	// IndexDigest is the digest of the index that the image was opened from; empty without one.
	IndexDigest string `json:"indexDigest,omitempty"`
	Platform    string `json:"platform"`
	// Line is the generation of the base's layout, A, B or C; empty when it can't be told any more.
	Line   string        `json:"line,omitempty"`
	Config Config        `json:"config"`
	Start  *start.Report `json:"start"`
	// Programs are what supervisord runs; Supervisord has the rest of its configuration. nil when there is none.
	Programs    []supervisord.Program `json:"programs"`
	Supervisord *supervisord.Config   `json:"supervisord,omitempty"`
	// Dormant are files like supervisord's that nothing reads as the image is.
	Dormant []supervisord.Config `json:"dormant,omitempty"`
	// Nginx has each main file that a program starts nginx with, and each choice of its templates.
	Nginx []nginx.Config `json:"nginx,omitempty"`
	// Routes are the locations of all of them, each once.
	Routes    []nginx.Route      `json:"routes"`
	MCP       *mcp.Report        `json:"mcp"`
	Listeners []Listener         `json:"listeners"`
	Privilege *privilege.Report  `json:"privilege"`
	Packages  []packages.Package `json:"packages"`
	Size      size.Sizes         `json:"size"`
	// Notes are everything that a reader could not make sense of.
	Notes []tree.Note `json:"notes,omitempty"`
}

// Config is the part of the image config that a container starts with.
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

// Outside counts the routes that answer requests from outside the container with anything but an error, and the listeners that
// are reached from there.
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

// Listener is an address that something will listen on, as far as configuration tells.
type Listener struct {
	// Address is "*", an IP address, or "unix:/path"; Port is 0 for a socket file.
	Address  string     `json:"address"`
	Port     int        `json:"port,omitempty"`
	Loopback bool       `json:"loopback"`
	By       string     `json:"by"` // "nginx", or a program's name
	Place    tree.Place `json:"place"`
}

// String is "ADDRESS:PORT", or "unix:/path".
func (l Listener) String() string {
	if l.Port == 0 {
		return l.Address
	}
	return fmt.Sprintf("%s:%d", l.Address, l.Port)
}
