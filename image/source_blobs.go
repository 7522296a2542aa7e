package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// blobs reads the content of an OCI layout on this machine: a directory, or a tar archive of one.
type blobs struct {
	root  string
	files map[string]span // the position of each file of an archive
	known *verified
}

// span is a part of a file.
type span struct {
	path      string
	off, size int64
}

func dirBlobs(dir string, known *verified) *blobs { return &blobs{root: dir, known: known} }

// tarBlobs reads the headers of an archive and records the offsets of the contents. It refuses everything that programs
// read in different ways: two entries with one name, an entry below a file or with ".." in its name, a sparse file, a
// device, a link without a file of the archive as target, and data after the archive's end.
func tarBlobs(file string, known *verified) (*blobs, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", file)
	}
	b := &blobs{root: file, files: map[string]span{}, known: known}
	links := map[string]string{}
	seen := map[string]byte{} // type of each entry, by name
	tr := tar.NewReader(f)
	end := int64(0) // of the last entry
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: not an uncompressed tar archive, or cut short: %w", file, err)
		}
		off, err := f.Seek(0, io.SeekCurrent)
		if err != nil {
			return nil, err
		}
		end = off
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if strings.HasPrefix(h.Name, "/") || slices.Contains(strings.Split(h.Name, "/"), "..") {
			return nil, fmt.Errorf("%s: the path of its entry %.200q is not clean: some programs follow it, others don't", file, h.Name)
		}
		name := entryName(h.Name)
		if was, twice := seen[name]; twice && (was != tar.TypeDir || h.Typeflag != tar.TypeDir) {
			return nil, fmt.Errorf("%s: it has two entries called %.200q: programs differ on which of them counts", file, name)
		}
		seen[name] = h.Typeflag
		for k := range h.PAXRecords {
			if strings.HasPrefix(k, "GNU.sparse.") {
				h.Typeflag = tar.TypeGNUSparse
			}
		}
		switch h.Typeflag {
		case tar.TypeGNUSparse:
			return nil, fmt.Errorf("%s: %.200q is a sparse file: write the archive without sparse files", file, name)
		case tar.TypeReg:
			if h.Size > info.Size()-off {
				return nil, fmt.Errorf("%s: cut short: %s ends behind the end of the file", file, name)
			}
			b.files[name] = span{path: file, off: off, size: h.Size}
			end = off + (h.Size+tarBlock-1)/tarBlock*tarBlock
		case tar.TypeDir:
		case tar.TypeLink:
			links[name] = entryName(h.Linkname)
		case tar.TypeSymlink:
			links[name] = entryName(path.Join(path.Dir(name), h.Linkname))
		default:
			return nil, fmt.Errorf("%s: %.200q has the tar type %q, which no layout needs", file, name, h.Typeflag)
		}
	}
	if err := checkEnd(f, end); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for name := range seen {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if t, ok := seen[dir]; ok && t != tar.TypeDir {
				return nil, fmt.Errorf("%s: it has an entry %.200q below %.200q, which is not a directory", file, name, dir)
			}
		}
	}
	for name := range links {
		to := name
		for range 8 { // old versions of docker save link layers to one another, never deep
			next, ok := links[to]
			if !ok {
				break
			}
			to = next
		}
		s, ok := b.files[to]
		if !ok {
			return nil, fmt.Errorf("%s: the target of the link %.200q is not in the archive", file, name)
		}
		b.files[name] = s
	}
	return b, nil
}

const (
	tarBlock = 512
	// mostPadding limits the zeros after an archive, in bytes: tar writes blocks of 10 KiB.
	mostPadding = 1 << 20
)

// checkEnd refuses an archive that doesn't end after its last entry with two blocks of zeros, as POSIX requires.
func checkEnd(f io.ReaderAt, end int64) error {
	raw, err := io.ReadAll(io.NewSectionReader(f, end, mostPadding+1))
	switch {
	case err != nil:
		return err
	case len(bytes.TrimLeft(raw, "\x00")) > 0 || len(raw) > mostPadding:
		return errors.New("it has data after its end: some programs read on, others don't")
	case len(raw) < 2*tarBlock:
		return errors.New("cut short: it lacks the two blocks of zeros that end an archive")
	}
	return nil
}

