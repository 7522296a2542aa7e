package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
)

// imageID gives a name of the image in Docker, and loads it there when it isn't.
func (e *dockerEngine) imageID(ctx context.Context) (string, error) {
	img := e.s.image
	config, err := img.ConfigName()
	if err != nil {
		return "", err
	}
	manifest, err := img.Digest()
	if err != nil {
		return "", err
	}
	for _, id := range []string{config.String(), manifest.String()} { // by what the daemon's image store numbers them
		if found, err := e.api.ImageInspect(ctx, id); err == nil {
			return found.ID, nil
		}
	}
	tag, err := name.NewTag(loadedName + ":" + e.s.run.id)
	if err != nil {
		return "", err
	}
	r, w := io.Pipe()
	defer r.Close()
	go func() { w.CloseWithError(tarball.Write(tag, img, w)) }()
	answer, err := e.api.ImageLoad(ctx, r, client.ImageLoadWithQuiet(true))
	if err != nil {
		return "", fmt.Errorf("load the image into docker: %w", err)
	}
	defer answer.Close()
	for dec := json.NewDecoder(answer); ; {
		var message struct{ Error string }
		if err := dec.Decode(&message); errors.Is(err, io.EOF) {
			return loadedName + ":" + e.s.run.id, nil
		} else if err != nil {
			return "", fmt.Errorf("load the image into docker: %w", err)
		}
		if message.Error != "" {
			return "", fmt.Errorf("load the image into docker: %s", message.Error)
		}
	}
}

func (e *dockerEngine) config(ref string) (*container.Config, *container.HostConfig, error) {
	p := e.s.plan
	c := &container.Config{
		Image: ref, User: p.User, Cmd: p.Command, Hostname: e.s.run.name(), AttachStdout: true, AttachStderr: true,
		Env: environment(nil, nil, p.Env), AttachStdin: e.s.tethered, OpenStdin: e.s.tethered, StdinOnce: e.s.tethered,
		Labels: map[string]string{labelRun: e.s.run.id, labelCache: e.s.runner.CacheDir},
		// What an image's health check would print and use isn't part of the run.
		Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
	}
	if !e.isolated() {
		c.ExposedPorts = network.PortSet{}
	}
	h := &container.HostConfig{
		NetworkMode: container.NetworkMode(e.network()), ReadonlyRootfs: p.ReadOnly, ShmSize: p.ShmSize,
		CapDrop: []string{"ALL"}, CapAdd: p.caps, Tmpfs: map[string]string{}, PortBindings: network.PortMap{},
		LogConfig: container.LogConfig{Type: "none"}, // they are read as they come
		Resources: container.Resources{
			Memory: p.Memory, MemorySwap: p.Memory, NanoCPUs: int64(p.CPUs * 1e9),
			Ulimits: []*container.Ulimit{{Name: "core"}},
		},
	}
	if p.PIDs > 0 {
		h.PidsLimit = &p.PIDs
	}
	if p.NoNewPrivileges {
		h.SecurityOpt = []string{"no-new-privileges"}
	}
	for _, t := range p.tmpfs {
		h.Tmpfs[t.path] = strings.Join(t.options, ",")
	}
	bind := func(source, target string, readOnly bool) {
		h.Mounts = append(h.Mounts, mount.Mount{
			Type: mount.TypeBind, Source: source, Target: target, ReadOnly: readOnly,
			BindOptions: &mount.BindOptions{NonRecursive: true},
		})
	}
	if p.Work != "" {
		bind(p.Work, "/work", true)
	}
	if p.Output != "" {
		who := p.User
		if config, err := e.s.image.ConfigFile(); err == nil && who == "" {
			who = config.Config.User
		}
		if err := giveTo(outputDir(e.s.run.dir), who); err != nil {
			return nil, nil, err
		}
		bind(outputDir(e.s.run.dir), "/output", false)
	}
	if e.isolated() {
		return c, h, nil // it is reached by its tether
	}
	for _, pub := range p.publish {
		port, _ := network.PortFrom(pub.Port, network.TCP) // never an error for tcp
		c.ExposedPorts[port] = struct{}{}
		h.PortBindings[port] = append(h.PortBindings[port], network.PortBinding{
			HostIP: pub.Host.Addr(), HostPort: strconv.Itoa(int(pub.Host.Port())),
		})
	}
	return c, h, nil
}

// isolated reports whether the container has loopback alone.
func (e *dockerEngine) isolated() bool {
	return e.s.plan.Network == NetworkNone || e.s.plan.Network == NetworkEgress
}

// network gives Docker's name of the container's network.
func (e *dockerEngine) network() string {
	if e.isolated() {
		return "none"
	}
	return e.s.plan.Network
}

// giveTo lets USER[:GROUP] write to a directory: numbers become its owner; a name, which only the image can tell, means that
// everybody may. The directory above is closed to others of this machine.
func giveTo(dir, user string) error {
	u, g, _ := strings.Cut(user, ":")
	uid, uerr := strconv.Atoi(u + map[bool]string{true: "0"}[u == ""])
	gid, gerr := strconv.Atoi(g + map[bool]string{true: "0"}[g == ""])
	if uerr == nil && gerr == nil && os.Chown(dir, uid, gid) == nil {
		return nil
	}
	return os.Chmod(dir, 0o777|os.ModeSticky)
}

// published asks which ports Docker chose.
func (e *dockerEngine) published(ctx context.Context) error {
	if e.isolated() || len(e.s.plan.publish) == 0 {
		return nil
	}
	info, err := e.api.ContainerInspect(ctx, e.id, client.ContainerInspectOptions{})
	if err != nil {
		return fmt.Errorf("docker: %w", err)
	}
	taken := map[netip.AddrPort]bool{}
	for _, pub := range e.s.plan.publish {
		port, _ := network.PortFrom(pub.Port, network.TCP)
		for _, b := range info.Container.NetworkSettings.Ports[port] {
			n, err := strconv.ParseUint(b.HostPort, 10, 16)
			host := netip.AddrPortFrom(b.HostIP, uint16(n))
			if err == nil && b.HostIP == pub.Host.Addr() && !taken[host] && (pub.Host.Port() == 0 || pub.Host.Port() == uint16(n)) {
				taken[host] = true
				e.s.ports = append(e.s.ports, &forward{Publication: Publication{host, pub.Port}})
				break
			}
		}
	}
	return nil
}
