// Package ledger writes and reads the ledger of an image with rebuilt layers. It records for each path and package of
// the base whether it is in the image, and by which rule.
//
// A ledger is gzip of JSON lines: a Header, followed by Rows for the packages, the paths that stay, the paths that the
// build adds, and the paths that are removed, each sorted. The same build gives the same bytes.
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
	"github.com/slimctl/slimctl/internal/nearest"
	"github.com/slimctl/slimctl/internal/rawname"
)

// A ledger is the one layer of an artifact whose subject is the image's manifest (OCI image specification,
// manifest.md).
const (
	ArtifactType = "application/vnd.slimctl.ledger.v1"
	MediaType    = ArtifactType + ".jsonl+gzip"
	FileName     = "ledger.jsonl.gz"
)

// version is the version of the format.
const version = 1

// level is the compression level, and blockSize the size of separately compressed blocks, in bytes. The ledger's bytes
// depend on both.
const (
	level     = 6
	blockSize = 1 << 20
)

// Header is the first line of a ledger.
type Header struct {
	Ledger   int    `json:"ledger"`
	Profile  string `json:"profile"`
	Platform string `json:"platform"`
	// Base is the digest of the base's manifest for the platform.
	Base string `json:"base"`
}

// PackagePrefix precedes the name of a package in Row.From.
const PackagePrefix = "package "

// The rules in addition to those of package keep.
const (
	Added     = "added"     // stays, from an overlay; the base doesn't have it
	Directory = "directory" // stays because of its content or its package
	Replaced  = "replaced"  // removed: an overlay has a file in its place
	Removed   = "removed"   // removed by the profile
	Empty     = "empty"     // removed: a directory without content that stays
)

// Ours is the component of what the build adds.
const Ours = "ours"

// Row records what becomes of a path or, if Path is empty, of a package of the base. Either Stays or Goes is set.
type Row struct {
	Path    string `json:"path,omitempty"`
	Package string `json:"package,omitempty"`
	// Stays is the rule by which it is in the image, and Goes the rule by which it isn't.
	Stays string `json:"stays,omitempty"`
	Goes  string `json:"goes,omitempty"`
	// From is the path, or the package after PackagePrefix, that is the reason for the rule; or the glob, path or
	// overlay in the profile.
	From string `json:"from,omitempty"`
	Why  string `json:"why,omitempty"`
	// Type is empty for a regular file. A hard link has the path of its file's first name as Link, and no Bytes.
	Type      image.Type `json:"type,omitempty"`
	Link      string     `json:"link,omitempty"`
	Bytes     int64      `json:"bytes,omitempty"`
	Component string     `json:"component,omitempty"`
	// Digest is the digest of the base's content, and Edited of the image's, if the build edits the file.
	Digest string `json:"digest,omitempty"`
	Edited string `json:"edited,omitempty"`
}

// Writer writes a ledger.
type Writer struct {
	zip *pgzip.Writer
	enc *json.Encoder
}

// NewWriter writes the header to w and returns a Writer.
func NewWriter(w io.Writer, h Header) (*Writer, error) {
	zip, err := pgzip.NewWriterLevel(w, level)
	if err != nil {
		return nil, err
	}
	if err := zip.SetConcurrency(blockSize, 2); err != nil {
		return nil, err
	}
	zip.OS = 255 // unknown, as in image.LayerCache
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

// Close ends the ledger. It doesn't close the underlying writer.
func (w *Writer) Close() error { return w.zip.Close() }

// Limits for reading a ledger, in bytes: MaxSize compressed; uncompressed; one line; and the memory for what stays.
const (
	MaxSize     = 64 << 20
	maxUnpacked = 1 << 30
	maxLine     = 128 << 10 // three paths of 4,095 bytes are six times as long in JSON
	maxKept     = 64 << 20
	rowSize     = 300 // memory for an empty row
)

var errTooLarge = errors.New("ledger: too large")

// Read calls each for every row until it returns false. The ledger is only its writer's claim.
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
			return h, errors.New("ledger: a row without a path or package, or without a rule")
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

// Find returns the row of a path or package, followed by the rows of its reasons, up to a root or a rule. It follows
// links that stay among the path's parents. If the ledger doesn't have the path, there are no rows.
func Find(r io.Reader, what string) (h Header, rows []Row, err error) {
	kept := map[string]Row{} // the paths and packages that stay
	size := 0
	p := image.Clean(what)
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
	} else if _, ok := kept[next]; !ok && !path.IsAbs(what) {
		next = PackagePrefix + strings.TrimPrefix(what, PackagePrefix)
	}
	for row, ok := kept[next]; ok && len(rows) < maxChain; row, ok = kept[next] {
		rows, next = append(rows, row), row.From
	}
	return h, rows, nil
}

