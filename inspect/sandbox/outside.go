package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/internal/tether"
	"github.com/slimctl/slimctl/server/egress"
	"github.com/slimctl/slimctl/server/policy"
)

// PublicPort is the only port of an image that slimctl built.
const PublicPort = 8080

// entry is the entrypoint of an image that slimctl built. With one more argument it keeps a tether.
var (
	entry    = []string{"/usr/local/bin/browser-shell", "init"}
	tethered = "--tether"
)

// maxOutside limits the connections out of a container.
const maxOutside = 1024

// Ours reports whether slimctl built the image, by its entrypoint.
func (i Image) Ours() (bool, error) {
	config, err := i.ConfigFile()
	if err != nil {
		return false, err
	}
	return slices.Equal(config.Config.Entrypoint, entry), nil
}

// chooseNetwork chooses the container's network. An image that slimctl built has only its tether, with both egress and
// none.
func (s *Sandbox) chooseNetwork() error {
	ours, err := s.image.Ours()
	if err != nil {
		return err
	}
	p := s.plan
	if p.policy != nil && !ours {
		return errors.New("policy: only an image that slimctl built has one; leave out --policy")
	}
	if p.Network == "" {
		p.Network = map[bool]string{true: NetworkEgress, false: NetworkNone}[ours && len(p.Command) == 0]
	}
	if s.runner.Outgoing != nil && p.Network != NetworkEgress {
		return fmt.Errorf("outgoing proxy: network %s doesn't go out through it; want network egress", p.Network)
	}
	for i := range p.publish {
		switch pub := &p.publish[i]; {
		case pub.Port == 0 && ours && len(p.Command) == 0:
			pub.Port = PublicPort
		case pub.Port == 0:
			pub.Port = pub.Host.Port()
		}
	}
	if p.netns != "" && len(p.publish) > 0 {
		return errors.New("publish: with network path:FILE no port is published; leave out -p and connect inside that network")
	}
	if p.Network != NetworkEgress && p.Network != NetworkNone {
		return nil
	}
	if ours && len(p.Command) == 0 {
		s.tethered = true
		p.Command = []string{tethered}
		for _, pub := range p.publish {
			if pub.Port != PublicPort {
				return fmt.Errorf("publish %s:%d: the image answers on port %d only; publish %d", pub.Host, pub.Port, PublicPort, pub.Host.Port())
			}
		}
		return nil
	}
	if p.Network == NetworkEgress {
		return errors.New("network egress: only for images that slimctl built, started without a command of your own; use --network none, " +
			"or with Docker the name of a network, such as bridge")
	}
	if len(p.publish) > 0 {
		return errors.New("publish: with network none only images that slimctl built can be reached; with Docker name a network, such as --network bridge")
	}
	return nil
}

// openTether connects to the container's first process, and serves its requests to the outside.
func (s *Sandbox) openTether(ctx context.Context, conn io.ReadWriteCloser) error {
	s.tether = tether.Open(conn)
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	serve := egress.Refuse
	if s.plan.Network == NetworkEgress {
		proxy, err := s.runner.egress(s.plan.policy)
		if err != nil {
			cancel()
			return err
		}
		serve = proxy.Serve
	}
	go func() {
		defer cancel()
		_ = serve(life, s.tether)  // ends with the tether
		if s.tether.Err() != nil { // otherwise the container has ended, or is about to
			s.stop(errUntied)
		}
	}()
	return nil
}

var errUntied = errors.New("the connection to the container's first process broke")

// managedPolicy is the file of the closed image with Chromium's managed policy.
const managedPolicy = "/etc/browser/policies/managed/zz-browser-shell.json"

// bindPolicy replaces the image's policy by the checked one, and Chromium's by the matching one. They are copies, so
// the container uses what was checked.
func (s *Sandbox) bindPolicy() error {
	p := s.plan
	if p.policy == nil {
		return nil
	}
	chromium, err := egress.Managed(p.policy)
	if err != nil {
		return err
	}
	for target, text := range map[string][]byte{policy.DefaultPath: p.text, managedPolicy: chromium} {
		file := filepath.Join(s.run.dir, filepath.Base(target))
		if err := image.WriteBytes(file, 0o644, text); err != nil {
			return err
		}
		p.binds = append(p.binds, bind{file, target})
	}
	return nil
}

// egress returns the proxy outside of a container. It applies the user's policy. Without one it admits any public
// address, and the container's own proxy applies the image's policy. An image's policy never opens private addresses
// here.
func (r Runner) egress(given *policy.Policy) (*egress.Proxy, error) {
	p := policy.Default()
	if given != nil {
		copied := *given
		p = &copied
	}
	p.Egress.MaxConnections = maxOutside
	if r.Outgoing != nil {
		if err := r.Outgoing.Check(); err != nil {
			return nil, err
		}
	}
	proxy := egress.New(p, r.World, r.Outgoing, func(egress.Decision) error { return nil })
	proxy.Sites = r.Sites
	return proxy, nil
}

// Tethered reports whether slimctl built the image and connects it by a tether only.
func (s *Sandbox) Tethered() bool { return s.tethered }

// Dial connects to the port of an image that slimctl built, through its tether.
func (s *Sandbox) Dial(ctx context.Context) (net.Conn, error) {
	if s.tether == nil {
		return nil, errors.New("dial: only an image that slimctl built can be reached, with network egress or none")
	}
	return s.tether.Dial(ctx)
}
