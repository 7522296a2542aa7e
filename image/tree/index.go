package tree

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
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/zstd"

	"github.com/slimctl/slimctl/image"
)

// whiteoutPrefix marks a removed path in a layer (OCI image specification, layer.md, "Whiteouts").
const whiteoutPrefix = ".wh."

// paxXattr is the key prefix under which GNU tar, Docker and BuildKit keep extended attributes.
const paxXattr = "SCHILY.xattr."

// Types of an Entry that only a layer index has: what a layer takes away from the layers below it.
const (
	// TypeWhiteout hides Path.
	TypeWhiteout image.Type = "whiteout"
	// TypeOpaque hides everything below the directory Path.
	TypeOpaque image.Type = "opaque"
)

// opaqueMarker is the name of the file that makes its directory opaque (OCI image specification, layer.md).
const opaqueMarker = whiteoutPrefix + whiteoutPrefix + ".opq"

// maxEntries bounds what one hostile layer can make us remember.
const maxEntries = 5_000_000

// indexVersion is part of the cache's path: a change of Entry or of how a layer is read needs a new one.
const indexVersion = "v2"

func (c Cache) layer(ctx context.Context, l v1.Layer, diffID v1.Hash, p image.Progress) ([]Entry, error) {
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

func indexLayer(ctx context.Context, l v1.Layer, digest, diffID v1.Hash, p image.Progress) (_ []Entry, err error) {
	size, err := l.Size()
	if err != nil {
		return nil, err
	}
	task := p.Task("index "+image.Short(digest), size)
	defer func() { task.Done(err) }()
	blob, err := l.Compressed()
	if err != nil {
		return nil, fmt.Errorf("layer %s: %w", digest, err)
	}
	defer blob.Close()
	counted := image.Counting(ctx, blob, task.Add)
	raw, err := image.Inflate(counted)
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
		if e.Type == image.TypeFile {
			sum := sha256.New()
			if _, err := io.Copy(sum, tr); err != nil {
				return nil, err
			}
			e.Digest = Digest(sum.Sum(nil))
		}
		if len(entries) == maxEntries {
			return nil, fmt.Errorf("more than %d entries", maxEntries)
		}
		entries = append(entries, e)
	}
}

var tarTypes = map[byte]image.Type{
	tar.TypeReg: image.TypeFile, tar.TypeGNUSparse: image.TypeFile, tar.TypeDir: image.TypeDir,
	tar.TypeSymlink: image.TypeSymlink, tar.TypeLink: image.TypeLink,
	tar.TypeChar: image.TypeChar, tar.TypeBlock: image.TypeBlock, tar.TypeFifo: image.TypeFifo,
}

func entryOf(h *tar.Header) (Entry, bool, error) {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return Entry{}, false, nil
	}
	typ, ok := tarTypes[h.Typeflag]
	if !ok {
		return Entry{}, false, fmt.Errorf("%s: unknown tar entry type %q", h.Name, h.Typeflag)
	}
	p := image.Clean(h.Name)
	dir, base := path.Split(p)
	switch {
	case base == opaqueMarker:
		return Entry{Entry: image.Entry{Path: image.Clean(dir), Type: TypeOpaque}}, true, nil
	case strings.HasPrefix(base, whiteoutPrefix+whiteoutPrefix):
		return Entry{}, false, nil // AUFS's own records; no runtime acts on them
	case strings.HasPrefix(base, whiteoutPrefix):
		hidden := strings.TrimPrefix(base, whiteoutPrefix)
		if hidden == "" || hidden == "." || hidden == ".." {
			return Entry{}, false, fmt.Errorf("%s: a whiteout of nothing", h.Name)
		}
		return Entry{Entry: image.Entry{Path: path.Join(dir, hidden), Type: TypeWhiteout}}, true, nil
	}
	e := Entry{Entry: image.Entry{Path: p, Type: typ, Mode: h.Mode & 0o7777, UID: h.Uid, GID: h.Gid, ModTime: h.ModTime.UTC()}}
	switch typ {
	case image.TypeFile:
		e.Size = h.Size
	case image.TypeSymlink:
		e.Link = h.Linkname
	case image.TypeLink:
		e.Link = image.Clean(h.Linkname)
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
	return image.WriteFile(file, 0o644, func(w io.Writer) error {
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