// Below returns the number of the base's files and links below a directory, and of those that stay.
func Below(r io.Reader, dir string) (stay, all int, err error) {
	_, err = Read(r, func(row Row) bool {
		if row.Path != "" && row.Stays != Added && row.Type != image.TypeDir && row.Path != dir && image.Within(row.Path, dir) {
			all++
			if row.Stays != "" {
				stay++
			}
		}
		return true
	})
	return stay, all, err
}

// Near returns what may be meant by a path or package that Find doesn't find. leads is the target of a removed link
// among the path's parents. Otherwise guess is the most similar name beside it, a path of the same name elsewhere, or
// the most similar package. Both may be empty.
func Near(r io.Reader, what string) (leads, guess string, err error) {
	p := image.Clean(what)
	var beside, packages []string
	elsewhere := ""
	_, err = Read(r, func(row Row) bool {
		switch {
		case row.Path == "":
			packages = append(packages, row.Package)
		case leads == "" && row.Type == image.TypeSymlink && row.Goes != "" && image.Within(p, row.Path):
			leads = resolve(map[string]Row{row.Path: row}, p)
		case path.Dir(row.Path) == path.Dir(p):
			beside = append(beside, path.Base(row.Path))
		case elsewhere == "" && path.Base(row.Path) == path.Base(p):
			elsewhere = row.Path
		}
		return true
	})
	if name := nearest.Word(path.Base(p), beside); name != "" {
		guess = path.Join(path.Dir(p), name)
	} else if guess = elsewhere; guess == "" && !path.IsAbs(what) {
		guess = nearest.Word(what, packages)
	}
	return leads, guess, err
}

// maxChain is larger than the length of any chain.
const maxChain = 100

func (r Row) key() string {
	if r.Path == "" {
		return PackagePrefix + r.Package
	}
	return r.Path
}

// resolve returns p with the links of kept among its parents followed, as the kernel does.
func resolve(kept map[string]Row, p string) string {
	at, rest := "/", strings.Split(p, "/")
	for links := 0; ; {
		next := path.Join(at, rest[0])
		if rest = rest[1:]; len(rest) == 0 {
			return next
		}
		row := kept[next]
		if row.Type != image.TypeSymlink {
			at = next
			continue
		}
		if links++; links > 40 { // the kernel's limit (path_resolution(7))
			return p
		}
		if path.IsAbs(row.Link) {
			at = "/"
		}
		rest = append(strings.Split(row.Link, "/"), rest...)
	}
}

// prepositions connect a rule with its reason; the default is "of".
var prepositions = map[string]string{
	Added: "by", Replaced: "by", Removed: "with", "dropped": "by", "cut": "from", "with": "",
}

// phrases describe rules without a reason.
var phrases = map[string]string{
	"unneeded": "nothing that stays needs it", "dangling": "it would lead to nothing", Empty: "nothing in it stays",
	Directory: "for what lies in it, or for its package",
}

// String describes the row: "/usr/bin/x: library of /usr/bin/y (why)".
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
