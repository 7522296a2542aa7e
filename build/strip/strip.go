// Package strip makes the layers of an image anew, of what stays of its base: so the bytes of what goes are gone, too.
//
// The base's layers are read at the same time, and those that were just indexed hardly again (tree.Stash). The files that stay are put
// by in a temporary file, and each component becomes one layer, sorted by path. What a layer holds depends on nothing but the files: not on how the base's layers were cut,
// nor on times, nor on how many processors there are. A layer that was made before is taken from the cache, and when all are
// there nothing of the base is read.
package strip

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/internal/rawname"
)

// Input is what Layers works on.
type Input struct {
	// Base is the base, and Image what its layers are read of.
	Base  *tree.Image
	Image v1.Image
	// Component says in which layer a path of the base goes; empty for what goes altogether. Of a directory it is asked only when
	// nothing that stays lies in it.
	Component func(p string) string
	// Order names the components, lowest first.
	Order []string
	// Edits give files another content: of the path's own.
	Edits map[string]Edit
	// Time is that of every file: one that no base says, so that a base that was built again gives the same layers.
	Time time.Time
	// Keep has the layers be the base's, each without what goes: Order names the base's layers, and then one that lies on them.
	// A layer of which nothing goes is the base's own. Files have the base's times, and there is no Time.
	Keep bool
	// Zstd compresses the new layers by zstd in the place of gzip.
	Zstd bool
	// Stash has contents from when the base's layers were indexed, and gets the others; nil is an empty one.
	Stash *tree.Stash
	// CacheDir is where layers are written, and kept between builds.
	CacheDir string
	Progress image.Progress
}

// Edit changes a file. Key is another whenever the change is.
type Edit struct {
	Key    string
	Change func(old []byte) []byte
}

// Layer is one layer of what stays.
type Layer struct {
	v1.Layer
	Component string
	// Key names the layer in the cache; empty for a layer of the base.
	Key string
	// Files is how many files and links it has, Unpacked their bytes.
	Files    int
	Unpacked int64
	// Edited has the digest of each file that has another content than in the base, by path.
	Edited map[string]tree.Digest
}

// file is one entry of a layer that is to be made.
type file struct {
	tree.Entry
	edit string // the edit's key
}

// Layers returns the layers in the order of Input.Order, without empty ones.
func Layers(ctx context.Context, in Input) ([]Layer, error) {
	if in.Progress == nil {
		in.Progress = image.NoProgress
	}
	files, err := in.files()
	if err != nil {
		return nil, err
	}
	own := map[string]v1.Layer{}
	if in.Keep {
		if own, err = in.keepLayers(files); err != nil {
			return nil, err
		}
	}
	var out []Layer
	store, err := newStore(in.CacheDir)
	if err != nil {
		return nil, err
	}
	missing := map[string]string{} // the keys of components
	for _, c := range in.Order {
		if len(files[c]) == 0 {
			continue
		}
		l := Layer{Component: c, Layer: own[c]}
		for _, f := range files[c] {
			if !f.IsDir() {
				l.Files++
				l.Unpacked += f.Size
			}
		}
		if l.Layer != nil {
			out = append(out, l)
			continue
		}
		k, err := in.key(files[c])
		if err != nil {
			return nil, err
		}
		l.Key = k
		if have := store.get(k); have != nil {
			l.Layer, l.Edited = have, have.Edited
		} else {
			missing[c] = k
		}
		out = append(out, l)
	}
	if len(missing) == 0 {
		return out, nil
	}
	made, err := in.make(ctx, store, files, missing)
	if err != nil {
		return nil, err
	}
	for i := range out {
		if l := made[out[i].Component]; l != nil {
			out[i].Layer, out[i].Edited = l, l.Edited
		}
	}
	return out, nil
}

