package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// The prefixes of references to images from Docker.
const (
	dockerArchive = "docker-archive:"
	dockerDaemon  = "docker-daemon:"
)

// dockerManifestName is the file that lists the images in an archive of docker save (moby: image/tarexport).
const dockerManifestName = "manifest.json"

// openDockerArchive opens the output of docker save. Since Docker 25, and from slimctl, it is also an OCI layout, and
// is read as one if both name the same image. An older archive has no digests of its layers, only the config's diffIDs.
// Whoever reads a layer compares it with its diffID (tree.Cache).
func openDockerArchive(spec string, o Options) (*Source, error) {
	ref := dockerArchive + spec
	file, tagName, err := splitPath(spec)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	var tag *name.Tag
	if tagName != "" {
		t, err := name.NewTag(tagName, name.WeakValidation)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", ref, err)
		}
		tag = &t
	}
	b, err := tarBlobs(file, newVerified(o.CacheDir))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	entry, err := b.dockerEntry(tag)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	if b.contains("oci-layout") || b.contains("index.json") {
		if tag != nil {
			tagName = DockerName(tag.Name())
		}
		return openBlobs(ref, tagName, b) // which compares the two
	}
	raw, err := b.document(entryName(entry.Config))
	if err == nil {
		err = checkBounds(raw)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: config %.200q: %w", ref, entry.Config, err)
	}
	img, err := tarball.ImageFromPath(file, tag)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	s := &Source{ref: ref}
	s.addDockerNames(entry.RepoTags)
	if s.children, err = singleChild(ref, img); err != nil {
		return nil, err
	}
	s.digest, err = img.Digest()
	return s, err
}

// openDockerDaemon opens an image in Docker's store. It saves the image to the cache directory, by ID.
func openDockerDaemon(ctx context.Context, spec string, o Options) (*Source, error) {
	ref := dockerDaemon + spec
	if o.CacheDir == "" {
		return nil, fmt.Errorf("%s: the image must be saved to the cache directory, and there is none; name one with --cache-dir DIR", ref)
	}
	var id bytes.Buffer
	if err := runDocker(ctx, &id, "image", "inspect", "--format", "{{.Id}}", "--", spec); err != nil {
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	digest, err := v1.NewHash(strings.TrimSpace(id.String()))
	if err != nil {
		return nil, fmt.Errorf("%s: docker image inspect: %w", ref, err)
	}
	file := filepath.Join(o.CacheDir, "docker", digest.Hex+".tar")
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		task := o.Progress.Task("docker save "+spec, 0)
		err = WriteFile(file, 0o600, func(w io.Writer) error {
			return runDocker(ctx, w, "image", "save", digest.String())
		})
		task.Done(err)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", ref, err)
		}
	} else if err != nil {
		return nil, err
	}
	s, err := openDockerArchive(file, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ref, err)
	}
	s.ref = ref
	if !s.isImage(digest) {
		return nil, fmt.Errorf("%s: %s doesn't hold the image %s; remove it", ref, file, digest)
	}
	return s, nil
}

// isImage reports whether h is Docker's ID of the image: the digest of its config or, with containerd's image store, of
// its manifest.
func (s *Source) isImage(h v1.Hash) bool {
	return s.digest == h || slices.ContainsFunc(s.children, func(c *child) bool {
		img, err := c.image()
		if err != nil {
			return false // the platform was not saved
		}
		config, err := img.ConfigName()
		return err == nil && config == h
	})
}

// runDocker runs the docker program on PATH.
func runDocker(ctx context.Context, stdout io.Writer, args ...string) error {
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, "docker", args...)
	cmd.Stdout, cmd.Stderr = stdout, &said
	err := cmd.Run()
	if text := strings.TrimSpace(said.String()); err != nil && text != "" {
		err = fmt.Errorf("docker %s: %.500q", args[1], text)
		if strings.Contains(text, "No such image") {
			err = fmt.Errorf("%w: %w", ErrNotFound, err)
		}
	}
	return err
}

// DockerName returns n with Docker Hub's host as everything but go-containerregistry writes it.
func DockerName(n string) string {
	if rest, ok := strings.CutPrefix(n, name.DefaultRegistry+"/"); ok {
		return "docker.io/" + rest
	}
	return n
}

// dockerManifest reads manifest.json.
func (b *blobs) dockerManifest() (tarball.Manifest, error) {
	raw, err := b.document(dockerManifestName)
	if err != nil {
		return nil, err
	}
	bad := func(err error) error { return fmt.Errorf("%s: %s: %w", b.root, dockerManifestName, err) }
	if err := checkBounds(raw); err != nil {
		return nil, bad(err)
	}
	var m tarball.Manifest
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, bad(err)
	}
	return m, nil
}

// dockerEntry returns the entry of manifest.json for the image called tag, or for the only one.
func (b *blobs) dockerEntry(tag *name.Tag) (e tarball.Descriptor, err error) {
	m, err := b.dockerManifest()
	if err != nil {
		return e, err
	}
	var names []string
	var found tarball.Manifest
	for _, d := range m {
		names = append(names, d.RepoTags...)
		if tag == nil || slices.ContainsFunc(d.RepoTags, func(s string) bool {
			t, err := name.NewTag(s)
			return err == nil && t.Name() == tag.Name()
		}) {
			found = append(found, d)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case tag != nil && len(found) == 0:
		return e, fmt.Errorf("%s: %w: no image is called %s; it has %.500q", b.root, ErrNotFound, tag, orNone(names))
	}
	return e, fmt.Errorf("%s: %s has %d such images; add the name of one as :REF: %.500q", b.root, dockerManifestName, len(found), orNone(names))
}

// checkDockerFiles refuses a layout with a manifest.json, by which docker load goes, that names another image than
// index.json. An entry with another name than tag is ignored.
func (s *Source) checkDockerFiles(tag string) error {
	if has, err := s.blobs.has(dockerManifestName); !has || err != nil {
		return err
	}
	m, err := s.blobs.dockerManifest()
	if err != nil {
		return err
	}
	for _, e := range m {
		if tag != "" && !slices.ContainsFunc(e.RepoTags, func(t string) bool {
			return strings.HasSuffix(t, ":"+tag) || canonical(t) == canonical(tag)
		}) {
			continue
		}
		if err := s.checkDockerEntry(e); err != nil {
			return err
		}
		s.addDockerNames(e.RepoTags)
	}
	return nil
}

func (s *Source) checkDockerEntry(e tarball.Descriptor) error {
	for _, c := range s.children {
		img, err := c.image()
		if errors.Is(err, fs.ErrNotExist) {
			continue // its platform was not saved
		}
		if err != nil {
			return err
		}
		m, err := img.Manifest()
		if err != nil {
			return err
		}
		same := func(file string, d v1.Descriptor) bool { return file == blobName(d.Digest) }
		if same(e.Config, m.Config) && slices.EqualFunc(e.Layers, m.Layers, same) {
			return nil
		}
	}
	return fmt.Errorf("%s and index.json don't name the same image: no image of index.json has the config %.200q and its %d layers; write the archive again",
		dockerManifestName, e.Config, len(e.Layers))
}
