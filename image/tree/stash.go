package tree

import (
	"crypto/sha256"
	"io"
	"math"
	"os"
	"sync"
)

// Stash holds contents of files, by digest, in a temporary file without a name, so that no layer is read twice for them.
type Stash struct {
	file   *os.File
	likely func(path string) bool
	mu     sync.Mutex
	size   int64
	at     map[Digest]*io.SectionReader
}

// maxStash bounds what Cache.Open puts into a stash, in bytes.
const maxStash = 2 << 30

// NewStash returns an empty stash, whose file lies in dir, or where temporary files do. Cache.Open puts into it the files that likely
// reports true of, until maxStash is reached.
func NewStash(dir string, likely func(path string) bool) (*Stash, error) {
	if dir != "" {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	f, err := createTemp(dir)
	return &Stash{file: f, likely: likely, at: map[Digest]*io.SectionReader{}}, err
}

// createTemp returns a file without a name.
func createTemp(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, ".slimctl-")
	if err != nil {
		return nil, err
	}
	return f, os.Remove(f.Name())
}

// Close removes the contents.
func (s *Stash) Close() error { return s.file.Close() }

// Content returns a content; nil if the stash lacks it.
func (s *Stash) Content(d Digest) *io.SectionReader {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.at[d]; r != nil {
		return io.NewSectionReader(r, 0, r.Size())
	}
	return nil
}

// Put copies a content of size bytes to the stash, and reports whether it has the digest.
func (s *Stash) Put(d Digest, size int64, r io.Reader, buf []byte) (bool, error) {
	w, sum := s.reserve(size, math.MaxInt64), sha256.New()
	if _, err := io.CopyBuffer(w, io.TeeReader(r, sum), buf); err != nil {
		return false, err
	}
	ok := Digest(sum.Sum(nil)) == d
	if ok {
		w.note(d)
	}
	return ok, nil
}

// stashed is a content that is being written to a stash.
type stashed struct {
	*io.OffsetWriter
	*io.SectionReader
	stash *Stash
}

// reserve returns nil when the stash would have more than limit bytes.
func (s *Stash) reserve(size, limit int64) *stashed {
	s.mu.Lock()
	defer s.mu.Unlock()
	if size > limit-s.size {
		return nil
	}
	s.size += size
	at := s.size - size
	return &stashed{io.NewOffsetWriter(s.file, at), io.NewSectionReader(s.file, at, size), s}
}

// reserveLikely returns nil for a file that isn't put into the stash while its layer is indexed; s may be nil.
func (s *Stash) reserveLikely(e *Entry) *stashed {
	if s == nil || !s.likely(e.Path) {
		return nil
	}
	return s.reserve(e.Size, maxStash)
}

// note has the stash know the content, which is whole.
func (c *stashed) note(d Digest) {
	c.stash.mu.Lock()
	defer c.stash.mu.Unlock()
	c.stash.at[d] = c.SectionReader
}
