package output

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"github.com/slimctl/slimctl/image"
)

// tarBlock is the block size of a tar archive, in bytes.
const tarBlock = 512

// archivePlan is a tar archive whose offsets are all known before any blob is there. Blobs can therefore be downloaded
// concurrently, straight to their places.
type archivePlan struct {
	entries []archiveEntry
	size    int64
}

type archiveEntry struct {
	header []byte
	off    int64 // offset of the header
	item   item  // without content for a directory
}

func (e archiveEntry) data() int64 { return e.off + int64(len(e.header)) }

// end returns the offset after the padding.
func (e archiveEntry) end() int64 {
	return e.data() + (e.item.desc.Size+tarBlock-1)/tarBlock*tarBlock
}

// planArchive lays out an OCI layout as a tar archive. With docker it adds the manifest.json for docker load of any
// version, as Docker does itself since version 25.
func planArchive(c *contents, tags []name.Tag, docker bool) (*archivePlan, error) {
	p := &archivePlan{}
	unnamed := DefaultName
	if docker { // docker load would take it for the whole name
		unnamed = ""
	}
	index, err := topIndex(c, tags, unnamed)
	if err != nil {
		return nil, err
	}
	files := []struct {
		name string
		raw  []byte
	}{{"oci-layout", []byte(layoutMarker)}, {"index.json", index}}
	if docker {
		m, err := dockerManifest(c, tags)
		if err != nil {
			return nil, err
		}
		files = append(files, struct {
			name string
			raw  []byte
		}{"manifest.json", m})
	}
	for _, f := range files {
		it, err := document(f.raw, v1.Descriptor{})
		if err != nil {
			return nil, err
		}
		if err := p.addItem(f.name, it); err != nil {
			return nil, err
		}
	}
	for _, dir := range []string{"blobs/", "blobs/sha256/"} {
		if err := p.addItem(dir, item{}); err != nil {
			return nil, err
		}
	}
	for _, it := range c.all() {
		if err := p.addItem(blobName(it.desc.Digest), it); err != nil {
			return nil, err
		}
	}
	p.size += 2 * tarBlock // the end marker
	return p, nil
}

func blobName(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }

func (p *archivePlan) addItem(name string, it item) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: it.desc.Size, ModTime: time.Unix(0, 0)}
	if strings.HasSuffix(name, "/") {
		h.Typeflag, h.Mode = tar.TypeDir, 0o755
	}
	var buf bytes.Buffer
	if err := tar.NewWriter(&buf).WriteHeader(h); err != nil {
		return fmt.Errorf("archive: %s: %w", name, err)
	}
	e := archiveEntry{header: buf.Bytes(), off: p.size, item: it}
	p.entries = append(p.entries, e)
	p.size = e.end()
	return nil
}

// dockerManifest returns manifest.json as docker save writes it.
func dockerManifest(c *contents, tags []name.Tag) ([]byte, error) {
	if len(c.images) != 1 {
		return nil, fmt.Errorf("a docker archive holds one platform, not %d: choose one with --platform", len(c.images))
	}
	m, err := c.images[0].Manifest()
	if err != nil {
		return nil, err
	}
	type entry struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	e := entry{Config: blobName(m.Config.Digest), RepoTags: []string{}, Layers: []string{}}
	for _, t := range tags {
		e.RepoTags = append(e.RepoTags, familiar(t))
	}
	for _, l := range m.Layers {
		e.Layers = append(e.Layers, blobName(l.Digest))
	}
	return json.Marshal([]entry{e})
}

// familiar returns the name that docker images shows: "alpine:3", not "docker.io/library/alpine:3".
func familiar(t name.Tag) string {
	n := strings.TrimPrefix(image.DockerName(t.Name()), "docker.io/")
	if t.RegistryStr() == name.DefaultRegistry {
		n = strings.TrimPrefix(n, "library/")
	}
	return n
}

