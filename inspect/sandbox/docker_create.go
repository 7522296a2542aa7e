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
	"maps"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"github.com/slimctl/slimctl/image"
)

// imageID returns Docker's ID of the image. It loads a missing image, which stays for later starts. An ID is a digest.
// A tag of loadedName may come from any archive that somebody loads, so the tagged image is compared.
func (e *dockerEngine) imageID(ctx context.Context) (string, error) {
	img := e.s.image
	config, err := img.ConfigName()
	if err != nil {
		return "", err
	}
	file, err := img.ConfigFile()
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
	for _, id := range []string{config.String(), manifest.String(), tag.String()} { // the IDs in Docker's two image stores
		if found, err := e.api.ImageInspect(ctx, id); err == nil && (id != tag.String() || equalsConfig(found, file)) {
			if slices.Contains(found.RepoTags, tag.String()) {
				err = e.noteUse(ctx, tag.String())
			}
			return found.ID, err
		}
	}
	var size int64
	m, err := img.Manifest()
	if err != nil {
		return "", err
	}
	for _, l := range m.Layers {
		size += l.Size
	}
	task := e.s.runner.Progress.Task("load "+img.Reference+" into Docker", size)
	err = e.load(ctx, tag, task.Add)
	task.Done(err)
	if err != nil {
		return "", fmt.Errorf("load the image into docker: %w", err)
	}
	return tag.String(), e.noteUse(ctx, tag.String())
}

// equalsConfig reports whether an image in Docker has the same layers, and starts the same, as one with this config.
func equalsConfig(found client.ImageInspectResult, file *v1.ConfigFile) bool {
	var layers []string
	for _, d := range file.RootFS.DiffIDs {
		layers = append(layers, d.String())
	}
	has, want := found.Config, file.Config
	return has != nil && slices.Equal(found.RootFS.Layers, layers) && slices.Equal(has.Entrypoint, want.Entrypoint) &&
		slices.Equal(has.Cmd, want.Cmd) && slices.Equal(has.Env, want.Env) && maps.Equal(has.Volumes, want.Volumes) &&
		has.User == want.User && has.WorkingDir == want.WorkingDir && has.StopSignal == want.StopSignal
}

