package image

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"
)

// Types of an Entry that only a layer index has: what a layer takes away from the layers below it.
const (
	// typeWhiteout hides Path.
	typeWhiteout Type = "whiteout"
	// typeOpaque hides everything below the directory Path.
	typeOpaque Type = "opaque"
)

// opaqueMarker is the name of the file that makes its directory opaque (OCI image specification, layer.md).
const opaqueMarker = whiteoutPrefix + whiteoutPrefix + ".opq"

// maxEntries bounds what one hostile layer can make us remember.
const maxEntries = 5_000_000

// indexVersion is part of the cache's path: a change of Entry or of how a layer is read needs a new one.
const indexVersion = "v1"

// IndexCache remembers the index of each layer by the layer's digest, for ever. The zero value remembers nothing.
type IndexCache struct {
	// Dir is the directory of the cache; it is made when needed.
	Dir string
}

// Tree gives the merged tree of img: the base index. Each layer that the cache doesn't hold is streamed once, several
// at a time, and checked against its digest and its diffID.
func (c IndexCache) Tree(ctx context.Context, img v1.Image, p Progress) (*Tree, error) {
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	if len(config.RootFS.DiffIDs) != len(layers) {
		return nil, fmt.Errorf("base config names %d layers, its manifest %d", len(config.RootFS.DiffIDs), len(layers))
	}
	if p == nil {
		p = NoProgress
	}
	indexes := make([][]Entry, len(layers))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(max(2, runtime.GOMAXPROCS(0)))
	for i, l := range layers {
		g.Go(func() (err error) {
			indexes[i], err = c.layer(ctx, l, config.RootFS.DiffIDs[i], p)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	t := NewTree()
	for i, entries := range indexes {
		if err := t.Apply(entries); err != nil {
			return nil, fmt.Errorf("layer %d (%s): %w", i, config.RootFS.DiffIDs[i], err)
		}
	}
	return t, nil
}

func (c IndexCache) layer(ctx context.Context, l v1.Layer, diffID v1.Hash, p Progress) ([]Entry, error) {
	digest, err := l.Digest()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(c.Dir, "index", indexVersion, digest.Algorithm+"-"+digest.Hex+".jsonl.zst")
	if c.Dir != "" {
		if entries, err := readIndex(file, diffID); err == nil {
			return entries, nil
		}
	}
	entries, err := indexLayer(ctx, l, digest, diffID, p)
	if err != nil {
		return nil, err
	}
	if c.Dir != "" {
		if err := writeIndex(file, diffID, entries); err != nil {
			return nil, fmt.Errorf("base index of layer %s: %w", digest, err)
		}
	}
	return entries, nil
}

func indexLayer(ctx context.Context, l v1.Layer, digest, diffID v1.Hash, p Progress) (_ []Entry, err error) {
	size, err := l.Size()
	if err != nil {
		return nil, err
	}
	task := p.Task("index "+short(digest), size)
	defer func() { task.Done(err) }()
	blob, err := l.Compressed()
	if err != nil {
		return nil, fmt.Errorf("layer %s: %w", digest, err)
	}
	defer blob.Close()
	counted := &countingReader{ctx: ctx, r: blob, add: task.Add}
	raw, err := inflate(counted)
	if err != nil {
		return nil, fmt.Errorf("layer %s: %w", digest, err)
	}
	defer raw.Close()
	hash := sha256.New()
	content := io.TeeReader(raw, hash)
	entries, err := readTar(content)
	if err == nil {
		_, err = io.Copy(io.Discard, content)
	}
	// The blob's own check is at its end, and says more than a broken archive does.
	if _, drain := io.Copy(io.Discard, counted); drain != nil {
		err = drain
	}
	if err != nil {
		return nil, fmt.Errorf("layer %s: %w", digest, err)
	}
	if got := hex.EncodeToString(hash.Sum(nil)); got != diffID.Hex {
		return nil, fmt.Errorf("layer %s: content is sha256:%s, the image config says %s", digest, got, diffID)
	}
	return entries, nil
}

func short(h v1.Hash) string { return h.Hex[:min(12, len(h.Hex))] }

type countingReader struct {
	ctx context.Context
	r   io.Reader
	add func(int64)
}

func (c *countingReader) Read(b []byte) (int, error) {
	if err := context.Cause(c.ctx); err != nil {
		return 0, err
	}
	n, err := c.r.Read(b)
	c.add(int64(n))
	return n, err
}

// inflate tells gzip, zstd and plain tar apart by their first bytes, since media types lie.
func inflate(r io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReaderSize(r, 256<<10)
	magic, err := b.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case strings.HasPrefix(string(magic), "\x1f\x8b"):
		return gzip.NewReader(b)
	case string(magic) == "\x28\xb5\x2f\xfd":
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(b), nil
}

func readTar(r io.Reader) ([]Entry, error) {
	var entries []Entry
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return entries, nil
		}
		if err != nil {
			return nil, err
		}
		e, ok, err := entryOf(h)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		if len(entries) == maxEntries {
			return nil, fmt.Errorf("more than %d entries", maxEntries)
		}
		entries = append(entries, e)
	}
}

var tarTypes = map[byte]Type{
	tar.TypeReg: TypeFile, tar.TypeGNUSparse: TypeFile, tar.TypeDir: TypeDir,
	tar.TypeSymlink: TypeSymlink, tar.TypeLink: TypeLink,
	tar.TypeChar: TypeChar, tar.TypeBlock: TypeBlock, tar.TypeFifo: TypeFifo,
}

func entryOf(h *tar.Header) (Entry, bool, error) {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return Entry{}, false, nil
	}
	typ, ok := tarTypes[h.Typeflag]
	if !ok {
		return Entry{}, false, fmt.Errorf("%s: unknown tar entry type %q", h.Name, h.Typeflag)
	}
	p := Clean(h.Name)
	dir, base := path.Split(p)
	switch {
	case base == opaqueMarker:
		return Entry{Path: Clean(dir), Type: typeOpaque}, true, nil
	case strings.HasPrefix(base, whiteoutPrefix+whiteoutPrefix):
		return Entry{}, false, nil // AUFS's own records; no runtime acts on them
	case strings.HasPrefix(base, whiteoutPrefix):
		hidden := strings.TrimPrefix(base, whiteoutPrefix)
		if hidden == "" || hidden == "." || hidden == ".." {
			return Entry{}, false, fmt.Errorf("%s: a whiteout of nothing", h.Name)
		}
		return Entry{Path: path.Join(dir, hidden), Type: typeWhiteout}, true, nil
	}
	e := Entry{Path: p, Type: typ, Mode: h.Mode & 0o7777, UID: h.Uid, GID: h.Gid, ModTime: h.ModTime.UTC()}
	switch typ {
	case TypeFile:
		e.Size = h.Size
	case TypeSymlink:
		e.Link = h.Linkname
	case TypeLink:
		e.Link = Clean(h.Linkname)
	}
	for k, v := range h.PAXRecords {
		if name, ok := strings.CutPrefix(k, paxXattr); ok {
			if e.Xattrs == nil {
				e.Xattrs = map[string]string{}
			}
			e.Xattrs[name] = v
		}
	}
	return e, true, nil
}

