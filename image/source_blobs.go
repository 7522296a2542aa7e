package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
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

// tarBlobs reads the headers of an archive and records the offsets of the contents. An entry that is neither a file nor
// a directory is recorded without a position.
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
	tr := tar.NewReader(f)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: not an uncompressed tar archive, or cut short: %w", file, err)
		}
		name := strings.TrimPrefix(h.Name, "./")
		clean := strings.TrimSuffix(name, "/")
		switch _, twice := b.files[clean]; {
		case twice:
			return nil, fmt.Errorf("%s: it has two entries called %.200q; write the archive again", file, clean)
		case clean != entryName(name):
			return nil, fmt.Errorf("%s: the path of its entry %.200q is not clean; write the archive again", file, h.Name)
		case h.Typeflag == tar.TypeDir || h.Typeflag == tar.TypeXGlobalHeader:
			continue
		case h.Typeflag != tar.TypeReg || slices.ContainsFunc(slices.Collect(maps.Keys(h.PAXRecords)), isSparse):
			b.files[name] = span{}
			continue
		}
		off, err := f.Seek(0, io.SeekCurrent)
		if err != nil {
			return nil, err
		}
		if h.Size > info.Size()-off {
			return nil, fmt.Errorf("%s: cut short: %s ends behind the end of the file", file, name)
		}
		b.files[name] = span{path: file, off: off, size: h.Size}
	}
	rest, err := io.ReadAll(io.LimitReader(f, mostPadding+1))
	if err == nil && (len(rest) > mostPadding || len(bytes.TrimLeft(rest, "\x00")) > 0) {
		err = errors.New("it has data after its end; write the archive again")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return b, nil
}

// isSparse reports whether a PAX record belongs to a file that the archive has without its zeros.
func isSparse(record string) bool { return strings.HasPrefix(record, "GNU.sparse.") }

// mostPadding limits the zeros after an archive, in bytes: tar writes blocks of 10 KiB.
const mostPadding = 1 << 20

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
		if s.path == "" {
			return span{}, fmt.Errorf("%s: %.200q is not a regular file; write the archive without links and sparse files", b.root, name)
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
