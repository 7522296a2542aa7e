package registry

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// content is the content of one blob: a file, or data if path is empty.
type content struct {
	path string
	data []byte
	size int64
}

// blobs holds the blobs of each repository. Repositories share equal blobs.
type blobs struct {
	dir string // empty: in memory

	mu    sync.Mutex
	repos map[string]map[v1.Hash]content
}

var _ interface {
	registry.BlobHandler
	registry.BlobStatHandler
	registry.BlobPutHandler
} = (*blobs)(nil)

func newBlobs(dir string) (*blobs, error) {
	b := &blobs{repos: map[string]map[v1.Hash]content{}}
	if dir != "" {
		b.dir = filepath.Join(dir, "blobs", "sha256")
		return b, os.MkdirAll(b.dir, 0o755)
	}
	return b, nil
}

// addBlob adds a blob to a repository.
func (b *blobs) addBlob(repo string, h v1.Hash, c content) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.repos[repo] == nil {
		b.repos[repo] = map[v1.Hash]content{}
	}
	b.repos[repo][h] = c
}

func (b *blobs) find(repo string, h v1.Hash) (content, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c, ok := b.repos[repo][h]
	if !ok {
		return c, registry.ErrNotFound
	}
	return c, nil
}

// link adds a blob of the repository from to repo, and reports whether from has it.
func (b *blobs) link(repo, from string, h v1.Hash) bool {
	c, err := b.find(from, h)
	if err == nil {
		b.addBlob(repo, h, c)
	}
	return err == nil
}

func (b *blobs) open(repo string, h v1.Hash) (io.ReadSeekCloser, error) {
	c, err := b.find(repo, h)
	if err != nil {
		return nil, err
	}
	if c.path != "" {
		return os.Open(c.path)
	}
	return nopCloser{bytes.NewReader(c.data)}, nil
}

type nopCloser struct{ io.ReadSeeker }

func (nopCloser) Close() error { return nil }

// Get implements registry.BlobHandler.
func (b *blobs) Get(_ context.Context, repo string, h v1.Hash) (io.ReadCloser, error) {
	return b.open(repo, h)
}

// Stat implements registry.BlobStatHandler.
func (b *blobs) Stat(_ context.Context, repo string, h v1.Hash) (int64, error) {
	c, err := b.find(repo, h)
	return c.size, err
}

// Put implements registry.BlobPutHandler. in fails at its end if its digest isn't h. After a PATCH, repo has an extra
// path element.
func (b *blobs) Put(_ context.Context, repo string, h v1.Hash, in io.ReadCloser) error {
	repo = strings.TrimSuffix(repo, "/blobs")
	if b.dir == "" {
		data, err := io.ReadAll(in)
		if err == nil {
			b.addBlob(repo, h, content{data: data, size: int64(len(data))})
		}
		return err
	}
	f, err := os.CreateTemp(b.dir, "upload-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // gone already when all went well
	defer f.Close()
	n, err := io.Copy(f, in)
	if err != nil {
		return err
	}
	path := filepath.Join(b.dir, h.Hex)
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	b.addBlob(repo, h, content{path: path, size: n})
	return nil
}