// make makes the layers of components, by component. The base is read meanwhile: each layer is written as far as its files have
// come. The largest comes first, so that no processor waits for it at the end.
func (in Input) make(ctx context.Context, store store, files map[string][]file, keys map[string]string) (_ map[string]*layer, err error) {
	sizes := map[string]int64{}
	for c := range keys {
		for _, f := range files[c] {
			sizes[c] += f.Size
		}
	}
	components := slices.SortedFunc(maps.Keys(keys), func(a, b string) int {
		return cmp.Or(cmp.Compare(sizes[b], sizes[a]), cmp.Compare(a, b))
	})
	if in.Stash == nil {
		if in.Stash, err = tree.NewStash(in.CacheDir, nil); err != nil {
			return nil, err
		}
		defer in.Stash.Close()
	}
	contents := newContents(in.Stash, files, components)
	results := make([]*layer, len(components))
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error { return in.readBase(ctx, contents) })
	both.Go(func() error {
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(maxWriters)
		for i, c := range components {
			g.Go(func() error {
				entries, edited, err := in.entries(ctx, files[c], contents)
				if err == nil {
					results[i], err = store.make(ctx, keys[c], entries, &layer{Zstd: in.Zstd, Edited: edited})
				}
				if err != nil {
					return fmt.Errorf("component %s: %w", c, err)
				}
				return nil
			})
		}
		return g.Wait()
	})
	if err := both.Wait(); err != nil {
		return nil, err
	}
	made := map[string]*layer{}
	for i, c := range components {
		made[c] = results[i]
	}
	return made, nil
}

// files says what each layer holds, by component, sorted by path.
func (in Input) files() (map[string][]file, error) {
	byComponent := map[string]map[string]file{}
	inUse := map[string]bool{} // directories in which something lies that stays
	put := func(c string, f file) {
		if byComponent[c] == nil {
			byComponent[c] = map[string]file{}
		}
		byComponent[c][f.Path] = f
	}
	var dirs []tree.Entry
	first := map[[2]string]string{} // of hard links: the first name of a file in a component
	for e := range in.Base.Walk("/") {
		if e.IsDir() {
			dirs = append(dirs, *e)
			continue
		}
		c := in.Component(e.Path)
		if c == "" {
			continue
		}
		if !slices.Contains(in.Order, c) {
			return nil, fmt.Errorf("%s: no layer is for the component %q", e.Path, c)
		}
		f := file{Entry: *e, edit: in.Edits[e.Path].Key}
		switch e.Type {
		case image.TypeFile, image.TypeLink:
			of := e.Path
			if e.Type == image.TypeLink {
				of = e.Link
			}
			name, again := first[[2]string{c, of}]
			if !again {
				first[[2]string{c, of}] = e.Path
			}
			if again && f.edit == "" {
				f.Type, f.Link = image.TypeLink, name
			} else {
				f.Type, f.Link = image.TypeFile, ""
			}
		}
		put(c, f)
		for _, dir := range image.Parents(e.Path) {
			inUse[dir] = true
			if d, ok := in.Base.Lookup(dir); ok {
				put(c, file{Entry: d})
			}
		}
	}
	for _, d := range dirs {
		if d.Path == "/" || inUse[d.Path] {
			continue
		}
		if c := in.Component(d.Path); c != "" {
			put(c, file{Entry: d})
			for _, dir := range image.Parents(d.Path) {
				if parent, ok := in.Base.Lookup(dir); ok {
					put(c, file{Entry: parent})
				}
			}
		}
	}
	out := map[string][]file{}
	for c, files := range byComponent {
		for _, p := range slices.Sorted(maps.Keys(files)) {
			out[c] = append(out[c], files[p])
		}
	}
	return out, nil
}

// keyVersion changes whenever other bytes come of the same files.
const keyVersion = 2

