package registry

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// LoadLayout puts an OCI layout into a repository under a tag, without a request and without counting. The tag is what
// the layout's index.json names when it names one thing, else index.json itself. Everything it refers to comes along.
//
// Blobs are hard links of the layout's files, or copies where the file system has none (then their digests are
// checked); in memory mode the layout's files are served where they are. So the layout must stay as it is. Manifests'
// digests and blobs' sizes are checked. It fails when a file is missing, of another size or no regular file; the tag
// is then not set.
func (r *Registry) LoadLayout(repo, tag, layoutDir string) error {
	if !validName(repo) {
		return errName(repo)
	}
	if !tagRE.MatchString(tag) {
		return fmt.Errorf("invalid tag %q", tag)
	}
	l := loader{r: r, repo: repo, dir: layoutDir}
	if err := l.load(tag); err != nil {
		return fmt.Errorf("load %s into %s:%s: %w", layoutDir, repo, tag, err)
	}
	return nil
}

type loader struct {
	r         *Registry
	repo, dir string
}

func (l loader) load(tag string) error {
	data, err := os.ReadFile(filepath.Join(l.dir, "index.json"))
	if err != nil {
		return err
	}
	var top manifest
	if err := json.Unmarshal(data, &top); err != nil {
		return fmt.Errorf("index.json: %w", err)
	}
	if len(top.Manifests) == 1 {
		d := top.Manifests[0]
		if data, err = l.read(d); err != nil {
			return err
		}
		return l.manifest(tag, d.MediaType, data)
	}
	return l.manifest(tag, types.OCIImageIndex, data)
}

// manifest stores one manifest after all that it refers to. Digests are checked, so that there are no circles.
func (l loader) manifest(tag string, mediaType types.MediaType, data []byte) error {
	m, err := parseManifest(string(mediaType), data)
	if err != nil {
		return err
	}
	for _, d := range m.Manifests {
		child, err := l.read(d)
		if err != nil {
			return err
		}
		if err := l.manifest("", d.MediaType, child); err != nil {
			return err
		}
	}
	for _, d := range m.blobs() {
		if err := l.blob(d); err != nil {
			return err
		}
	}
	h, _, err := v1.SHA256(bytes.NewReader(data))
	if err != nil {
		return err
	}
	return l.r.storeManifest(l.repo, tag, h, m, data)
}

// file is the path of a blob in the layout. A link could lead anywhere, so only a regular file will do.
func (l loader) file(d v1.Descriptor) (string, error) {
	path := filepath.Join(l.dir, "blobs", d.Digest.Algorithm, d.Digest.Hex)
	fi, err := os.Lstat(path)
	if err != nil {
		return "", err
	}
	if !fi.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file", path)
	}
	if fi.Size() != d.Size {
		return "", fmt.Errorf("%s has %d bytes, its descriptor says %d", path, fi.Size(), d.Size)
	}
	return path, nil
}

func (l loader) read(d v1.Descriptor) ([]byte, error) {
	path, err := l.file(d)
	if err != nil {
		return nil, err
	}
	if d.Size > maxManifest {
		return nil, fmt.Errorf("manifest %s is larger than %d bytes", d.Digest, maxManifest)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if h, _, err := v1.SHA256(bytes.NewReader(data)); err != nil || h != d.Digest {
		return nil, fmt.Errorf("%s has digest %s", path, h)
	}
	return data, nil
}

func (l loader) blob(d v1.Descriptor) error {
	path, err := l.file(d)
	if err != nil {
		return err
	}
	if path, err = filepath.Abs(path); err != nil {
		return err
	}
	if l.r.o.Dir != "" {
		if path, err = l.bring(path, d.Digest); err != nil {
			return err
		}
	}
	l.r.mu.Lock()
	defer l.r.mu.Unlock()
	l.r.link(l.repo, d.Digest, content{path: path, size: d.Size})
	return nil
}

// bring links or copies a layout's file into the registry's directory.
func (l loader) bring(path string, h v1.Hash) (string, error) {
	dst, err := filepath.Abs(l.r.blobPath(h))
	if err != nil {
		return "", err
	}
	tmp := filepath.Join(l.r.o.Dir, "uploads", rand.Text())
	// Renaming one link of a file onto another does nothing, so the temporary name has to go either way.
	defer os.Remove(tmp)
	if err := os.Link(path, tmp); err != nil {
		if err := copyVerified(tmp, path, h); err != nil {
			return "", err
		}
	}
	return dst, os.Rename(tmp, dst)
}

func copyVerified(dst, src string, want v1.Hash) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(dst, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	sum := sha256.New()
	_, err = io.Copy(io.MultiWriter(out, sum), in)
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != want.Hex {
		return fmt.Errorf("%s has digest sha256:%s", src, got)
	}
	return nil
}
