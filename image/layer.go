package image

import (
	"archive/tar"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"
)

// whiteoutPrefix marks a removed path in a layer (OCI image specification, layer.md, "Whiteouts").
const whiteoutPrefix = ".wh."

// Whiteout returns the file that hides p in the layers below.
func Whiteout(p string) File {
	p = Clean(p)
	i := strings.LastIndexByte(p, '/') + 1
	return File{
		Entry: Entry{Path: p[:i] + whiteoutPrefix + p[i:], Type: TypeFile, ModTime: time.Unix(0, 0)},
		Open:  func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(nil)), nil },
	}
}

// compression is the default gzip level, between the fastest and gzip's default. It takes half the time of level 6 for
// 6 % more bytes.
const compression = 3

// layerVersion is part of the cache's path. Raise it when the same files give other bytes, such as with a new
// compressor.
const layerVersion = "v2"

// LayerCache caches compressed layers between builds, by content. The zero value caches nothing.
type LayerCache struct {
	// Dir is the cache's directory. It is created when needed.
	Dir string
	// Level is the level of gzip; 0 is a level for layers on top of gigabytes.
	Level int
}

// NewLayer returns files as one gzip layer, without a cache.
func NewLayer(files []File) (v1.Layer, error) { return LayerCache{}.Layer(files) }

// Layer returns files as one compressed layer whose bytes depend only on files: sorted by path, parents first, times in
// whole seconds, numeric owners. It holds the compressed layer in memory, so it suits overlays, not bases. It fails if
// two files have the same path, or if a regular file has no Open or another length than Size.
func (c LayerCache) Layer(files []File) (v1.Layer, error) {
	diff := sha256.New()
	if err := WriteTar(diff, files); err != nil {
		return nil, err
	}
	l := &layer{diffID: hashOf(diff)}
	if c.readCached(l) {
		return l, nil
	}
	var blob bytes.Buffer
	zw, err := gzip.NewWriterLevel(&blob, c.level())
	if err != nil {
		return nil, err
	}
	zw.OS = 255 // unknown, as BuildKit writes it
	again := sha256.New()
	if err := WriteTar(io.MultiWriter(zw, again), files); err != nil {
		return nil, err
	}
	if err := zw.Close(); err != nil {
		return nil, err
	}
	if hashOf(again) != l.diffID {
		return nil, errors.New("layer: a file changed while it was being read; run the build again")
	}
	l.blob = blob.Bytes()
	l.digest = digestOf(l.blob)
	return l, c.writeCached(l)
}

func (c LayerCache) level() int { return cmp.Or(c.Level, compression) }

// blobFile returns the cache path of a compressed layer. Its name holds both digests, so that a layer from the cache is
// checked without inflating it.
func (c LayerCache) blobFile(diffID, digest string) string {
	return filepath.Join(c.Dir, "layers", fmt.Sprintf("%s-%d", layerVersion, c.level()), diffID+"-"+digest+".tar.gz")
}

func (c LayerCache) readCached(l *layer) bool {
	if c.Dir == "" {
		return false
	}
	dir := filepath.Dir(c.blobFile("", ""))
	files, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, f := range files {
		if !strings.HasPrefix(f.Name(), l.diffID.Hex) {
			continue
		}
		file := filepath.Join(dir, f.Name())
		blob, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		l.blob, l.digest = blob, digestOf(blob)
		if file == c.blobFile(l.diffID.Hex, l.digest.Hex) { // otherwise it is damaged, or from the other compressor
			return true
		}
	}
	return false
}

func (c LayerCache) writeCached(l *layer) error {
	if c.Dir == "" {
		return nil
	}
	if err := WriteBytes(c.blobFile(l.diffID.Hex, l.digest.Hex), 0o644, l.blob); err != nil {
		return fmt.Errorf("layer cache: %w", err)
	}
	return nil
}

func hashOf(h hash.Hash) v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h.Sum(nil))}
}

func digestOf(b []byte) v1.Hash {
	sum := sha256.Sum256(b)
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}
}

// WriteTar writes files as the tar archive of a layer.
func WriteTar(w io.Writer, files []File) error {
	sorted := append([]File(nil), files...)
	sort.SliceStable(sorted, func(i, j int) bool { return less(sorted[i].Path, sorted[j].Path) })
	tw := tar.NewWriter(w)
	buf := make([]byte, 32<<10)
	for i, f := range sorted {
		if i > 0 && sorted[i-1].Path == f.Path {
			return fmt.Errorf("layer: %s occurs twice", f.Path)
		}
		if f.Path == "/" {
			continue // the base decides the root's metadata; BuildKit's layers omit it too
		}
		if err := writeFile(tw, f, buf); err != nil {
			return fmt.Errorf("layer: %s: %w", f.Path, err)
		}
	}
	return tw.Close()
}

// less orders paths as in a walk of the tree: a directory's content directly follows it.
func less(a, b string) bool {
	return strings.ReplaceAll(a, "/", "\x00") < strings.ReplaceAll(b, "/", "\x00")
}

var typeflags = map[Type]byte{
	TypeFile: tar.TypeReg, TypeDir: tar.TypeDir, TypeSymlink: tar.TypeSymlink, TypeLink: tar.TypeLink,
	TypeChar: tar.TypeChar, TypeBlock: tar.TypeBlock, TypeFifo: tar.TypeFifo,
}

func writeFile(tw *tar.Writer, f File, buf []byte) error {
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
	if _, err := io.CopyBuffer(tw, r, buf); err != nil {
		return err
	}
	return tw.Flush() // fails if the content is too short
}

// paxXattr is the prefix of the PAX keys in which GNU tar, Docker and BuildKit store extended attributes.
const paxXattr = "SCHILY.xattr."

type layer struct {
	blob           []byte
	digest, diffID v1.Hash
}

func (l *layer) Digest() (v1.Hash, error)            { return l.digest, nil }
func (l *layer) DiffID() (v1.Hash, error)            { return l.diffID, nil }
func (l *layer) Size() (int64, error)                { return int64(len(l.blob)), nil }
func (l *layer) MediaType() (types.MediaType, error) { return types.OCILayer, nil }
func (l *layer) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(l.blob)), nil
}

func (l *layer) Uncompressed() (io.ReadCloser, error) {
	return Inflate(bytes.NewReader(l.blob))
}
