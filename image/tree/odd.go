package tree

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/slimctl/slimctl/image"
)

// Odd is something in a layer's archive that the programs which unpack it read in different ways.
type Odd struct {
	// Path is the entry's, as the archive has it but clean; "/" for the archive as a whole.
	Path string
	Text string
}

// Notes are what is odd in the layer at position i.
func (l *Layer) Notes(i int) []Note {
	var notes []Note
	for _, o := range l.Odd {
		notes = append(notes, Note{
			Place: Place{Path: o.Path, Layer: l.Digest.String()},
			Text:  fmt.Sprintf("layer %d: programs that unpack it read its archive differently: %s", i+1, o.Text),
		})
	}
	return notes
}

const (
	// maxOdd is how many of them are kept of a layer; the last tells that there are more.
	maxOdd = 48
	// maxHeaders bounds what is kept of the headers of one entry, in bytes: archive/tar takes 1 MiB of each.
	maxHeaders = 4 << 20
	blockSize  = 512
)

func (u *unpacker) note(p, format string, args ...any) {
	o := Odd{p, fmt.Sprintf(format, args...)}
	if len(p) > maxPath {
		o.Path = "/"
	}
	switch n := len(u.odd); {
	case n == maxOdd || n > 0 && u.odd[n-1] == o:
		return
	case n == maxOdd-1:
		o = Odd{"/", "there is more of that in the archive"}
	}
	u.odd = append(u.odd, o)
}

// recorder keeps the first bytes that are read through it.
type recorder struct {
	io.Reader
	kept []byte
	max  int
	over bool // there were more than max
}

func (r *recorder) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	keep := min(n, r.max-len(r.kept))
	if len(r.kept)+keep > cap(r.kept) {
		r.kept = slices.Grow(r.kept, max(keep, len(r.kept))) // twice as much each time
	}
	r.kept = append(r.kept, b[:keep]...)
	r.over = r.over || keep < n
	return n, err
}

// from begins anew.
func (r *recorder) from(limit int) { r.kept, r.max, r.over = r.kept[:0], limit, false }

// compression names what an archive is compressed with by its first bytes, as image.Inflate does: "gzip", "zstd" or "none".
func compression(magic []byte) string {
	switch {
	case bytes.HasPrefix(magic, []byte("\x1f\x8b")):
		return "gzip"
	case bytes.HasPrefix(magic, []byte("\x28\xb5\x2f\xfd")):
		return "zstd"
	}
	return "none"
}

// header looks at the headers of one entry: raw is what archive/tar read to give h, behind the content before. GNU tar,
// Python's tarfile, libarchive and archive/tar agree on what is not told here.
func (u *unpacker) header(h *tar.Header, raw *recorder) {
	p := image.Clean(h.Name)
	if h.Typeflag == tar.TypeXGlobalHeader { // archive/tar takes a name from its records, or doesn't when another one is bad
		p = "/"
	}
	note := func(format string, args ...any) { u.note(p, format, args...) }
	u.foreignHeader(h, p, raw.kept)
	if raw.over {
		note("its headers have more than %d bytes", maxHeaders)
	}
	for _, k := range slices.Sorted(maps.Keys(h.PAXRecords)) {
		switch v := h.PAXRecords[k]; {
		case h.Typeflag == tar.TypeXGlobalHeader && k != "comment":
			note("a global PAX header sets %.100q for the entries after it: some programs apply it, others do not", k)
		case h.Typeflag != tar.TypeXGlobalHeader && !plainRecord(k, v):
			note("a PAX header sets %.100q to %.100q: programs differ on what that means", k, v)
		}
	}
	if h.Typeflag == tar.TypeGNUSparse {
		note("a sparse file of GNU tar: not every program knows it")
	}
	if isSparse(h) {
		return // there is more than headers in raw
	}
	switch special := specials(raw.kept); {
	case h.Typeflag == tar.TypeXGlobalHeader:
		if strings.TrimSuffix(special, "g") != "" {
			note("headers of an entry stand before a global one: programs differ on what they belong to")
		}
		return
	case !slices.Contains([]string{"", "x", "L", "K", "LK", "KL"}, special):
		note("it has the headers %q: programs differ on which of them counts", special)
	}
	name := "/" + h.Name + "/"
	switch {
	case strings.Contains(name, "/../"), h.Typeflag == tar.TypeLink && strings.Contains("/"+h.Linkname+"/", "/../"):
		note("its path has .. in it: some programs follow that, others pass the entry over")
	case h.Typeflag == tar.TypeReg && strings.HasSuffix(h.Name, "/"):
		note("a file with a directory's name: some programs make it a directory")
	case tarTypes[h.Typeflag] != image.TypeFile && h.Size != 0:
		note("it has %d bytes of content, which its type has not: programs differ on where the next entry begins", h.Size)
	}
}

