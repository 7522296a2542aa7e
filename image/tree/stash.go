package tree

import (
	"crypto/sha256"
	"errors"
	"io"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
)

// Stash stores contents by digest in an unnamed temporary file, so that layers are read only once.
type Stash struct {
	file   *os.File
	likely func(path string) bool
	limit  atomic.Int64 // for Cache.Open, in bytes
	mu     sync.Mutex
	size   int64
	at     map[Digest]*io.SectionReader
}

// maxStash limits what Cache.Open puts into a stash, in bytes.
const maxStash = 2 << 30

// NewStash returns an empty stash with its file in dir, or in the default directory. Cache.Open puts files into it for
// which likely returns true, up to maxStash and half of the disk's free space. The rest of the disk is for what is made
// of them.
func NewStash(dir string, likely func(path string) bool) (*Stash, error) {
	if dir != "" {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	f, err := createTemp(dir)
	if err != nil {
		return nil, err
	}
	s := &Stash{file: f, likely: likely, at: map[Digest]*io.SectionReader{}}
	s.limit.Store(min(maxStash, freeSpace(f)/2))
	return s, nil
}

// createTemp returns an unnamed file.
func createTemp(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, ".slimctl-")
	if err != nil {
		return nil, err
	}
	return f, os.Remove(f.Name())
}

// Close removes the contents.
func (s *Stash) Close() error { return s.file.Close() }

// Content returns a content, or nil if the stash doesn't have it.
func (s *Stash) Content(d Digest) *io.SectionReader {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.at[d]; r != nil {
		return io.NewSectionReader(r, 0, r.Size())
	}
	return nil
}

// Put copies a content of size bytes to the stash, and reports whether it has the digest d.
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

// reserve returns nil if the stash would have more than limit bytes.
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

// reserveLikely returns nil if the file doesn't go to the stash while its layer is indexed. s may be nil.
func (s *Stash) reserveLikely(e *Entry) *stashed {
	if s == nil || !s.likely(e.Path) {
		return nil
	}
	return s.reserve(e.Size, s.limit.Load())
}

// isFull reports whether a write failed because the disk is full. Cache.Open then writes nothing more to the stash,
// which only saves time.
func (c *stashed) isFull(err error) bool {
	if !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return false
	}
	c.stash.limit.Store(0)
	return true
}

// note adds the complete content to the stash's contents.
func (c *stashed) note(d Digest) {
	c.stash.mu.Lock()
	defer c.stash.mu.Unlock()
	c.stash.at[d] = c.SectionReader
}