// write writes the archive to a file.
func (p *archivePlan) write(ctx context.Context, o Spec, cp *copier) (err error) {
	f, err := os.CreateTemp(filepath.Dir(o.Dest), "."+filepath.Base(o.Dest)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	if err := reserve(f, p.size); err != nil {
		return err
	}
	if err := p.fill(ctx, f, cp); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := o.Check(); err != nil {
		return err // another process has made it
	}
	return os.Rename(f.Name(), o.Dest)
}

func (p *archivePlan) fill(ctx context.Context, f *os.File, cp *copier) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(copyJobs)
	for _, e := range p.entries {
		if _, err := f.WriteAt(e.header, e.off); err != nil {
			return errors.Join(err, g.Wait())
		}
		if e.item.raw != nil {
			if _, err := f.WriteAt(e.item.raw, e.data()); err != nil {
				return errors.Join(err, g.Wait())
			}
			continue
		}
		if e.item.layer == nil {
			continue
		}
		g.Go(func() error {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			own, err := os.OpenFile(f.Name(), os.O_WRONLY, 0) // its own file position
			if err != nil {
				return err
			}
			return errors.Join(cp.copyAt(ctx, own, e.data(), e.item), own.Close())
		})
	}
	return g.Wait()
}

// stream writes the archive to a writer that can't seek, one blob after another.
func (p *archivePlan) stream(ctx context.Context, w io.Writer, cp *copier) error {
	for _, e := range p.entries {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if _, err := w.Write(e.header); err != nil {
			return err
		}
		if err := streamItem(ctx, w, e.item, cp); err != nil {
			return err
		}
		if _, err := w.Write(make([]byte, e.end()-e.data()-e.item.desc.Size)); err != nil {
			return err
		}
	}
	_, err := w.Write(make([]byte, 2*tarBlock))
	return err
}

func streamItem(ctx context.Context, w io.Writer, it item, cp *copier) (err error) {
	if it.layer == nil {
		_, err := w.Write(it.raw)
		return err
	}
	task := cp.opt.Progress.Task("layer "+image.Short(it.desc.Digest), it.desc.Size)
	defer func() { task.Done(err) }()
	return cp.copyTo(ctx, w, it, task.Add)
}

// Load loads one platform of b into the Docker daemon, by "docker load" of the docker program on PATH. The zero
// platform means the only one. Load stores nothing on this machine's disk itself.
func Load(ctx context.Context, b image.Built, platform v1.Platform, tags []name.Tag, opt image.Options) error {
	opt = opt.WithDefaults()
	docker, err := exec.LookPath("docker")
	if err != nil {
		return fmt.Errorf("load needs the docker program: %w; write an archive with --output type=docker-archive instead", err)
	}
	img, err := platformImage(b, platform)
	if err != nil {
		return err
	}
	c, err := contentsOf(image.Built{Image: img})
	if err != nil {
		return err
	}
	plan, err := planArchive(c, tags, true)
	if err != nil {
		return err
	}
	r, w := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := plan.stream(ctx, w, &copier{opt: opt})
		w.CloseWithError(err)
		written <- err
	}()
	cmd := exec.CommandContext(ctx, docker, "load", "--quiet")
	var said bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = r, &said, &said
	cmd.WaitDelay = 5 * time.Second
	stop := context.AfterFunc(ctx, func() { r.CloseWithError(context.Cause(ctx)) })
	defer stop()
	err = cmd.Run()
	r.CloseWithError(errDockerEnded)
	werr := <-written
	switch {
	case context.Cause(ctx) != nil:
		return context.Cause(ctx)
	case werr != nil && !errors.Is(werr, errDockerEnded):
		return werr
	case err != nil:
		return fmt.Errorf("docker load: %w: %s", err, image.OneLine(strings.TrimSpace(said.String()), 500))
	case werr != nil:
		return fmt.Errorf("docker load ended before it read the whole image: %s", image.OneLine(strings.TrimSpace(said.String()), 500))
	}
	return nil
}

var errDockerEnded = errors.New("docker load has ended")

func platformImage(b image.Built, p v1.Platform) (v1.Image, error) {
	if b.Image != nil || p.OS == "" {
		return onlyImage(b)
	}
	m, err := b.Index.IndexManifest()
	if err != nil {
		return nil, err
	}
	e := &image.PlatformError{Ref: "image", Want: p}
	for _, d := range m.Manifests {
		if d.Platform == nil || !image.IsImage(d) {
			continue
		}
		if image.SamePlatform(*d.Platform, p) {
			return b.Index.Image(d.Digest)
		}
		e.Have = append(e.Have, *d.Platform)
	}
	return nil, e
}
