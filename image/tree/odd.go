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

// Odd is a part of a layer's archive that programs unpack differently.
type Odd struct {
	// Path is the clean path of the entry; "/" is the archive as a whole.
	Path string
	Text string
}

// Notes returns the odd parts of the layer at position i.
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
	// maxOdd is the largest number of them per layer. The last one then reports that there are more.
	maxOdd = 48
	// maxHeaders limits the recorded headers of one entry, in bytes. archive/tar allows 1 MiB each.
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

// recorder records the first bytes that are read through it.
type recorder struct {
	io.Reader
	kept []byte
	max  int
	over bool // there were more than max bytes
}

func (r *recorder) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	keep := min(n, r.max-len(r.kept))
	if len(r.kept)+keep > cap(r.kept) {
		r.kept = slices.Grow(r.kept, max(keep, len(r.kept))) // doubled each time
	}
	r.kept = append(r.kept, b[:keep]...)
	r.over = r.over || keep < n
	return n, err
}

// from restarts the recording.
func (r *recorder) from(limit int) { r.kept, r.max, r.over = r.kept[:0], limit, false }

// compression returns the compression of an archive by its first bytes, like image.Inflate: "gzip", "zstd" or "none".
func compression(magic []byte) string {
	switch {
	case bytes.HasPrefix(magic, []byte("\x1f\x8b")):
		return "gzip"
	case bytes.HasPrefix(magic, []byte("\x28\xb5\x2f\xfd")):
		return "zstd"
	}
	return "none"
}

// checkHeader notes oddities in the headers of one entry. raw holds the bytes that archive/tar read for h, after the
// content before. GNU tar, Python's tarfile, libarchive and archive/tar agree on everything that isn't noted.
func (u *unpacker) checkHeader(h *tar.Header, raw *recorder) {
	p := image.Clean(h.Name)
	if h.Typeflag == tar.TypeXGlobalHeader { // archive/tar takes a name from its records, unless another one is invalid
		p = "/"
	}
	note := func(format string, args ...any) { u.note(p, format, args...) }
	u.compareHeaders(h, p, raw.kept)
	if raw.over {
		note("its headers have more than %d bytes", maxHeaders)
	}
	for _, k := range slices.Sorted(maps.Keys(h.PAXRecords)) {
		switch v := h.PAXRecords[k]; {
		case h.Typeflag == tar.TypeXGlobalHeader && k != "comment":
			note("a global PAX header sets %.100q for the entries after it: some programs apply it, others do not", k)
		case h.Typeflag != tar.TypeXGlobalHeader && !isPlainRecord(k, v):
			note("a PAX header sets %.100q to %.100q: programs differ on what that means", k, v)
		}
	}
	if h.Typeflag == tar.TypeGNUSparse {
		note("a sparse file of GNU tar: not every program knows it")
	}
	if isSparse(h) {
		return // raw has more than headers
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

// isPlainRecord reports whether a PAX record holds a value that doesn't fit in a header (POSIX.1-2017, pax, "Extended
// Header"), or an extended attribute.
func isPlainRecord(k, v string) bool {
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

// specials returns the types of the headers in raw before an entry's own, which is the last block.
func specials(raw []byte) string {
	var types []byte
	b := raw[len(raw)%blockSize:] // after the end of the content before
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

// checkEnd notes what follows the last entry. raw holds the bytes that archive/tar read there, and rest returns the
// others.
func (u *unpacker) checkEnd(raw *recorder, rest io.Reader, buf []byte) error {
	if len(raw.kept)/blockSize != 2 {
		u.noteForeign("its end")
	}
	for {
		n, err := rest.Read(buf)
		if n > 0 {
			u.noteForeign("more behind its end")
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

// noteRepeated notes an entry for a path that the layer already has as node n.
func (u *unpacker) noteRepeated(e *Entry, n int32) {
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

// noteHalfHidden notes directories whose lower content a layer hides only from some programs. entries are in the order
// of a walk. An overlayfs with the layer unpacked by containerd or Docker shows the lower content.
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

// noteLateWhiteout notes a whiteout for an entry that the layer itself brought before.
func (u *unpacker) noteLateWhiteout(p string) {
	dir, _, err := u.follow(path.Dir(p), false)
	if err != nil {
		return // it doesn't exist
	}
	if _, ok := u.at[place{dir, path.Base(p)}]; ok {
		u.note(p, "the layer brings it and takes it away: some programs remove it, others only what is below the layer")
	}
}
