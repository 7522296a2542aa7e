package tree

import (
	"archive/tar"
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"
)

// gzipHeader is the length of a gzip header without optional fields, in bytes (RFC 1952, section 2.3).
const gzipHeader = 10

// plainHeaders are the first bytes of gzip headers without flags and time, from compress/gzip and from
// klauspost/compress/gzip, which encodes the zero time.Time literally.
var plainHeaders = []string{"\x1f\x8b\x08\x00\x00\x00\x00\x00", "\x1f\x8b\x08\x00\x00\x09\x6e\x88"}

// foreignGzip returns how a gzip differs from BuildKit's and slimctl's, which has one member and a header without
// flags.
func foreignGzip(header []byte, members int) string {
	switch {
	case compression(header) != "gzip":
		return "" // Layer.Compression reports it
	case len(header) < gzipHeader || !slices.Contains(plainHeaders, string(header[:8])) || header[9] != 255:
		return "its gzip header has a name, a time, a comment or extra fields"
	case members != 1:
		return fmt.Sprintf("it has %d gzip members", members)
	}
	return ""
}

// noteForeign records the first difference from an archive that a build writes.
func (u *unpacker) noteForeign(format string, args ...any) {
	if u.foreign == "" {
		u.foreign = fmt.Sprintf(format, args...)
	}
}

// headerWriter is the memory for writing one header. Without reuse it would be a third of what indexing allocates.
type headerWriter struct {
	header tar.Header
	writer tar.Writer
	bytes  bytes.Buffer
}

// compareHeaders compares the headers of an entry, which follow the padding in raw, with those that archive/tar writes
// for it: without user names, with whole seconds, in one format.
func (u *unpacker) compareHeaders(h *tar.Header, path string, raw []byte) {
	if u.foreign != "" {
		return
	}
	padding, raw := raw[:len(raw)%blockSize], raw[len(raw)%blockSize:]
	if len(bytes.TrimLeft(padding, "\x00")) > 0 {
		u.noteForeign("something in the padding before %.200q", path)
		return
	}
	again := &u.again.header
	*again = *h
	again.Format, again.Uname, again.Gname = tar.FormatPAX, "", ""
	again.ModTime, again.AccessTime, again.ChangeTime = h.ModTime.Truncate(time.Second), time.Time{}, time.Time{}
	again.PAXRecords = nil
	for k, v := range h.PAXRecords {
		if strings.HasPrefix(k, paxXattr) {
			if again.PAXRecords == nil {
				again.PAXRecords = map[string]string{}
			}
			again.PAXRecords[k] = v
		}
	}
	want := &u.again.bytes
	want.Reset()
	u.again.writer = *tar.NewWriter(want)
	_, late := h.PAXRecords["mtime"] // a time that doesn't fit in the header
	if err := u.again.writer.WriteHeader(again); err != nil || late || !bytes.Equal(raw, want.Bytes()) {
		u.noteForeign("the header of %.200q", path)
	}
}
