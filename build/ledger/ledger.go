// Package ledger writes and reads the ledger of an image whose layers were made anew of its base: for each path and each
// package of the base whether it is in the image, and by which rule.
//
// A ledger is gzip of JSON lines. The first is a Header; then come Rows: the packages, the paths that stay, the paths that the
// build adds, and the paths that go, each sorted. The same build gives the same bytes.
package ledger

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/pgzip"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/internal/rawname"
)

// A ledger is the one layer of an artifact whose subject is the image's manifest (OCI image specification, manifest.md).
const (
	ArtifactType = "application/vnd.slimctl.ledger.v1"
	MediaType    = ArtifactType + ".jsonl+gzip"
	FileName     = "ledger.jsonl.gz"
)

// version is that of the format.
const version = 1

// level is the compression's, and blockSize how many bytes are compressed by themselves; the bytes depend on both.
const (
	level     = 6
	blockSize = 1 << 20
)

// Header is the first line.
type Header struct {
	Ledger   int    `json:"ledger"`
	Profile  string `json:"profile"`
	Platform string `json:"platform"`
	// Base is the digest of the base's manifest for the platform.
	Base string `json:"base"`
}

// PackagePrefix precedes the name of a package in Row.From.
const PackagePrefix = "package "

// The rules besides those of package keep.
const (
	Added     = "added"     // stays, though the base doesn't have it: by an overlay
	Directory = "directory" // stays for what lies in it, or for its package
	Replaced  = "replaced"  // goes, by an overlay's file
	Removed   = "removed"   // goes, by the profile
	Empty     = "empty"     // goes: a directory in which nothing stays
)

// Ours is the component of what the build adds.
const Ours = "ours"

// Row is the fate of a path or, where Path is empty, of a package of the base. Either Stays or Goes is set.
type Row struct {
	Path    string `json:"path,omitempty"`
	Package string `json:"package,omitempty"`
	// Stays is the rule by which it is in the image, Goes the rule by which it isn't.
	Stays string `json:"stays,omitempty"`
	Goes  string `json:"goes,omitempty"`
	// From is the path, or the package after PackagePrefix, that pulled it or that it goes with; else the glob, the path or the
	// overlay of the rule.
	From string `json:"from,omitempty"`
	Why  string `json:"why,omitempty"`
	// Type is empty for a regular file. A hard link has the path of its file's first name as Link, and no Bytes.
	Type      image.Type `json:"type,omitempty"`
	Link      string     `json:"link,omitempty"`
	Bytes     int64      `json:"bytes,omitempty"`
	Component string     `json:"component,omitempty"`
	// Digest is of the base's content and Edited of the image's, where the build edits the file.
	Digest string `json:"digest,omitempty"`
	Edited string `json:"edited,omitempty"`
}

// Writer writes a ledger.
type Writer struct {
	zip *pgzip.Writer
	enc *json.Encoder
}

// NewWriter returns a Writer to w that has written the header.
func NewWriter(w io.Writer, h Header) (*Writer, error) {
	zip, err := pgzip.NewWriterLevel(w, level)
	if err != nil {
		return nil, err
	}
	if err := zip.SetConcurrency(blockSize, 2); err != nil {
		return nil, err
	}
	zip.OS = 255 // unknown, as image.LayerCache writes it
	out := &Writer{zip, json.NewEncoder(zip)}
	out.enc.SetEscapeHTML(false)
	h.Ledger = version
	return out, out.enc.Encode(h)
}

// Add writes a row.
func (w *Writer) Add(r Row) error {
	for _, s := range []*string{&r.Path, &r.Link, &r.From} {
		*s = rawname.Quote(*s)
	}
	return w.enc.Encode(r)
}

// Close ends the ledger; it doesn't close what is below.
func (w *Writer) Close() error { return w.zip.Close() }

// What a ledger may make us read: MaxSize compressed, in bytes; unpacked; in one line; and, in memory, of what stays.
const (
	MaxSize     = 64 << 20
	maxUnpacked = 1 << 30
	maxLine     = 64 << 10
	maxKept     = 64 << 20
	rowSize     = 300 // of an empty one in memory
)

var errTooLarge = errors.New("ledger: too large")

