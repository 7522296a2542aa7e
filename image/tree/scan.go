package tree

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"path"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/image"
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
func scan(ctx context.Context, blob v1.Layer, diffID v1.Hash, l *limits, p image.Progress) (_ *index, err error) {
	digest, err := blob.Digest()
	if err != nil {
		return nil, err
	}
	size, err := blob.Size()
	if err != nil {
		return nil, err
	}
	task := p.Task("index "+image.Short(digest), size)
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
	defer inflated.Close()
	hashed := ahead(io.TeeReader(inflated, sum))
	defer hashed.Close()
	x, err := readTar(ctx, hashed, l)
	hashed.Close()
	inflated.Close()
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
	kept  packer
	sum   hash.Hash
	buf   []byte
	// machine is Entry.Machine of the file that was read last.
	machine elf.Machine
}

// readTar reads the archive, and all that is behind it.
func readTar(ctx context.Context, r io.Reader, l *limits) (*index, error) {
	s := &scanner{ctx: ctx, layer: newUnpacker(l), sum: sha256.New(), buf: make([]byte, maxKept)}
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
			e.Machine = s.machine
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
	return &index{entries: entries, odd: s.layer.odd, foreign: s.layer.foreign, pack: s.kept.finish()}, nil
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

// content hashes a file, and keeps it when it is one of those.
func (s *scanner) content(e Entry, r io.Reader) (d Digest, err error) {
	keep := keeps(&e)
	buf := s.buf
	if keep != never && int64(len(buf)) < e.Size {
		buf = make([]byte, e.Size)
	}
	s.sum.Reset()
	s.machine = 0
	for rest := e.Size; rest > 0; {
		if err := context.Cause(s.ctx); err != nil { // a hole of a sparse file asks nobody
			return d, err
		}
		n, err := io.ReadFull(r, buf[:min(rest, int64(len(buf)))])
		if err != nil {
			return d, err
		}
		if rest == e.Size && e.Mode&0o111 != 0 {
			s.machine = machineOf(buf[:n])
		}
		s.sum.Write(buf[:n])
		rest -= int64(n)
	}
	s.sum.Sum(d[:0])
	if keep == always || keep == script && string(buf[:2]) == "#!" {
		s.kept.add(d, buf[:e.Size])
	}
	return d, nil
}

// elfHeader is how much of a file tells its machine: e_ident, e_type and e_machine (System V ABI, chapter 4), in bytes.
const elfHeader = 20

// machineOf returns the machine of a 64-bit little-endian ELF file that begins with head; zero for anything else.
func machineOf(head []byte) elf.Machine {
	if len(head) < elfHeader || string(head[:4]) != elf.ELFMAG || elf.Class(head[elf.EI_CLASS]) != elf.ELFCLASS64 || elf.Data(head[elf.EI_DATA]) != elf.ELFDATA2LSB {
		return 0
	}
	return elf.Machine(binary.LittleEndian.Uint16(head[18:]))
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
