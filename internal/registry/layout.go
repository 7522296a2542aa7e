package registry

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// LoadLayout loads an OCI layout into a repository under a tag, without requests or counting. The tag points at the one
// entry of index.json, or at index.json itself if there are several. Everything that it refers to is loaded, too.
//
// The registry serves the layout's files in place, so they must not change. LoadLayout checks the digests of manifests
// and the sizes of blobs. It fails if a file is missing, has another size or isn't a regular file; then the tag is not
// set.
func (r *Registry) LoadLayout(repo, tag, layoutDir string) error {
	dir, err := filepath.Abs(layoutDir)
	if err == nil {
		err = loader{r, repo, dir}.load(tag)
	}
	if err != nil {
		return fmt.Errorf("load %s into %s:%s: %w", layoutDir, repo, tag, err)
	}
	return nil
}

type loader struct {
	r         *Registry
	repo, dir string
}

func (l loader) load(tag string) error {
	if !nameRE.MatchString(l.repo) {
		return fmt.Errorf("invalid repository name %q", l.repo)
	}
	data, err := os.ReadFile(filepath.Join(l.dir, "index.json"))
	if err != nil {
		return err
	}
	top, err := parseManifest(data)
	if err != nil {
		return fmt.Errorf("index.json: %w", err)
	}
	if len(top.Manifests) == 1 {
		return l.readManifest(tag, top.Manifests[0])
	}
	return l.putManifest(tag, types.OCIImageIndex, data)
}

// readManifest loads the manifest of a descriptor, under its digest if tag is empty.
func (l loader) readManifest(tag string, d v1.Descriptor) error {
	path, err := l.file(d)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if h := hashOf(data); h != d.Digest {
		return fmt.Errorf("%s has digest %s", path, h)
	}
	return l.putManifest(tag, d.MediaType, data)
}

// putManifest stores a manifest after everything that it refers to. Since digests are checked, there are no cycles.
func (l loader) putManifest(tag string, mediaType types.MediaType, data []byte) error {
	m, err := parseManifest(data)
	if err != nil {
		return err
	}
	for _, d := range m.Manifests {
		if err := l.readManifest("", d); err != nil {
			return err
		}
	}
	for _, d := range m.blobs() {
		path, err := l.file(d)
		if err != nil {
			return err
		}
		l.r.blobs.addBlob(l.repo, d.Digest, content{path: path, size: d.Size})
	}
	if tag == "" {
		tag = hashOf(data).String()
	}
	req, err := http.NewRequest(http.MethodPut, "/v2/"+l.repo+"/manifests/"+tag, bytes.NewReader(data))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", string(mediaType))
	w := httptest.NewRecorder()
	if l.r.inner.ServeHTTP(w, req); w.Code != http.StatusCreated {
		return fmt.Errorf("manifest %s: %d %s", tag, w.Code, w.Body)
	}
	return nil
}

// file returns the path of a blob in the layout. It must be a regular file, because a link could lead anywhere.
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
