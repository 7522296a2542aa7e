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

// aufsPrefix begins the names under which AUFS kept its own records. Who unpacks a layer passes them over, takes hard links
// from them, removes what the rest of the name says, or lays them as files, according to the program and its version.
const aufsPrefix = whiteoutPrefix + whiteoutPrefix

// typeAUFS is such a record; it is no Entry of a Layer.
const typeAUFS image.Type = "aufs record"

// paxXattr is the key prefix under which GNU tar, Docker and BuildKit keep extended attributes.
const paxXattr = "SCHILY.xattr."

// Types of an Entry that only a layer index has: what a layer takes away from the layers below it.
const (
	// TypeWhiteout hides Path.
	TypeWhiteout image.Type = "whiteout"
	// TypeOpaque hides everything below the directory Path.
	TypeOpaque image.Type = "opaque"
)

// scan reads a layer once: it is inflated, hashed, and walked through at the same time.
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
	magic := &recorder{Reader: counted, max: gzipHeader}
	raw, members, err := l.inflate(magic)
	if err != nil {
		return nil, err
	}
	defer raw.Close()
	sum := sha256.New()
	inflated := ahead(raw)
	x, err := readTar(ctx, io.TeeReader(inflated, sum), l, o.Stash)
	inflated.close()
	// The blob's own check is at its end, and says more than a broken archive does.
	if _, drain := io.Copy(io.Discard, counted); drain != nil {
		err = drain
	}
	if err != nil {
		return nil, err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != diffID.Hex {
		return nil, fmt.Errorf("content is sha256:%s, the image config says %s", got, diffID)
	}
	x.compression = compression(magic.kept)
	if x.foreign == "" {
		x.foreign = foreignGzip(magic.kept, members())
	}
	return x, nil
}

// scanner reads the entries of one layer's archive.
type scanner struct {
	ctx   context.Context
	layer *unpacker
	stash *Stash
	kept  packer
	sum   hash.Hash
	buf   []byte
	elfs  map[Digest]*elf.File
	// program is a temporary file for the ELF file that is being read; nil before one needs it.
	program *os.File
	// elfNames is how many bytes the names in elfs have.
	elfNames int
}

// readTar reads the archive, and all that is behind it.
func readTar(ctx context.Context, r io.Reader, l *limits, stash *Stash) (*index, error) {
	s := &scanner{ctx: ctx, layer: newUnpacker(l), stash: stash, sum: sha256.New(), buf: make([]byte, maxKept), elfs: map[Digest]*elf.File{}}
	defer func() { s.program.Close() }() // nil is an error that nobody needs
	raw := &recorder{Reader: r}
	tr := tar.NewReader(raw)
	for {
		raw.from(maxHeaders)
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			if err := s.layer.end(raw, r, s.buf); err != nil {
				return nil, err
			}
			break
		}
		if err != nil {
			return nil, err
		}
		s.layer.header(h, raw)
		raw.from(0)
		e, ok, err := entryOf(h)
		if err == nil && isSparse(h) {
			err = l.sparse(h.Size)
		}
		if err == nil && ok && e.Type == image.TypeFile {
			e.Digest, err = s.content(e, tr)
		} else if err == nil {
			_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, tr, s.buf) //nolint:gosec // limits.inflate bounds it
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
	x := &index{entries: entries, odd: s.layer.odd, foreign: s.layer.foreign}
	if x.elfs, x.elfSize, err = s.kept.addELFs(s.elfs); err != nil {
		return nil, err
	}
	x.pack = s.kept.finish()
	return x, nil
}

// isSparse reports whether the archive leaves out a file's zeros, in one of the ways of GNU tar.
func isSparse(h *tar.Header) bool {
	for k := range h.PAXRecords {
		if strings.HasPrefix(k, "GNU.sparse.") {
			return true
		}
	}
	return h.Typeflag == tar.TypeGNUSparse
}