// plainRecord says whether a PAX record says what a header has no room for (POSIX.1-2017, pax, "Extended Header"), or is an
// extended attribute.
func plainRecord(k, v string) bool {
	n, err := strconv.ParseInt(v, 10, 64)
	switch k {
	case "path", "linkpath":
		return v != ""
	case "mtime", "atime", "ctime":
		return v != ""
	case "size":
		return err == nil && n >= 8<<30
	case "uid", "gid":
		return err == nil && n > 0o7777777
	case "uname", "gname":
		return len(v) > 31 || strings.ContainsFunc(v, func(r rune) bool { return r >= 0x80 })
	}
	return strings.HasPrefix(k, paxXattr)
}

// specials gives the types of the headers in raw that stand before an entry's own, which is the last block.
func specials(raw []byte) string {
	var types []byte
	b := raw[len(raw)%blockSize:] // the end of the content before
	for len(b) > blockSize {
		types = append(types, b[156])
		size, err := strconv.ParseInt(strings.Trim(string(b[124:136]), " \x00"), 8, 64)
		next := blockSize + (size+blockSize-1)/blockSize*blockSize
		if err != nil || size < 0 || next > int64(len(b)) {
			return string(append(types, '?'))
		}
		b = b[next:]
	}
	return string(types)
}

// end looks at what stands behind the last entry: raw is what archive/tar read there, and rest gives what it left.
func (u *unpacker) end(raw *recorder, rest io.Reader, buf []byte) error {
	if len(raw.kept)/blockSize != 2 {
		u.foreignAt("its end")
	}
	for {
		n, err := rest.Read(buf)
		if n > 0 {
			u.foreignAt("more behind its end")
		}
		if len(bytes.TrimLeft(buf[:n], "\x00")) > 0 {
			u.note("/", "there is something behind the archive's end: some programs read on")
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// again tells of an entry for a path that the layer has, as node n.
func (u *unpacker) again(e *Entry, n int32) {
	was := u.nodes[n].entry
	switch {
	case !e.IsDir() || !u.isDir(n):
		u.note(e.Path, "it is in the archive twice: programs differ on which of them counts, and on what becomes of the other")
	case was >= 0 && !sameDir(e, &u.entries[was]):
		u.note(e.Path, "the directory is in the archive twice, with other rights: programs differ on which of them count")
	}
}

func sameDir(a, b *Entry) bool {
	return a.Mode == b.Mode && a.UID == b.UID && a.GID == b.GID && maps.Equal(a.Xattrs, b.Xattrs)
}

// noteHalfHidden notes the directories whose lower content a layer hides from some programs only. The entries are in the
// order of a walk. An overlayfs that containerd or Docker unpacked the layer for shows the content of lower layers there.
func (u *unpacker) noteHalfHidden(entries []Entry) {
	for i := range entries {
		switch e := &entries[i]; {
		case e.Type == TypeOpaque && e.Path == "/":
			u.note("/", "it hides all lower layers: overlayfs can't")
		case e.Type != TypeWhiteout || i+1 == len(entries) || i > 0 && entries[i-1].Type == TypeOpaque && entries[i-1].Path == e.Path:
		case entries[i+1].IsDir() && entries[i+1].Path == e.Path, strings.HasPrefix(entries[i+1].Path, e.Path+"/"):
			u.note(e.Path, "the layer takes the directory away and brings it: some programs show what lower layers have in it, others do not")
		}
	}
}

// removedLate tells of a whiteout for what the layer itself has brought before.
func (u *unpacker) removedLate(p string) {
	dir, _, err := u.follow(path.Dir(p), false)
	if err != nil {
		return // it is not there
	}
	if _, ok := u.at[place{dir, path.Base(p)}]; ok {
		u.note(p, "the layer brings it and takes it away: some programs remove it, others only what is below the layer")
	}
}