// entryName returns the clean name of an archive's entry.
func entryName(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

// contains reports whether an archive has a file.
func (b *blobs) contains(name string) bool {
	_, ok := b.files[name]
	return ok
}

// has reports whether the layout has a file. It fails if name is not a regular file.
func (b *blobs) has(name string) (bool, error) {
	if b.files == nil {
		if _, err := os.Lstat(filepath.Join(b.root, name)); errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
	}
	_, err := b.find(name)
	if b.files != nil && errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// find returns the position of a file of the layout.
func (b *blobs) find(name string) (span, error) {
	if b.files != nil {
		s, ok := b.files[name]
		if !ok {
			return span{}, fmt.Errorf("%s: no %.200q in the archive: %w", b.root, name, fs.ErrNotExist)
		}
		return s, nil
	}
	// Symbolic links are followed, because some builders write them and the digest guards the content.
	p, err := filepath.EvalSymlinks(filepath.Join(b.root, filepath.FromSlash(name)))
	if err != nil {
		return span{}, err
	}
	info, err := os.Stat(p)
	if err != nil {
		return span{}, err
	}
	if !info.Mode().IsRegular() {
		return span{}, fmt.Errorf("%s is not a regular file", p)
	}
	return span{path: p, size: info.Size()}, nil
}

// blob returns the position of the blob that d describes. It fails if the size is wrong.
func (b *blobs) blob(d v1.Descriptor) (span, error) {
	if _, err := v1.Hasher(d.Digest.Algorithm); err != nil {
		return span{}, fmt.Errorf("%s: digest %q: %w", b.root, d.Digest, err)
	}
	s, err := b.find(blobName(d.Digest))
	if errors.Is(err, fs.ErrNotExist) {
		return span{}, fmt.Errorf("%s: blob %s is missing: %w", b.root, d.Digest, err)
	}
	if err == nil && s.size != d.Size {
		return span{}, &DigestError{Want: d.Digest, WantSize: d.Size, GotSize: s.size, Where: s.path}
	}
	return s, err
}

// document reads a small file of the layout.
func (b *blobs) document(name string) ([]byte, error) {
	s, err := b.find(name)
	if err != nil {
		return nil, err
	}
	if s.size > maxDocument {
		return nil, fmt.Errorf("%s: %s has %d bytes, more than %d", b.root, name, s.size, maxDocument)
	}
	r, err := s.open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// readBlob returns a document in a blob, verified.
func (b *blobs) readBlob(d v1.Descriptor) ([]byte, error) {
	if d.Size > maxDocument {
		return nil, fmt.Errorf("%s: blob %s has %d bytes, more than %d for a document", b.root, d.Digest, d.Size, maxDocument)
	}
	r, err := b.open(d)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// open returns a blob that verifies itself when read to the end. A blob that was verified before and hasn't changed is
// not hashed again.
func (b *blobs) open(d v1.Descriptor) (io.ReadCloser, error) {
	s, err := b.blob(d)
	if err != nil {
		return nil, err
	}
	r, err := s.open()
	if err != nil {
		return nil, err
	}
	before, ok := r.identity()
	if ok && b.known.has(d.Digest, before) {
		return r, nil
	}
	good := func() {
		if after, ok := r.identity(); ok && after == before {
			b.known.add(d.Digest, after)
		}
	}
	return newVerifyReader(r, d.Digest, d.Size, s.path, good)
}

// spanReader reads a span of a file.
type spanReader struct {
	*io.SectionReader
	file *os.File
	off  int64
}

func (s span) open() (*spanReader, error) {
	f, err := os.Open(s.path)
	if err != nil {
		return nil, err
	}
	return &spanReader{SectionReader: io.NewSectionReader(f, s.off, s.size), file: f, off: s.off}, nil
}

func (r *spanReader) Close() error { return r.file.Close() }

// identity returns the file's current state; ok is false if the system can't tell.
func (r *spanReader) identity() (fileID, bool) {
	info, err := r.file.Stat()
	if err != nil {
		return fileID{}, false
	}
	id, ok := identify(info)
	id.Off = r.off
	return id, ok
}