// content hashes a file, keeps it when it is one of those, and reads an ELF file for what the loader goes by.
func (s *scanner) content(e Entry, r io.Reader) (d Digest, err error) {
	keep := keeps(&e)
	out := io.Discard
	put := s.stash.reserveLikely(&e)
	if put != nil {
		out = put
	}
	var program io.ReaderAt
	buf := s.buf
	if keep != never && int64(len(buf)) < e.Size {
		buf = make([]byte, e.Size)
	}
	s.sum.Reset()
	for rest := e.Size; rest > 0; {
		if err := context.Cause(s.ctx); err != nil { // a hole of a sparse file asks nobody
			return d, err
		}
		n, err := io.ReadFull(r, buf[:min(rest, int64(len(buf)))])
		if err != nil {
			return d, err
		}
		if rest == e.Size && e.Size <= maxELF && elf.Is(buf[:n]) {
			switch {
			case int64(n) == e.Size:
				program = bytes.NewReader(buf[:n])
			case put != nil:
				program = put
			default:
				if s.program == nil {
					if s.program, err = createTemp(""); err != nil {
						return d, err
					}
				}
				program, out = io.NewSectionReader(s.program, 0, e.Size), io.NewOffsetWriter(s.program, 0)
			}
		}
		if _, err := out.Write(buf[:n]); err != nil {
			return d, err
		}
		s.sum.Write(buf[:n])
		rest -= int64(n)
	}
	s.sum.Sum(d[:0])
	if put != nil {
		put.note(d)
	}
	if program != nil && s.elfs[d] == nil && len(s.elfs) < maxELFs {
		if f, err := elf.Read(program); err == nil { // else it is not one that a loader would take
			s.elfs[d] = f
			for _, name := range slices.Concat(f.Needed, f.RPath, f.RunPath) {
				s.elfNames += len(name)
			}
			if s.elfNames > maxELFText/2 {
				return d, fmt.Errorf("the names in the layer's ELF files have more than %d bytes", maxELFText/2)
			}
		}
	}
	if keep == always || keep == script && string(buf[:2]) == "#!" {
		s.kept.add(d, buf[:e.Size])
	}
	return d, nil
}

var tarTypes = map[byte]image.Type{
	tar.TypeReg: image.TypeFile, tar.TypeGNUSparse: image.TypeFile, tar.TypeDir: image.TypeDir,
	tar.TypeSymlink: image.TypeSymlink, tar.TypeLink: image.TypeLink,
	tar.TypeChar: image.TypeChar, tar.TypeBlock: image.TypeBlock, tar.TypeFifo: image.TypeFifo,
}

// entryOf gives the entry of a header; ok is false for what lays nothing.
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
	case base == opaqueMarker:
		return Entry{Entry: image.Entry{Path: image.Clean(dir), Type: TypeOpaque}}, true, nil
	case strings.HasPrefix(base, aufsPrefix):
		return Entry{Entry: image.Entry{Path: p, Type: typeAUFS}}, true, nil
	case strings.HasPrefix(base, whiteoutPrefix):
		hidden := strings.TrimPrefix(base, whiteoutPrefix)
		if hidden == "" || hidden == "." || hidden == ".." {
			return Entry{}, false, errors.New("a whiteout of nothing")
		}
		return Entry{Entry: image.Entry{Path: path.Join(dir, hidden), Type: TypeWhiteout}}, true, nil
	}
	e = Entry{Entry: image.Entry{Path: p, Type: typ, Mode: h.Mode & 0o7777, UID: h.Uid, GID: h.Gid, ModTime: h.ModTime.UTC()}}
	switch typ {
	case image.TypeFile:
		e.Size = h.Size
	case image.TypeSymlink:
		e.Link = strings.Clone(h.Linkname) // of a PAX header, which would stay whole
	case image.TypeLink:
		e.Link = image.Clean(h.Linkname)
	case image.TypeChar, image.TypeBlock:
		if typ == image.TypeChar && h.Devmajor == 0 && h.Devminor == 0 {
			return Entry{}, false, errors.New("the character device 0:0, which overlayfs takes for a whiteout: runtimes differ on what that means")
		}
		e.Device = Device{uint32(h.Devmajor), uint32(h.Devminor)}
	}
	for k, v := range h.PAXRecords {
		name, ok := strings.CutPrefix(k, paxXattr)
		if !ok {
			continue
		}
		if strings.HasPrefix(name, "trusted.overlay.") || strings.HasPrefix(name, "user.overlay.") {
			return Entry{}, false, fmt.Errorf("attribute %q is for overlayfs alone: it would have a file's content come from elsewhere", name)
		}
		if e.Xattrs == nil {
			e.Xattrs = image.Xattrs{}
		}
		e.Xattrs[strings.Clone(name)] = strings.Clone(v)
	}
	return e, true, nil
}
