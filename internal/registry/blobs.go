package registry

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// content is the bytes of one blob: a file, or data when path is empty.
type content struct {
	path string
	data []byte
	size int64
}

func (c content) open() (io.ReadSeekCloser, error) {
	if c.path != "" {
		return os.Open(c.path)
	}
	return nopCloser{bytes.NewReader(c.data)}, nil
}

type nopCloser struct{ io.ReadSeeker }

func (nopCloser) Close() error { return nil }

// blobPath is where Options.Dir keeps a blob. A v1.Hash is checked hex, so that nothing else can get into the path.
func (r *Registry) blobPath(h v1.Hash) string {
	return filepath.Join(r.o.Dir, "blobs", h.Algorithm, h.Hex)
}

// link puts a blob into a repository. The caller holds r.mu.
func (r *Registry) link(name string, h v1.Hash, c content) {
	r.content[h] = c
	r.repository(name).blobs[h] = true
}

// lookup finds a blob in one repository. The caller holds r.mu.
func (r *Registry) lookup(name string, h v1.Hash) (content, bool) {
	p := r.repos[name]
	if p == nil || !p.blobs[h] {
		return content{}, false
	}
	return r.content[h], true
}

func parseDigest(s string) (v1.Hash, error) {
	h, err := v1.NewHash(s)
	if err != nil || h.Algorithm != "sha256" {
		return v1.Hash{}, errDigest("not a sha256 digest: %q", s)
	}
	return h, nil
}

func (r *Registry) getBlob(x *exchange, name, ref string) error {
	h, err := parseDigest(ref)
	if err != nil {
		return err
	}
	r.mu.Lock()
	c, ok := r.lookup(name, h)
	r.mu.Unlock()
	if !ok {
		return errBlobUnknown(name, h)
	}
	f, err := c.open()
	if err != nil {
		return err
	}
	defer f.Close()
	x.Header().Set("Content-Type", "application/octet-stream")
	x.Header().Set("Docker-Content-Digest", h.String())
	x.Header().Set("Etag", `"`+h.String()+`"`)
	http.ServeContent(x, x.req, "", time.Time{}, f)
	return nil
}
