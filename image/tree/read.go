package tree

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"runtime"
	"slices"
	"sort"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"github.com/slimctl/slimctl/image"
)

// MaxRead limits the size of a file in ReadFile, and MaxReadAll the total size in ReadFiles, in bytes.
const (
	MaxRead    = 16 << 20
	MaxReadAll = 256 << 20
)

// ReadFile returns the content of the file at p, following symlinks inside the image. If there is no file, the error
// wraps fs.ErrNotExist. It fails for anything but a regular file of at most MaxRead bytes.
func (im *Image) ReadFile(ctx context.Context, p string) ([]byte, error) {
	files, err := im.ReadFiles(ctx, p)
	if err != nil {
		return nil, err
	}
	return files[p], nil
}

// ReadFiles is ReadFile for several paths. It takes contents from the index, and small files from the cache of the last
// call. Otherwise it reads each layer at most once. It verifies the digest of each content. Paths with equal content
// share it: read only.
func (im *Image) ReadFiles(ctx context.Context, paths ...string) (map[string][]byte, error) {
	at := make(map[string]Digest, len(paths))
	wanted := map[Digest]int64{} // sizes by digest
	from := make([]map[Digest]int64, len(im.Layers))
	for _, p := range paths {
		e, err := im.file(p)
		if err != nil {
			return nil, err
		}
		at[p] = e.Digest
		if _, ok := wanted[e.Digest]; ok || e.Size == 0 {
			continue
		}
		wanted[e.Digest] = e.Size
		layer := im.source(e)
		if from[layer] == nil {
			from[layer] = map[Digest]int64{}
		}
		from[layer][e.Digest] = e.Size
	}
	var all int64
	for _, size := range wanted {
		if all += size; all > MaxReadAll {
			return nil, fmt.Errorf("the %d files together are larger than %d bytes, the most to read at once", len(paths), MaxReadAll)
		}
	}
	content := make(map[Digest][]byte, len(wanted))
	var mu sync.Mutex // guards content
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, wanted := range from {
		if len(wanted) == 0 {
			continue
		}
		g.Go(func() error {
			read := make(map[Digest][]byte, len(wanted))
			if err := im.readLayer(ctx, i, wanted, read); err != nil {
				return fmt.Errorf("layer %s: %w", im.Layers[i].Digest, err)
			}
			mu.Lock()
			defer mu.Unlock()
			maps.Copy(content, read)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	out := make(map[string][]byte, len(at))
	for p, d := range at {
		if out[p] = content[d]; out[p] == nil {
			out[p] = []byte{}
		}
	}
	return out, nil
}

// Indexed iterates over the wanted contents in the layers' indexes. wanted maps digests to sizes. It reads no layer.
func (im *Image) Indexed(wanted map[Digest]int64) iter.Seq2[Digest, []byte] {
	return func(yield func(Digest, []byte) bool) {
		left := maps.Clone(wanted)
		for _, x := range im.indexes {
			have := map[Digest][]byte{}
			x.pack.read(left, have)
			removeFound(left, have)
			for d, content := range have {
				if !yield(d, content) {
					return
				}
			}
		}
	}
}

// removeFound removes from wanted what content has.
func removeFound(wanted map[Digest]int64, content map[Digest][]byte) {
	maps.DeleteFunc(wanted, func(d Digest, _ int64) bool { _, ok := content[d]; return ok })
}

// readLayer reads contents of layer i. It remembers small ones that aren't in the index until the next call.
func (im *Image) readLayer(ctx context.Context, i int, wanted map[Digest]int64, into map[Digest][]byte) error {
	im.indexes[i].pack.read(wanted, into)
	removeFound(wanted, into)
	if len(wanted) == 0 {
		return nil
	}
	l, all := &im.Layers[i], maps.Clone(wanted)
	blob, err := digestOf(l.Digest)
	if err != nil {
		return err
	}
	diffID, err := digestOf(l.DiffID)
	if err != nil {
		return err
	}
	file := im.cache.indexFile("contents", l.Digest)
	if x, err := readIndex(file, blob, diffID, nil); err == nil {
		x.pack.read(wanted, into)
		removeFound(wanted, into)
		if len(wanted) == 0 {
			return nil
		}
	}
	if err := readContents(ctx, im.blobs[i], wanted, into); err != nil {
		return err
	}
	if file == "" {
		return nil
	}
	var p packer
	for d, size := range all {
		if size <= maxKept {
			p.add(d, into[d])
		}
	}
	x := &index{pack: p.finish()}
	_ = x.write(file, blob, diffID) // a cache that can't be written only costs time
	return nil
}

// file returns the regular file at p, following symlinks.
func (im *Image) file(p string) (Entry, error) {
	e, ok := im.Stat(p)
	var err error
	switch regular := e.Type == image.TypeFile || e.Type == image.TypeLink; {
	case !ok:
		err = fs.ErrNotExist
	case !regular:
		err = fmt.Errorf("it is a %s", e.Type)
	case e.Digest == (Digest{}):
		err = errors.New("it is in a layer that was not read")
	case e.Size > MaxRead:
		err = fmt.Errorf("it has %d bytes, more than the limit of %d", e.Size, MaxRead)
	}
	if err != nil {
		return e, &fs.PathError{Op: "read", Path: p, Err: err}
	}
	return e, nil
}

// source returns the layer with the content of e: its own, unless it is or was a hard link to a file of a lower layer.
func (im *Image) source(e Entry) int {
	for i := e.Layer; i >= 0; i-- {
		for _, p := range []string{e.Path, e.Link} {
			entries := im.Layers[i].Entries
			at := sort.Search(len(entries), func(j int) bool { return comparePaths(entries[j].Path, p) >= 0 })
			for ; p != "" && at < len(entries) && entries[at].Path == p; at++ {
				if entries[at].Type == image.TypeFile && entries[at].Digest == e.Digest {
					return i
				}
			}
		}
	}
	for i := e.Layer; i >= 0; i-- { // under another name
		if slices.ContainsFunc(im.Layers[i].Entries, func(x Entry) bool { return x.Digest == e.Digest }) {
			return i
		}
	}
	return e.Layer
}

// readContents finds contents in a layer by their digests, under any name.
func readContents(ctx context.Context, blob v1.Layer, wanted map[Digest]int64, into map[Digest][]byte) error {
	sizes := map[int64]int{}
	for _, size := range wanted {
		sizes[size]++
	}
	compressed, err := blob.Compressed()
	if err != nil {
		return err
	}
	defer compressed.Close()
	raw, err := newLimits().inflate(image.Counting(ctx, compressed, func(int64) {}))
	if err != nil {
		return err
	}
	defer raw.Close()
	tr := tar.NewReader(raw)
	for len(sizes) > 0 {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return errors.New("it doesn't have a file of its index; delete slimctl's cache directory")
		}
		if err != nil {
			return err
		}
		if tarTypes[h.Typeflag] != image.TypeFile || sizes[h.Size] == 0 {
			continue
		}
		content, err := io.ReadAll(tr)
		if err != nil {
			return err
		}
		d := Digest(sha256.Sum256(content))
		if size, ok := wanted[d]; ok && into[d] == nil {
			into[d] = content
			if sizes[size]--; sizes[size] == 0 {
				delete(sizes, size)
			}
		}
	}
	return nil
}
