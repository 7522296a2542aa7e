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

// plainHeaders are how a gzip header without flags and time begins: as compress/gzip and klauspost/compress/gzip write them, of
// which the latter writes the zero time.Time as it is.
var plainHeaders = []string{"\x1f\x8b\x08\x00\x00\x00\x00\x00", "\x1f\x8b\x08\x00\x00\x09\x6e\x88"}

// foreignGzip returns what is not as BuildKit and slimctl compress a layer by gzip: one member, with a header that says nothing.
func foreignGzip(header []byte, members int) string {
	switch {
	case compression(header) != "gzip":
		return "" // Layer.Compression tells
	case len(header) < gzipHeader || !slices.Contains(plainHeaders, string(header[:8])) || header[9] != 255:
		return "its gzip header has a name, a time, a comment or extra fields"
	case members != 1:
		return fmt.Sprintf("it has %d gzip members", members)
	}
	return ""
}

// foreignAt keeps the first place where the archive is not as a build writes it.
func (u *unpacker) foreignAt(format string, args ...any) {
	if u.foreign == "" {
		u.foreign = fmt.Sprintf(format, args...)
	}
}

// foreignHeader compares the headers of an entry with this path, which stand in raw behind the padding of the content before, with those
// that archive/tar writes of it: without names of users, with whole seconds, in one form only.
func (u *unpacker) foreignHeader(h *tar.Header, path string, raw []byte) {
	if u.foreign != "" {
		return
	}
	padding, raw := raw[:len(raw)%blockSize], raw[len(raw)%blockSize:]
	if len(bytes.TrimLeft(padding, "\x00")) > 0 {
		u.foreignAt("something in the padding before %.200q", path)
		return
	}
	again := *h
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
	var want bytes.Buffer
	_, late := h.PAXRecords["mtime"] // a time for which the header has no room
	if err := tar.NewWriter(&want).WriteHeader(&again); err != nil || late || !bytes.Equal(raw, want.Bytes()) {
		u.foreignAt("the header of %.200q", path)
	}
}
