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

// PublicPort is the one port of an image that slimctl built.
const PublicPort = 8080

// entry is how an image starts that slimctl built. With one more word it holds a tether.
var (
	entry    = []string{"/usr/local/bin/browser-shell", "init"}
	tethered = "--tether"
)

// maxOutside bounds the connections out of a container.
const maxOutside = 1024

// Ours reports whether slimctl built the image: whether it starts as one that it built.
func (i Image) Ours() (bool, error) {
	config, err := i.ConfigFile()
	if err != nil {
		return false, err
	}
	return slices.Equal(config.Config.Entrypoint, entry), nil
}

// chooseNetwork settles how the container is connected. An image that slimctl built has no network but its tether, whether
// egress or none.
func (s *Sandbox) chooseNetwork() error {
	ours, err := s.image.Ours()
	if err != nil {
		return err
	}
	p := s.plan
	if p.policy != nil && !ours {
		return errors.New("policy: only an image that slimctl built has one; leave it out")
	}
	if p.Network == "" {
		p.Network = map[bool]string{true: NetworkEgress, false: NetworkNone}[ours && len(p.Command) == 0]
	}
	if s.runner.Outgoing != nil && p.Network != NetworkEgress {
		return fmt.Errorf("outgoing proxy: network %s doesn't go out through it; want network egress", p.Network)
	}
	if p.netns != "" && len(p.publish) > 0 {
		return errors.New("publish: with network path:FILE the port is reached in that network")
	}
	if p.Network != NetworkEgress && p.Network != NetworkNone {
		return nil
	}
	if ours && len(p.Command) == 0 {
		s.tethered = true
		p.Command = []string{tethered}
		for _, pub := range p.publish {
			if pub.Port != PublicPort {
				return fmt.Errorf("publish %s:%d: the image answers on port %d only", pub.Host, pub.Port, PublicPort)
			}
		}
		return nil
	}
	if p.Network == NetworkEgress {
		return errors.New("network egress: it is for images that slimctl built, started without a command of your own; use --network none, " +
			"or with Docker the name of a network, such as bridge")
	}
	if len(p.publish) > 0 {
		return errors.New("publish: with network none only images that slimctl built can be reached; with Docker name a network, such as --network bridge")
	}
	return nil
}

// openTether takes up the connection to the container's first process, and serves what it asks for outside.
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
		_ = serve(life, s.tether)  // it ends with the tether
		if s.tether.Err() != nil { // otherwise the container has ended, or is about to
			s.stop(errUntied)
		}
	}()
	return nil
}

var errUntied = errors.New("its tether broke")

// managedPolicy is the file of the closed image that holds Chromium's side of the policy.
const managedPolicy = "/etc/browser/policies/managed/zz-browser-shell.json"

// bindPolicy puts the policy that was read, and Chromium's that fits it, in the place of the image's. They are copies, so that
// what was checked is what is used.
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

// egress makes the proxy that stands outside of a container. It keeps the policy that the user gave; without one it admits any
// public address, and the container's own proxy keeps the image's policy. An image's never opens what is private here.
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

// Tethered reports whether the image is one that slimctl built, connected by a tether alone.
func (s *Sandbox) Tethered() bool { return s.tethered }

// Dial connects to the port of an image that slimctl built, through its tether, from wherever slimctl runs.
func (s *Sandbox) Dial(ctx context.Context) (net.Conn, error) {
	if s.tether == nil {
		return nil, errors.New("dial: only an image that slimctl built can be reached, with network egress or none")
	}
	return s.tether.Dial(ctx)
}
