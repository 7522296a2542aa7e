package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"sort"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"
)

// whiteoutPrefix marks a removed path in a layer (OCI image specification, layer.md, "Whiteouts").
const whiteoutPrefix = ".wh."

// Whiteout makes the file that hides p, whatever it is, in the layers below.
func Whiteout(p string) File {
	p = Clean(p)
	i := strings.LastIndexByte(p, '/') + 1
	return File{
		Entry: Entry{Path: p[:i] + whiteoutPrefix + p[i:], Type: TypeFile, ModTime: time.Unix(0, 0)},
		Open:  func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(nil)), nil },
	}
}

// NewLayer writes files as one gzip layer whose bytes depend on nothing but files: sorted by path, parents before
// children, times in whole seconds, numeric owners. The compressed layer is kept in memory, so it is for overlays, not
// for bases. Two files with one path are an error, and so is a regular file without Open or of another length than
// its Size says.
func NewLayer(files []File) (v1.Layer, error) {
	l := &layer{}
	diff, blob := sha256.New(), sha256.New()
	zw := gzip.NewWriter(io.MultiWriter(&l.blob, blob))
	zw.OS = 255
	if err := WriteTar(io.MultiWriter(zw, diff), files); err != nil {
		return nil, err
	}
	if err := zw.Close(); err != nil {
		return nil, err
	}
	l.digest = v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(blob.Sum(nil))}
	l.diffID = v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(diff.Sum(nil))}
	return l, nil
}

// WriteTar writes files as the tar archive that NewLayer compresses.
func WriteTar(w io.Writer, files []File) error {
	sorted := append([]File(nil), files...)
	sort.SliceStable(sorted, func(i, j int) bool { return less(sorted[i].Path, sorted[j].Path) })
	tw := tar.NewWriter(w)
	for i, f := range sorted {
		if i > 0 && sorted[i-1].Path == f.Path {
			return fmt.Errorf("layer: %s is there twice", f.Path)
		}
		if f.Path == "/" {
			continue // the root's own metadata is the base's; BuildKit's layers leave it out too
		}
		if err := writeFile(tw, f); err != nil {
			return fmt.Errorf("layer: %s: %w", f.Path, err)
		}
	}
	return tw.Close()
}

// less orders paths as a walk of the tree does: a directory's content right behind it.
func less(a, b string) bool {
	return strings.ReplaceAll(a, "/", "\x00") < strings.ReplaceAll(b, "/", "\x00")
}

var typeflags = map[Type]byte{
	TypeFile: tar.TypeReg, TypeDir: tar.TypeDir, TypeSymlink: tar.TypeSymlink, TypeLink: tar.TypeLink,
	TypeChar: tar.TypeChar, TypeBlock: tar.TypeBlock, TypeFifo: tar.TypeFifo,
}

func writeFile(tw *tar.Writer, f File) error {
	flag, ok := typeflags[f.Type]
	if !ok {
		return fmt.Errorf("unknown type %q", f.Type)
	}
	h := &tar.Header{
		Typeflag: flag, Name: strings.TrimPrefix(f.Path, "/"), Linkname: f.Link, Mode: f.Mode, Uid: f.UID, Gid: f.GID,
		ModTime: f.ModTime.Truncate(time.Second), Format: tar.FormatPAX,
	}
	if h.ModTime.IsZero() {
		h.ModTime = time.Unix(0, 0)
	}
	switch f.Type {
	case TypeDir:
		h.Name += "/"
	case TypeLink:
		h.Linkname = strings.TrimPrefix(f.Link, "/")
	case TypeFile:
		h.Size = f.Size
	}
	for k, v := range f.Xattrs {
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords[paxXattr+k] = v
	}
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	if f.Type != TypeFile || f.Size == 0 {
		return nil
	}
	if f.Open == nil {
		return fmt.Errorf("a regular file of %d bytes without content", f.Size)
	}
	r, err := f.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	if _, err := io.Copy(tw, r); err != nil {
		return err
	}
	return tw.Flush() // tells a content that is too short
}

// paxXattr is the key prefix under which GNU tar, Docker and BuildKit keep extended attributes.
const paxXattr = "SCHILY.xattr."

type layer struct {
	blob           bytes.Buffer
	digest, diffID v1.Hash
}

func (l *layer) Digest() (v1.Hash, error)            { return l.digest, nil }
func (l *layer) DiffID() (v1.Hash, error)            { return l.diffID, nil }
func (l *layer) Size() (int64, error)                { return int64(l.blob.Len()), nil }
func (l *layer) MediaType() (types.MediaType, error) { return types.OCILayer, nil }
func (l *layer) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(l.blob.Bytes())), nil
}
func (l *layer) Uncompressed() (io.ReadCloser, error) {
	return gzip.NewReader(bytes.NewReader(l.blob.Bytes()))
}