// load loads the image into Docker, and passes add the numbers of bytes that Docker has read.
func (e *dockerEngine) load(ctx context.Context, tag name.Tag, add func(int64)) error {
	r, w := io.Pipe()
	defer r.Close()
	go func() {
		w.CloseWithError(tarball.Write(tag, &boundedImage{e.s.image, maxLoadedBytes, maxLoadedEntries}, w))
	}()
	answer, err := e.api.ImageLoad(ctx, image.Counting(ctx, r, add), client.ImageLoadWithQuiet(true))
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

// noteUse records now as the image's last use: Docker keeps the time of the last tagging.
func (e *dockerEngine) noteUse(ctx context.Context, tag string) error {
	if _, err := e.api.ImageTag(ctx, client.ImageTagOptions{Source: tag, Target: tag}); err != nil {
		return fmt.Errorf("docker: %w", err)
	}
	return nil
}

// sweepImages removes the loaded images that no run has used for keepLoaded. It leaves images that can't be removed to
// a later run.
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

// sweepImage removes a loaded image that was last used before a time. Docker refuses this while a container uses it.
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
		Labels: e.labels(),
		// The image's health check must not add output and load to the run.
		Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
	}
	if !e.isolated() {
		c.ExposedPorts = network.PortSet{}
	}
	h := &container.HostConfig{
		NetworkMode: container.NetworkMode(e.network()), ReadonlyRootfs: p.ReadOnly, ShmSize: p.ShmSize,
		CapDrop: []string{"ALL"}, CapAdd: p.caps, Tmpfs: map[string]string{}, PortBindings: network.PortMap{},
		LogConfig: container.LogConfig{Type: "none"}, // output is read as it comes
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
	for _, k := range p.keeps { // volumes: an ordinary user can't read another account's files in his directory
		h.Mounts = append(h.Mounts, mount.Mount{
			Type: mount.TypeVolume, Target: k.Mount, VolumeOptions: &mount.VolumeOptions{NoCopy: true}, // without the image's content at the target
		})
	}
	if err := e.replaceVolumes(h); err != nil {
		return nil, nil, err
	}
	if e.isolated() {
		return c, h, nil // reached through its tether
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

// maxVolumes limits the mounted VOLUMEs of an image: each takes the daemon's time.
const maxVolumes = 64

// replaceVolumes mounts a tmpfs at each VOLUME of the image where nothing else is mounted. Docker would make a volume
// on its disk, writable without a limit even with a read-only root.
func (e *dockerEngine) replaceVolumes(h *container.HostConfig) error {
	file, err := e.s.image.ConfigFile()
	if err != nil || !e.s.plan.ReadOnly {
		return err
	}
	if n := len(file.Config.Volumes); n > maxVolumes {
		return &StartError{125, fmt.Errorf("the image has %d VOLUMEs: want at most %d", n, maxVolumes)}
	}
	var mounted []string
	for _, m := range h.Mounts {
		mounted = append(mounted, m.Target)
	}
	for _, volume := range slices.Sorted(maps.Keys(file.Config.Volumes)) {
		target := path.Clean(volume)
		if !path.IsAbs(volume) || target == "/" {
			return &StartError{125, fmt.Errorf("VOLUME %q of the image: want an absolute path that isn't /", volume)}
		}
		if h.Tmpfs[target] != "" || slices.Contains(mounted, target) {
			continue
		}
		mounted = append(mounted, target)
		h.Mounts = append(h.Mounts, mount.Mount{Type: mount.TypeTmpfs, Target: target, TmpfsOptions: &mount.TmpfsOptions{
			Mode: 0o1777, SizeBytes: e.s.plan.TmpfsSize(target),
		}})
		e.s.addNote(fmt.Sprintf("VOLUME %q of the image is an empty tmpfs, since the root file system is read-only", volume))
	}
	return nil
}

func (e *dockerEngine) labels() map[string]string {
	return map[string]string{labelRun: e.s.run.id, labelOwner: e.s.run.owner}
}

// isolated reports whether the container has loopback only.
func (e *dockerEngine) isolated() bool {
	return e.s.plan.Network == NetworkNone || e.s.plan.Network == NetworkEgress
}

// network returns Docker's name of the container's network.
func (e *dockerEngine) network() string {
	if e.isolated() {
		return "none"
	}
	return e.s.plan.Network
}

// giveVolumes makes the container's first user the owner of its volumes, which Docker creates for root. It unpacks an
// archive with the new owner through a second container with these volumes, which is never started: Docker can't copy
// into a container with a read-only root.
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
		h := tar.Header{Typeflag: tar.TypeDir, Name: strings.TrimPrefix(k.Mount, "/") + "/", Mode: 0o755}
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
	second, err := e.createSecond(ctx, ref)
	if err != nil {
		return fmt.Errorf("docker: %w", err)
	}
	_, err = e.api.CopyToContainer(ctx, second, client.CopyToContainerOptions{DestinationPath: "/", Content: &archive})
	_, rerr := e.api.ContainerRemove(context.WithoutCancel(ctx), second, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	return errors.Join(err, rerr)
}

// secondSuffix ends the name of the second container of a run.
const secondSuffix = "-volumes"

// createSecond creates a container with the volumes of the first one, and returns its ID.
func (e *dockerEngine) createSecond(ctx context.Context, ref string) (string, error) {
	info, err := e.api.ContainerInspect(ctx, e.id, client.ContainerInspectOptions{})
	if err != nil {
		return "", err
	}
	host := &container.HostConfig{NetworkMode: "none"} // VolumesFrom fails with a tmpfs among the mounts
	for _, m := range info.Container.Mounts {
		if m.Type == mount.TypeVolume {
			host.Mounts = append(host.Mounts, mount.Mount{
				Type: m.Type, Source: m.Name, Target: m.Destination, VolumeOptions: &mount.VolumeOptions{NoCopy: true},
			})
		}
	}
	made, err := e.create(ctx, client.ContainerCreateOptions{
		Config: &container.Config{Image: ref, Cmd: []string{"/"}, Labels: e.labels()}, HostConfig: host,
		Name: e.s.run.name() + secondSuffix,
	})
	return made.ID, err
}

// create creates a container. It waits for Docker's answer also after ctx has ended: Docker would create the container
// when nobody is left to remove it.
func (e *dockerEngine) create(ctx context.Context, o client.ContainerCreateOptions) (client.ContainerCreateResult, error) {
	work := e.s.newEnding(context.WithoutCancel(ctx))
	defer work.giveUp()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(work.time, work.giveUp) })()
	return e.api.ContainerCreate(work, o)
}

// published reads the ports that Docker chose.
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
