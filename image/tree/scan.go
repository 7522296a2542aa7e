package tree

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/elf"
)

// whiteoutPrefix marks a removed path in a layer (OCI image specification, layer.md, "Whiteouts").
const whiteoutPrefix = ".wh."

// opaqueMarker is the name of the file that makes its directory opaque (OCI image specification, layer.md).
const opaqueMarker = whiteoutPrefix + whiteoutPrefix + ".opq"

// aufsPrefix begins the names of AUFS's own records. containerd skips them.
const aufsPrefix = whiteoutPrefix + whiteoutPrefix

// paxXattr is the prefix of the PAX keys in which GNU tar, Docker and BuildKit store extended attributes.
const paxXattr = "SCHILY.xattr."

// Types of entries that exist in layers only, which remove entries of lower layers.
const (
	// TypeWhiteout hides Path.
	TypeWhiteout image.Type = "whiteout"
	// TypeOpaque hides everything below the directory Path.
	TypeOpaque image.Type = "opaque"
)

// scan reads a layer once. It inflates, hashes and parses it concurrently.
func scan(ctx context.Context, blob v1.Layer, diffID v1.Hash, l *limits, o Options) (_ *index, err error) {
	digest, err := blob.Digest()
	if err != nil {
		return nil, err
	}
	size, err := blob.Size()
	if err != nil {
		return nil, err
	}
	task := o.Progress.Task("index "+image.Short(digest), size)
	defer func() { task.Done(err) }()
	compressed, err := blob.Compressed()
	if err != nil {
		return nil, err
	}
	defer compressed.Close()
	counted := image.Counting(ctx, compressed, task.Add)
	raw, err := l.inflate(counted)
	if err != nil {
		return nil, err
	}
	sum := sha256.New()
	x, err := readTar(ctx, io.TeeReader(raw, sum), l)
	raw.Close() // it reads no more of the blob
	// The blob's own check is at its end, and its error explains more than that of a broken archive.
	if _, drain := io.Copy(io.Discard, counted); drain != nil {
		err = drain
	}
	if err != nil {
		return nil, err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != diffID.Hex {
		return nil, fmt.Errorf("its content is sha256:%s, but the image config says %s", got, diffID)
	}
	return x, nil
}

// scanner reads the entries of a layer's archive.
type scanner struct {
	ctx   context.Context
	layer *unpacker
	kept  packer
	sum   hash.Hash
	buf   []byte
	elfs  map[Digest]*elf.File
	// program is a temporary file for the current ELF file; nil until it is needed.
	program *os.File
	// elfNames is the size of the names in elfs, in bytes.
	elfNames int
}

// readTar reads the archive and everything after it.
func readTar(ctx context.Context, r io.Reader, l *limits) (*index, error) {
	s := &scanner{ctx: ctx, layer: newUnpacker(l), sum: sha256.New(), buf: make([]byte, maxKept), elfs: map[Digest]*elf.File{}}
	defer func() { s.program.Close() }() // an error of Close doesn't matter
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r, s.buf); err != nil {
				return nil, err
			}
			break
		}
		if err != nil {
			return nil, err
		}
		e, ok, err := entryOf(h)
		if err == nil && isSparse(h) {
			err = l.sparse(h.Size)
		}
		if err == nil && ok && e.Type == image.TypeFile {
			e.Digest, err = s.content(e, tr)
		} else if err == nil {
			_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, tr, s.buf) //nolint:gosec // limits.inflate limits it
		}
		if err != nil {
			return nil, fmt.Errorf("%.200q: %w", h.Name, err)
		}
		if !ok {
			continue
		}
		if err := s.layer.add(e); err != nil {
			return nil, err
		}
	}
	entries, err := s.layer.finish()
	if err != nil {
		return nil, err
	}
	x := &index{entries: entries}
	if x.elfs, x.elfSize, err = s.kept.addELFs(s.elfs); err != nil {
		return nil, err
	}
	x.pack = s.kept.finish()
	return x, nil
}

// isSparse reports whether the archive omits a file's zeros, in any of GNU tar's formats.
func isSparse(h *tar.Header) bool {
	for k := range h.PAXRecords {
		if strings.HasPrefix(k, "GNU.sparse.") {
			return true
		}
	}
	return h.Typeflag == tar.TypeGNUSparse
}