// indexHeader is the first line of a cached index.
type indexHeader struct {
	DiffID  string `json:"diffID"`
	Entries int    `json:"entries"`
}

func readIndex(file string, diffID v1.Hash) ([]Entry, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer z.Close()
	dec := json.NewDecoder(bufio.NewReader(z))
	var h indexHeader
	if err := dec.Decode(&h); err != nil {
		return nil, err
	}
	if h.DiffID != diffID.String() || h.Entries < 0 || h.Entries > maxEntries {
		return nil, fmt.Errorf("%s: not the index of %s", file, diffID)
	}
	entries := make([]Entry, h.Entries)
	for i := range entries {
		if err := dec.Decode(&entries[i]); err != nil {
			return nil, err
		}
	}
	if _, err := io.Copy(io.Discard, z); err != nil { // the frame's checksum is at its end
		return nil, err
	}
	return entries, nil
}

func writeIndex(file string, diffID v1.Hash, entries []Entry) error {
	return WriteFile(file, 0o644, func(w io.Writer) error {
		z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
		if err != nil {
			return err
		}
		enc := json.NewEncoder(z)
		if err := enc.Encode(indexHeader{DiffID: diffID.String(), Entries: len(entries)}); err != nil {
			return err
		}
		for _, e := range entries {
			if err := enc.Encode(e); err != nil {
				return err
			}
		}
		return z.Close()
	})
}
