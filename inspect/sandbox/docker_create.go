package sandbox

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
)

// imageID returns Docker's ID of the image. An image that isn't there is loaded, and kept for later starts. A tag of
// loadedName is believed, unlike an ID, which is a digest: whoever can set a tag in Docker can start any container as root.
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
	tag, err := name.NewTag(loadedName + ":" + config.Hex)
	if err != nil {
		return "", err
	}
	for _, id := range []string{config.String(), manifest.String(), tag.String()} { // by what the daemon's image store numbers them
		if found, err := e.api.ImageInspect(ctx, id); err == nil {
			if slices.Contains(found.RepoTags, tag.String()) {
				err = e.noteUse(ctx, tag.String())
			}
			return found.ID, err
		}
	}
	if err := e.load(ctx, tag); err != nil {
		return "", fmt.Errorf("load the image into docker: %w", err)
	}
	return tag.String(), e.noteUse(ctx, tag.String())
}

func (e *dockerEngine) load(ctx context.Context, tag name.Tag) error {
	r, w := io.Pipe()
	defer r.Close()
	go func() { w.CloseWithError(tarball.Write(tag, e.s.image, w)) }()
	answer, err := e.api.ImageLoad(ctx, r, client.ImageLoadWithQuiet(true))
	if err != nil {
		return err
	}
	defer answer.Close()
	for dec := json.NewDecoder(answer); ; {
		var message struct{ Error string }
		if err := dec.Decode(&message); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if message.Error != "" {
			return errors.New(message.Error)
		}
	}
}

// noteUse makes now the time at which the image was last used: Docker keeps the time of the last tagging.
func (e *dockerEngine) noteUse(ctx context.Context, tag string) error {
	if _, err := e.api.ImageTag(ctx, client.ImageTagOptions{Source: tag, Target: tag}); err != nil {
		return fmt.Errorf("docker: %w", err)
	}
	return nil
}

// sweepImages removes the loaded images that no run has used for keepLoaded. What can't be removed is for a later run.
func (e *dockerEngine) sweepImages(ctx context.Context) {
	images, err := e.api.ImageList(ctx, client.ImageListOptions{Filters: client.Filters{}.Add("reference", loadedName)})
	if err != nil {
		return
	}
	for _, i := range images.Items {
		for _, tag := range i.RepoTags {
			if strings.HasPrefix(tag, loadedName+":") {
				_ = e.sweepImage(ctx, tag, time.Now().Add(-keepLoaded))
			}
		}
	}
}

// sweepImage removes a loaded image that was last used before a time. Docker refuses it for one that a container has.
func (e *dockerEngine) sweepImage(ctx context.Context, tag string, before time.Time) error {
	found, err := e.api.ImageInspect(ctx, tag)
	if err != nil {
		return err
	}
	switch used := found.Metadata.LastTagTime; {
	case used.IsZero(): // its slimctl was killed
		return e.noteUse(ctx, tag)
	case used.Before(before):
		_, err = e.api.ImageRemove(ctx, tag, client.ImageRemoveOptions{PruneChildren: true})
	}
	return err
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
	for _, f := range p.binds {
		bind(f.source, f.target, true)
	}
	for _, k := range p.keeps { // volumes: an ordinary user can't read what another account leaves in a directory of his
		h.Mounts = append(h.Mounts, mount.Mount{Type: mount.TypeVolume, Target: k.mount})
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

// giveVolumes lets the user that the container starts as write to its volumes, which Docker makes for root. A second container
// that has them, and is never started, takes an archive that changes their owner: into one with a read-only root nothing
// can be copied.
func (e *dockerEngine) giveVolumes(ctx context.Context, ref string) error {
	config, err := e.s.image.ConfigFile()
	if err != nil {
		return err
	}
	user := cmp.Or(e.s.plan.User, config.Config.User)
	if name, _, _ := strings.Cut(user, ":"); len(e.s.plan.keeps) == 0 || name == "" || name == "0" || name == "root" {
		return nil
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, k := range e.s.plan.keeps {
		h := tar.Header{Typeflag: tar.TypeDir, Name: strings.TrimPrefix(k.mount, "/") + "/", Mode: 0o755}
		if m := numericUser.FindStringSubmatch(user); m != nil {
			h.Uid, _ = strconv.Atoi(m[1])
			h.Gid, _ = strconv.Atoi(cmp.Or(m[2], "0"))
		} else {
			h.Mode = 0o1777 // only the image knows the number
		}
		if err := w.WriteHeader(&h); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	made, err := e.api.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config:     &container.Config{Image: ref, Cmd: []string{"/"}, Labels: map[string]string{labelRun: e.s.run.id, labelCache: e.s.runner.CacheDir}},
		HostConfig: &container.HostConfig{VolumesFrom: []string{e.id}, NetworkMode: "none"},
	})
	if err != nil {
		return fmt.Errorf("docker: %w", err)
	}
	_, err = e.api.CopyToContainer(ctx, made.ID, client.CopyToContainerOptions{DestinationPath: "/", Content: &archive})
	_, rerr := e.api.ContainerRemove(context.WithoutCancel(ctx), made.ID, client.ContainerRemoveOptions{Force: true})
	return errors.Join(err, rerr)
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
