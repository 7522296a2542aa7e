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

// blobs is the content of an OCI layout on this machine: a directory, or a tar archive of one.
type blobs struct {
	root  string
	files map[string]span // of an archive: where each file lies
	known *verified
}

// span is a part of a file.
type span struct {
	path      string
	off, size int64
}

func dirBlobs(dir string, known *verified) *blobs { return &blobs{root: dir, known: known} }

// tarBlobs reads the headers of an archive once, skipping the content, so that everything can be read by its offset. What one
// program would read otherwise than another is an error: two entries with one name, one below a file or with ".." in its name,
// a sparse file, a device, a link that leads to no file of the archive, such as one in a directory's place, and anything
// behind the archive's end.
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
	seen := map[string]byte{} // by name, the type of its entry
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
			return nil, fmt.Errorf("%s: its entry %.200q is no plain path: some programs follow it, others don't", file, h.Name)
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
			return nil, fmt.Errorf("%s: %.200q is a sparse file: write the archive without such", file, name)
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
			return nil, fmt.Errorf("%s: %.200q is a device, or something else that no layout has (tar type %q)", file, name, h.Typeflag)
		}
	}
	if err := checkEnd(f, end); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for name := range seen {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if t, ok := seen[dir]; ok && t != tar.TypeDir {
				return nil, fmt.Errorf("%s: it has an entry %.200q below %.200q, which is no directory", file, name, dir)
			}
		}
	}
	for name := range links {
		to := name
		for range 8 { // docker save of old links one layer to another; never deep
			next, ok := links[to]
			if !ok {
				break
			}
			to = next
		}
		s, ok := b.files[to]
		if !ok {
			return nil, fmt.Errorf("%s: the link %.200q leads to no file of the archive", file, name)
		}
		b.files[name] = s
	}
	return b, nil
}

const (
	tarBlock = 512
	// mostPadding is how many zeros may follow an archive, in bytes: tar writes 10 KiB at a time.
	mostPadding = 1 << 20
)

// checkEnd refuses an archive that doesn't end behind its last entry, as POSIX has it end: with two blocks of zeros.
func checkEnd(f io.ReaderAt, end int64) error {
	raw, err := io.ReadAll(io.NewSectionReader(f, end, mostPadding+1))
	switch {
	case err != nil:
		return err
	case len(bytes.TrimLeft(raw, "\x00")) > 0 || len(raw) > mostPadding:
		return errors.New("there is something behind its end: some programs read on, others don't")
	case len(raw) < 2*tarBlock:
		return errors.New("cut short: it lacks the two blocks of zeros that end an archive")
	}
	return nil
}

// entryName is the name of an archive's entry in one spelling.
func entryName(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

// contains reports whether an archive has a file.
func (b *blobs) contains(name string) bool {
	_, ok := b.files[name]
	return ok
}

// has reports whether the layout has a file; anything else by that name is an error.
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

// find tells where a file of the layout lies.
func (b *blobs) find(name string) (span, error) {
	if b.files != nil {
		s, ok := b.files[name]
		if !ok {
			return span{}, fmt.Errorf("%s: no %.200q in the archive: %w", b.root, name, fs.ErrNotExist)
		}
		return s, nil
	}
	// Symbolic links are followed (some builders lay them): it is the digest that guards the content.
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

// blob tells where the blob of a digest lies, and refuses one whose size is already wrong.
func (b *blobs) blob(d v1.Descriptor) (span, error) {
	if _, err := v1.Hasher(d.Digest.Algorithm); err != nil {
		return span{}, fmt.Errorf("%s: digest %q: %w", b.root, d.Digest, err)
	}
	s, err := b.find("blobs/" + d.Digest.Algorithm + "/" + d.Digest.Hex)
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

// read gives a blob that is a document, checked.
func (b *blobs) read(d v1.Descriptor) ([]byte, error) {
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

// open gives a blob that checks itself when read to the end. What was checked before and has not changed since is not
// hashed again.
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

// identity tells the file's state now; ok is false where the system can't tell.
func (r *spanReader) identity() (fileID, bool) {
	info, err := r.file.Stat()
	if err != nil {
		return fileID{}, false
	}
	id, ok := identify(info)
	id.Off = r.off
	return id, ok
}