// key names a layer by all that its bytes depend on.
func (in Input) key(files []file) (string, error) {
	h := sha256.New()
	enc := json.NewEncoder(h)
	blocks := BlockSize
	if in.Zstd {
		blocks = 0 // it has no such
	}
	if err := enc.Encode([]any{keyVersion, in.Time.Unix(), Compression, blocks}); err != nil {
		return "", err
	}
	for _, f := range files {
		switch f.Type {
		case image.TypeFile, image.TypeLink, image.TypeSymlink, image.TypeDir:
		default:
			return "", fmt.Errorf("%s is a %s, which no layer of ours holds", f.Path, f.Type)
		}
		if in.Keep {
			if err := enc.Encode(f.ModTime.Unix()); err != nil {
				return "", err
			}
		}
		if err := enc.Encode([]any{[]byte(f.Path), f.Type, f.Mode, f.UID, f.GID, f.Size, []byte(f.Link), f.Digest, f.edit, f.Xattrs}); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}

// contents are the files that stay, by their digests, as they come out of the base's layers.
type contents struct {
	stash *tree.Stash
	at    map[tree.Digest]wanted
}

// wanted is a content that the stash has once ready is closed.
type wanted struct {
	size  int64
	ready chan struct{}
}

// open returns the content of a file, and waits until it is there.
func (c *contents) open(ctx context.Context, f file) (*io.SectionReader, error) {
	s, ok := c.at[f.Digest]
	if !ok {
		return nil, errors.New("no layer of the base has its content")
	}
	select {
	case <-s.ready:
		return c.stash.Content(f.Digest), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// newContents returns contents for the files of components.
func newContents(stash *tree.Stash, files map[string][]file, components []string) *contents {
	c := &contents{stash, map[tree.Digest]wanted{}}
	for _, name := range components {
		for _, f := range files[name] {
			if f.Type == image.TypeFile && f.Size > 0 {
				c.at[f.Digest] = wanted{f.Size, make(chan struct{})}
			}
		}
	}
	return c
}

// put copies a content of the size that the index tells to the stash, and reports whether it has the digest.
func (c *contents) put(d tree.Digest, r io.Reader, buf []byte) (bool, error) {
	ok, err := c.stash.Put(d, c.at[d].size, r, buf)
	if ok {
		close(c.at[d].ready)
	}
	return ok, err
}

// readBase fills contents with what the stash lacks: from the base's indexes, which have the small ones of many kinds, and then from its
// layers, the largest first. The first layer that has a content gives it.
func (in Input) readBase(ctx context.Context, c *contents) error {
	blobs, err := in.Image.Layers()
	if err != nil {
		return err
	}
	wanted := make(map[tree.Digest]int64, len(c.at))
	for d, s := range c.at {
		if c.stash.Content(d) != nil {
			close(s.ready)
		} else {
			wanted[d] = s.size
		}
	}
	for d, content := range in.Base.Indexed(wanted) {
		ok, err := c.put(d, bytes.NewReader(content), nil)
		if err != nil {
			return err
		}
		if ok {
			delete(wanted, d)
		}
	}
	from := make([]map[string]tree.Digest, len(blobs))
	for i := range in.Base.Layers {
		from[i] = map[string]tree.Digest{}
		for _, e := range in.Base.Layers[i].Entries {
			if _, ok := wanted[e.Digest]; ok && e.Type == image.TypeFile {
				delete(wanted, e.Digest)
				from[i][e.Path] = e.Digest
			}
		}
	}
	var order []int
	for i := range blobs {
		if len(from[i]) > 0 {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(in.Base.Layers[b].Size, in.Base.Layers[a].Size) })
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, i := range order {
		g.Go(func() error {
			if err := in.readLayer(ctx, blobs[i], from[i], c); err != nil {
				return fmt.Errorf("layer %s: %w", in.Base.Layers[i].Digest, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// readLayer puts the files of a layer that are wanted into the stash, each compared with its digest.
func (in Input) readLayer(ctx context.Context, blob v1.Layer, wanted map[string]tree.Digest, into *contents) (err error) {
	digest, err := blob.Digest()
	if err != nil {
		return err
	}
	size, err := blob.Size()
	if err != nil {
		return err
	}
	task := in.Progress.Task("read "+image.Short(digest), size)
	defer func() { task.Done(err) }()
	compressed, err := blob.Compressed()
	if err != nil {
		return err
	}
	defer compressed.Close()
	raw, err := image.Inflate(image.Counting(ctx, compressed, task.Add))
	if err != nil {
		return err
	}
	defer raw.Close()
	tr := tar.NewReader(raw)
	buf := make([]byte, 256<<10)
	for len(wanted) > 0 {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("%d files are not in it that its index has", len(wanted))
		}
		if err != nil {
			return err
		}
		p := image.Clean(h.Name)
		want, ok := wanted[p]
		if !ok || h.FileInfo().Mode().Type() != 0 || h.Size != into.at[want].size {
			continue
		}
		ok, err = into.put(want, tr, buf)
		if err != nil {
			return err
		}
		if ok { // else a later entry of the same path is meant
			delete(wanted, p)
		}
	}
	return nil
}

// entries makes what is written of a component, and returns the digests of the files that are edited.
func (in Input) entries(ctx context.Context, files []file, have *contents) ([]image.File, map[string]tree.Digest, error) {
	out := make([]image.File, 0, len(files))
	edited := map[string]tree.Digest{}
	for _, f := range files {
		e := image.File{Entry: f.Entry.Entry}
		if !in.Keep {
			e.ModTime = in.Time
		}
		if e.Type == image.TypeFile {
			digest, err := in.content(ctx, &e, f, have)
			if err != nil {
				return nil, nil, err
			}
			if digest != f.Digest {
				edited[f.Path] = digest
			}
		}
		out = append(out, e)
	}
	return out, edited, nil
}

// content sets the content of e to that of f, and returns the content's digest.
func (in Input) content(ctx context.Context, e *image.File, f file, have *contents) (tree.Digest, error) {
	edit, edited := in.Edits[f.Path]
	compiled := path.Ext(f.Path) == ".pyc" && !in.Keep
	if !edited && !compiled {
		e.Open = func() (io.ReadCloser, error) {
			r, err := have.open(ctx, f)
			return io.NopCloser(r), err
		}
		return f.Digest, nil
	}
	data := make([]byte, f.Size)
	if f.Size > 0 {
		r, err := have.open(ctx, f)
		if err == nil {
			_, err = io.ReadFull(r, data)
		}
		if err != nil {
			return tree.Digest{}, fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	if edited {
		data = edit.Change(data)
	} else {
		setSourceTime(data, in.Time)
	}
	*e = image.File{Entry: e.Entry, Open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }}
	e.Size = int64(len(data))
	return sha256.Sum256(data), nil
}

// setSourceTime sets the time of its source in compiled Python, where it goes by times (PEP 552): else every start would
// compile anew.
func setSourceTime(pyc []byte, t time.Time) {
	if len(pyc) >= 16 && string(pyc[2:4]) == "\r\n" && binary.LittleEndian.Uint32(pyc[4:8]) == 0 {
		binary.LittleEndian.PutUint32(pyc[8:12], uint32(t.Unix()))
	}
}

// store keeps layers as files, and their indexes.
type store struct {
	dir     string
	indexes tree.Cache
}

func newStore(cacheDir string) (store, error) {
	if cacheDir == "" {
		return store{}, errors.New("layers made anew need a cache directory to lie in")
	}
	dir := filepath.Join(cacheDir, "stripped", fmt.Sprintf("v%d", keyVersion))
	return store{dir, tree.Cache{Dir: cacheDir}}, os.MkdirAll(dir, 0o755)
}

// get returns the layer of a key; nil when it was not made yet or is not whole.
func (s store) get(key string) *layer {
	data, err := os.ReadFile(filepath.Join(s.dir, key+".json"))
	if err != nil {
		return nil
	}
	l := &layer{}
	if json.Unmarshal(data, l) != nil {
		return nil
	}
	l.file = s.file(key, l)
	l.Edited = rawname.Unquoted(l.Edited)
	if info, err := os.Stat(l.file); err != nil || info.Size() != l.Bytes {
		return nil
	}
	return l
}

// file is where the blob of a layer lies.
func (s store) file(key string, l *layer) string {
	if l.Zstd {
		return filepath.Join(s.dir, key+".tar.zst")
	}
	return filepath.Join(s.dir, key+".tar.gz")
}

// make writes l, a layer of files.
func (s store) make(ctx context.Context, key string, files []image.File, l *layer) (*layer, error) {
	l.file = s.file(key, l)
	_, err := s.indexes.IndexLayer(ctx, func(archive io.Writer) (v1.Layer, error) {
		return l, image.WriteFile(l.file, 0o644, func(blob io.Writer) error {
			return l.write(ctx, blob, archive, files)
		})
	})
	if err != nil {
		return nil, err
	}
	return l, s.note(key, l)
}

// note writes what get reads of a layer besides its file.
func (s store) note(key string, l *layer) error {
	of := *l
	of.Edited = rawname.Quoted(l.Edited)
	data, err := json.Marshal(of)
	if err != nil {
		return err
	}
	return image.WriteBytes(filepath.Join(s.dir, key+".json"), 0o644, data)
}

// Blob puts a blob that goes with the layers in the cache, by its digest: the Layer is the blob.
func Blob(cacheDir string, data []byte) (Layer, error) {
	s, err := newStore(cacheDir)
	if err != nil {
		return Layer{}, err
	}
	digest, size, err := v1.SHA256(bytes.NewReader(data))
	if err != nil {
		return Layer{}, err
	}
	l := &layer{Hash: digest, Unpacked: digest, Bytes: size, file: filepath.Join(s.dir, digest.Hex+".tar.gz")}
	if err := image.WriteBytes(l.file, 0o644, data); err != nil {
		return Layer{}, err
	}
	return Layer{Layer: l, Key: digest.Hex}, s.note(digest.Hex, l)
}