// content hashes a file, keeps its content if keepKind says so, and parses ELF files.
func (s *scanner) content(e Entry, r io.Reader) (d Digest, err error) {
	keep := keepKind(&e)
	out := io.Discard
	var program io.ReaderAt
	buf := s.buf
	if keep != never && int64(len(buf)) < e.Size {
		buf = make([]byte, e.Size)
	}
	s.sum.Reset()
	for rest := e.Size; rest > 0; {
		if err := context.Cause(s.ctx); err != nil { // a hole in a sparse file never reads
			return d, err
		}
		n, err := io.ReadFull(r, buf[:min(rest, int64(len(buf)))])
		if err != nil {
			return d, err
		}
		if rest == e.Size && e.Size <= maxELF && elf.Is(buf[:n]) {
			if int64(n) == e.Size {
				program = bytes.NewReader(buf[:n])
			} else if program, out, err = s.programFile(e.Size); err != nil {
				return d, err
			}
		}
		if _, err = out.Write(buf[:n]); err != nil {
			return d, err
		}
		s.sum.Write(buf[:n])
		rest -= int64(n)
	}
	s.sum.Sum(d[:0])
	var parsed *elf.File
	if program != nil && s.elfs[d] == nil && len(s.elfs) < maxELFs {
		parsed, _ = elf.Read(program) // no loader would take a file with an error
	}
	if parsed != nil {
		s.elfs[d] = parsed
		for _, name := range slices.Concat(parsed.Needed, parsed.RPath, parsed.RunPath) {
			s.elfNames += len(name)
		}
		if s.elfNames > maxELFText/2 {
			return d, fmt.Errorf("the names in the layer's ELF files have more than %d bytes", maxELFText/2)
		}
	}
	if keep == always || keep == script && string(buf[:2]) == "#!" {
		s.kept.add(d, buf[:e.Size])
	}
	return d, nil
}

// programFile returns an unnamed file to write a program to and to read it from, until the next call.
func (s *scanner) programFile(size int64) (io.ReaderAt, io.Writer, error) {
	if s.program == nil {
		f, err := os.CreateTemp("", ".slimctl-")
		if err != nil {
			return nil, nil, err
		}
		s.program = f
		if err := os.Remove(f.Name()); err != nil {
			return nil, nil, err
		}
	}
	return io.NewSectionReader(s.program, 0, size), io.NewOffsetWriter(s.program, 0), nil
}

var tarTypes = map[byte]image.Type{
	tar.TypeReg: image.TypeFile, tar.TypeGNUSparse: image.TypeFile, tar.TypeDir: image.TypeDir,
	tar.TypeSymlink: image.TypeSymlink, tar.TypeLink: image.TypeLink,
	tar.TypeChar: image.TypeChar, tar.TypeBlock: image.TypeBlock, tar.TypeFifo: image.TypeFifo,
}

// entryOf returns the entry of a header; ok is false for a header without an entry.
func entryOf(h *tar.Header) (e Entry, ok bool, err error) {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return Entry{}, false, nil
	}
	typ, ok := tarTypes[h.Typeflag]
	if !ok {
		return Entry{}, false, fmt.Errorf("unknown tar entry type %q", h.Typeflag)
	}
	p := image.Clean(h.Name)
	dir, base := path.Split(p)
	switch {
	case p == "/"+opaqueMarker: // overlayfs can't hide all lower layers
		return Entry{}, false, nil
	case base == opaqueMarker:
		return Entry{Entry: image.Entry{Path: image.Clean(dir), Type: TypeOpaque}}, true, nil
	case strings.Contains(p, "/"+aufsPrefix):
		return Entry{}, false, nil
	case strings.HasPrefix(base, whiteoutPrefix):
		hidden := strings.TrimPrefix(base, whiteoutPrefix)
		if hidden == "" || hidden == "." || hidden == ".." {
			return Entry{}, false, errors.New("a whiteout without a name")
		}
		return Entry{Entry: image.Entry{Path: path.Join(dir, hidden), Type: TypeWhiteout}}, true, nil
	}
	e = Entry{Entry: image.Entry{Path: p, Type: typ, Mode: h.Mode & 0o7777, UID: h.Uid, GID: h.Gid, ModTime: h.ModTime.UTC()}}
	switch typ {
	case image.TypeFile:
		e.Size = h.Size
	case image.TypeSymlink:
		e.Link = strings.Clone(h.Linkname) // part of a PAX header, which would stay in memory
	case image.TypeLink:
		e.Link = image.Clean(h.Linkname)
	case image.TypeChar, image.TypeBlock:
		if typ == image.TypeChar && h.Devmajor == 0 && h.Devminor == 0 {
			return Entry{}, false, errors.New("it is the character device 0:0, which overlayfs takes for a whiteout")
		}
		e.Device = Device{uint32(h.Devmajor), uint32(h.Devminor)}
	}
	for k, v := range h.PAXRecords {
		name, ok := strings.CutPrefix(k, paxXattr)
		if !ok {
			continue
		}
		if strings.HasPrefix(name, "trusted.overlay.") || strings.HasPrefix(name, "user.overlay.") {
			return Entry{}, false, fmt.Errorf("attribute %q is reserved for overlayfs: it would take a file's content from elsewhere", name)
		}
		if e.Xattrs == nil {
			e.Xattrs = image.Xattrs{}
		}
		e.Xattrs[strings.Clone(name)] = strings.Clone(v)
	}
	return e, true, nil
}