// Read calls each for every row until it returns false. What a ledger says is its writer's word.
func Read(r io.Reader, each func(Row) bool) (h Header, err error) {
	zip, err := gzip.NewReader(io.LimitReader(r, MaxSize))
	if err != nil {
		return h, fmt.Errorf("ledger: %w", err)
	}
	unpacked := &io.LimitedReader{R: zip, N: maxUnpacked}
	lines := bufio.NewScanner(unpacked)
	lines.Buffer(nil, maxLine)
	if !lines.Scan() || json.Unmarshal(lines.Bytes(), &h) != nil || h.Ledger != version {
		return h, fmt.Errorf("ledger: no header of version %d", version)
	}
	for lines.Scan() {
		var row Row
		if err := json.Unmarshal(lines.Bytes(), &row); err != nil {
			return h, fmt.Errorf("ledger: %w", err)
		}
		if (row.Stays == "") == (row.Goes == "") || row.key() == PackagePrefix {
			return h, errors.New("ledger: a row that says nothing")
		}
		for _, s := range []*string{&row.Path, &row.Link, &row.From} {
			*s = rawname.Unquote(*s)
		}
		if !each(row) {
			return h, nil
		}
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong), err == nil && unpacked.N == 0:
		return h, errTooLarge
	case err != nil:
		return h, fmt.Errorf("ledger: %w", err)
	}
	return h, nil
}

// Find returns the row of a path and those that it comes from, up to the root or, for what goes, to the rule. Links among
// the path's parents that stay are followed. A path that the ledger doesn't have gives no rows.
func Find(r io.Reader, p string) (h Header, rows []Row, err error) {
	kept := map[string]Row{} // and the packages
	size := 0
	p = image.Clean(p)
	resolved := false
	h, err = Read(r, func(row Row) bool {
		if row.Path == "" || row.Stays != "" {
			size += len(row.Path) + len(row.Package) + len(row.From) + len(row.Why) + len(row.Link) + rowSize
			kept[row.key()] = row
			return size <= maxKept
		}
		if !resolved {
			resolved, p = true, resolve(kept, p)
		}
		if row.Path == p {
			rows = append(rows, row)
		}
		_, stays := kept[p]
		return rows == nil && !stays
	})
	if err == nil && size > maxKept {
		err = errTooLarge
	}
	if err != nil {
		return h, nil, err
	}
	next := resolve(kept, p)
	if rows != nil {
		next = rows[0].From
	}
	for row, ok := kept[next]; ok && len(rows) < maxChain; row, ok = kept[next] {
		rows, next = append(rows, row), row.From
	}
	return h, rows, nil
}

// maxChain is longer than any chain.
const maxChain = 100

func (r Row) key() string {
	if r.Path == "" {
		return PackagePrefix + r.Package
	}
	return r.Path
}

// resolve follows the links of kept among the parents of p.
func resolve(kept map[string]Row, p string) string {
	for range 40 { // as the kernel, path_resolution(7)
		i := 0
		parents := image.Parents(p)
		for i < len(parents) && kept[parents[i]].Type != image.TypeSymlink {
			i++
		}
		if i == len(parents) {
			return p
		}
		to := kept[parents[i]].Link
		if !path.IsAbs(to) {
			to = path.Join(path.Dir(parents[i]), to)
		}
		p = path.Clean("/" + to + strings.TrimPrefix(p, parents[i]))
	}
	return p
}

// prepositions go between a rule and what it names; "of" is the others'.
var prepositions = map[string]string{
	Added: "by", Replaced: "by", Removed: "with", "dropped": "by", "cut": "from", "with": "",
}

// phrases are what rules say by themselves.
var phrases = map[string]string{
	"unneeded": "nothing that stays needs it", "dangling": "it would lead to nothing", Empty: "nothing in it stays",
	Directory: "for what lies in it, or for its package",
}

// String words the row: "/usr/bin/x: library of /usr/bin/y (why)".
func (r Row) String() string {
	words := []string{r.key() + ":"}
	if r.Goes != "" {
		words = append(words, "goes,")
	}
	words = append(words, cmp.Or(phrases[r.Stays+r.Goes], r.Stays+r.Goes))
	if r.From != "" {
		preposition, ok := prepositions[r.Stays+r.Goes]
		if !ok {
			preposition = "of"
		}
		words = append(words, preposition, r.From)
	}
	if r.Why != "" {
		words = append(words, "("+r.Why+")")
	}
	return strings.Join(slices.DeleteFunc(words, func(s string) bool { return s == "" }), " ")
}
