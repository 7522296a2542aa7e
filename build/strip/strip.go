// Package strip rebuilds the layers of an image with only what stays of its base, so that the bytes of the rest are
// gone.
//
// It reads the base's layers concurrently, and compresses what it has read. Each component becomes one layer, sorted by
// path. The bytes of a layer depend only on its files, not on the base's
// layer boundaries, on times or on the number of processors. Layers that were made before come from the cache. If all
// do, Layers reads nothing of the base.
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
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/internal/rawname"
)

// Input is the input of Layers.
type Input struct {
	// Base is the base's merged tree, and Image the image to read its layers from.
	Base  *tree.Image
	Image v1.Image
	// Component returns the component of a path of the base, or "" for a path that is removed. For a directory it is
	// called only if nothing below it stays.
	Component func(p string) string
	// Order lists the components, lowest first.
	Order []string
	// Edits maps paths to edits of their content.
	Edits map[string]Edit
	// Time is the time of every file. It is independent of the base, so that a rebuilt base gives the same layers.
	Time time.Time
	// CacheDir is the directory where layers are written and kept between builds.
	CacheDir string
	Progress image.Progress
}

// Edit is a change of a file. Different changes have different Keys.
type Edit struct {
	Key    string
	Change func(old []byte) []byte
}

// Layer is one layer of what stays.
type Layer struct {
	v1.Layer
	Component string
	// Key is the layer's name in the cache.
	Key string
	// Files is the number of its files and links, and Unpacked their size in bytes.
	Files    int
	Unpacked int64
	// Edited maps each edited file to the digest of its new content.
	Edited map[string]tree.Digest
}

// file is an entry of a layer to make.
type file struct {
	tree.Entry
	edit   string      // Edit.Key
	source *tree.Entry // for compiled Python; nil if the base has none
}

// Layers returns the layers in the order of Input.Order, without empty ones.
func Layers(ctx context.Context, in Input) ([]Layer, error) {
	if in.Progress == nil {
		in.Progress = image.NoProgress
	}
	files, err := in.planFiles()
	if err != nil {
		return nil, err
	}
	var out []Layer
	store, err := newStore(in.CacheDir)
	if err != nil {
		return nil, err
	}
	missing := map[string]string{} // keys by component
	for _, c := range in.Order {
		if len(files[c]) == 0 {
			continue
		}
		l := Layer{Component: c}
		for _, f := range files[c] {
			if !f.IsDir() {
				l.Files++
				l.Unpacked += f.Size
			}
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
	made, err := in.makeLayers(ctx, store, files, missing)
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

// makeLayers makes the layers of components, by component, while reading the base. It writes a layer as soon as its next
// files are read. The largest layer comes first, so that no processor waits for it at the end.
func (in Input) makeLayers(ctx context.Context, store store, files map[string][]file, keys map[string]string) (_ map[string]*layer, err error) {
	sizes := map[string]int64{}
	for c := range keys {
		for _, f := range files[c] {
			sizes[c] += f.Size
		}
	}
	components := slices.SortedFunc(maps.Keys(keys), func(a, b string) int {
		return cmp.Or(cmp.Compare(sizes[b], sizes[a]), cmp.Compare(a, b))
	})
	contents, err := newContents(in.CacheDir, files, components)
	if err != nil {
		return nil, err
	}
	defer contents.file.Close()
	results := make([]*layer, len(components))
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error { return in.readBase(ctx, contents) })
	both.Go(func() error {
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(maxWriters)
		for i, c := range components {
			g.Go(func() error {
				entries, edited, err := in.makeEntries(ctx, files[c], contents)
				if err == nil {
					results[i], err = store.makeLayer(ctx, keys[c], entries, edited)
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

// planFiles returns the entries of each layer, by component, sorted by path.
func (in Input) planFiles() (map[string][]file, error) {
	byComponent := map[string]map[string]file{}
	inUse := map[string]bool{} // directories with content that stays
	put := func(c string, f file) {
		if byComponent[c] == nil {
			byComponent[c] = map[string]file{}
		}
		byComponent[c][f.Path] = f
	}
	// putParents puts the directories above p that c doesn't have yet.
	putParents := func(c, p string) {
		for dir := path.Dir(p); dir != "/"; dir = path.Dir(dir) {
			if _, has := byComponent[c][dir]; has {
				return // and those above it
			}
			if d, ok := in.Base.Lookup(dir); ok {
				put(c, file{Entry: d})
			}
		}
	}
	var dirs []tree.Entry
	first := map[[2]string]string{} // the first name of a hard-linked file in a component
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
		f := file{Entry: *e, edit: in.Edits[e.Path].Key, source: in.findSource(e.Path)}
		switch e.Type {
		case image.TypeFile, image.TypeLink:
			of := e.Path
			if e.Type == image.TypeLink {
				of = e.Link
			}
			f.Type, f.Link = image.TypeFile, ""
			if f.edit != "" || f.source != nil {
				break // it may get a content of its own
			}
			if name, again := first[[2]string{c, of}]; again {
				f.Type, f.Link = image.TypeLink, name
			} else {
				first[[2]string{c, of}] = e.Path
			}
		}
		put(c, f)
		putParents(c, e.Path)
		for dir := path.Dir(e.Path); dir != "/" && !inUse[dir]; dir = path.Dir(dir) {
			inUse[dir] = true
		}
	}
	for _, d := range dirs {
		if d.Path == "/" || inUse[d.Path] {
			continue
		}
		if c := in.Component(d.Path); c != "" {
			put(c, file{Entry: d})
			putParents(c, d.Path)
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

// keyVersion must be raised when the same files give other bytes.
const keyVersion = 3

// key returns the cache key of a layer, a digest of everything that its bytes depend on.
func (in Input) key(files []file) (string, error) {
	h := sha256.New()
	enc := json.NewEncoder(h)
	if err := enc.Encode([]any{keyVersion, in.Time.Unix(), Compression, BlockSize}); err != nil {
		return "", err
	}
	for _, f := range files {
		switch f.Type {
		case image.TypeFile, image.TypeLink, image.TypeSymlink, image.TypeDir:
		default:
			return "", fmt.Errorf("%s is a %s, which slimctl's layers can't hold", f.Path, f.Type)
		}
		if f.source != nil {
			if err := enc.Encode([]int64{f.source.ModTime.Unix(), f.source.Size}); err != nil {
				return "", err
			}
		}
		if err := enc.Encode([]any{[]byte(f.Path), f.Type, f.Mode, f.UID, f.GID, f.Size, []byte(f.Link), f.Digest, f.edit, f.Xattrs}); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}

// contents holds the contents of files that stay, by digest, in a temporary file, as they are read from the base's
// layers.
type contents struct {
	file *os.File
	at   map[tree.Digest]content
}

// content is a part of the file. It is there when ready is closed.
type content struct {
	start, size int64
	ready       chan struct{}
}

// open returns the content of a file. It waits until the content is read.
func (c *contents) open(ctx context.Context, f file) (*io.SectionReader, error) {
	s, ok := c.at[f.Digest]
	if !ok {
		return nil, errors.New("no layer of the base has its content")
	}
	select {
	case <-s.ready:
		return io.NewSectionReader(c.file, s.start, s.size), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// newContents returns the contents for the files of components, with an unnamed file in dir.
func newContents(dir string, files map[string][]file, components []string) (*contents, error) {
	f, err := os.CreateTemp(dir, ".slimctl-")
	if err != nil {
		return nil, err
	}
	c, end := &contents{f, map[tree.Digest]content{}}, int64(0)
	for _, name := range components {
		for _, f := range files[name] {
			if _, has := c.at[f.Digest]; !has && f.Type == image.TypeFile && f.Size > 0 {
				c.at[f.Digest] = content{end, f.Size, make(chan struct{})}
				end += f.Size
			}
		}
	}
	return c, os.Remove(f.Name())
}

// put copies a content, of the size in the index, to the file and reports whether it has the digest.
func (c *contents) put(d tree.Digest, r io.Reader, buf []byte) (bool, error) {
	at, sum := c.at[d], sha256.New()
	if _, err := io.CopyBuffer(io.NewOffsetWriter(c.file, at.start), io.TeeReader(r, sum), buf); err != nil {
		return false, err
	}
	ok := tree.Digest(sum.Sum(nil)) == d
	if ok {
		close(at.ready)
	}
	return ok, nil
}

// readBase reads the contents: from the base's indexes, which hold small files of many kinds, and then from its layers,
// the largest first. The first layer with a content provides it.
func (in Input) readBase(ctx context.Context, c *contents) error {
	blobs, err := in.Image.Layers()
	if err != nil {
		return err
	}
	wanted := make(map[tree.Digest]int64, len(c.at))
	for d, s := range c.at {
		wanted[d] = s.size
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

// readLayer copies the wanted files of a layer to the contents and verifies their digests.
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
			return fmt.Errorf("it lacks %d files of its index; delete slimctl's cache directory", len(wanted))
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
		if ok { // otherwise a later entry has the path
			delete(wanted, p)
		}
	}
	return nil
}

// makeEntries returns the entries to write of a component, and the digests of edited files.
func (in Input) makeEntries(ctx context.Context, files []file, have *contents) ([]image.File, map[string]tree.Digest, error) {
	out := make([]image.File, 0, len(files))
	edited := map[string]tree.Digest{}
	for _, f := range files {
		e := image.File{Entry: f.Entry.Entry}
		e.ModTime = in.Time
		if e.Type == image.TypeFile {
			digest, err := in.setContent(ctx, &e, f, have)
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

// setContent sets the content of e to that of f, and returns the content's digest.
func (in Input) setContent(ctx context.Context, e *image.File, f file, have *contents) (tree.Digest, error) {
	edit, edited := in.Edits[f.Path]
	compiled := path.Ext(f.Path) == ".pyc"
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
		setSourceTime(data, f.source, in.Time)
	}
	*e = image.File{Entry: e.Entry, Open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }}
	e.Size = int64(len(data))
	return sha256.Sum256(data), nil
}

// findSource returns the source of the compiled Python at p (PEP 3147), following links. It returns nil if there is none.
func (in Input) findSource(p string) *tree.Entry {
	dir, name := path.Split(p)
	dir, ok := strings.CutSuffix(dir, "__pycache__/")
	if !ok || path.Ext(name) != ".pyc" {
		return nil
	}
	name, _, _ = strings.Cut(name, ".")
	if e, ok := in.Base.Stat(dir + name + ".py"); ok {
		return &e
	}
	return nil
}

// setSourceTime sets the time of its source in compiled Python, where it goes by times (PEP 552): else every start would
// compile anew. What Python doesn't take in the base, because its source is another now, gets a time that no source has.
func setSourceTime(pyc []byte, source *tree.Entry, t time.Time) {
	if len(pyc) < 16 || string(pyc[2:4]) != "\r\n" || binary.LittleEndian.Uint32(pyc[4:8]) != 0 {
		return
	}
	at, size := binary.LittleEndian.Uint32(pyc[8:12]), binary.LittleEndian.Uint32(pyc[12:16])
	if source == nil || at != uint32(source.ModTime.Unix()) || size != uint32(source.Size) {
		t = time.Unix(0, 0)
	}
	binary.LittleEndian.PutUint32(pyc[8:12], uint32(t.Unix()))
}

// store holds layers as files.
type store struct{ dir string }

func newStore(cacheDir string) (store, error) {
	if cacheDir == "" {
		return store{}, errors.New("rebuilding layers needs a cache directory; name one with --cache-dir DIR")
	}
	dir := filepath.Join(cacheDir, "stripped", fmt.Sprintf("v%d", keyVersion))
	return store{dir}, os.MkdirAll(dir, 0o755)
}

// get returns the layer of a key, or nil if it is missing or incomplete.
func (s store) get(key string) *layer {
	data, err := os.ReadFile(filepath.Join(s.dir, key+".json"))
	if err != nil {
		return nil
	}
	l := &layer{}
	if json.Unmarshal(data, l) != nil {
		return nil
	}
	l.file = s.file(key)
	l.Edited = rawname.Unquoted(l.Edited)
	if info, err := os.Stat(l.file); err != nil || info.Size() != l.Bytes {
		return nil
	}
	return l
}

// file returns the path of a layer's blob.
func (s store) file(key string) string { return filepath.Join(s.dir, key+".tar.gz") }

// makeLayer writes the layer of files.
func (s store) makeLayer(ctx context.Context, key string, files []image.File, edited map[string]tree.Digest) (*layer, error) {
	l := &layer{Edited: edited, file: s.file(key)}
	if err := image.WriteFile(l.file, 0o644, func(w io.Writer) error { return l.write(ctx, w, files) }); err != nil {
		return nil, err
	}
	return l, s.note(key, l)
}

// note writes the layer's description, which get reads.
func (s store) note(key string, l *layer) error {
	of := *l
	of.Edited = rawname.Quoted(l.Edited)
	data, err := json.Marshal(of)
	if err != nil {
		return err
	}
	return image.WriteBytes(filepath.Join(s.dir, key+".json"), 0o644, data)
}

// Blob writes a blob that belongs to the layers to the cache, by its digest, and returns it as a Layer.
func Blob(cacheDir string, data []byte) (Layer, error) {
	s, err := newStore(cacheDir)
	if err != nil {
		return Layer{}, err
	}
	digest, size, err := v1.SHA256(bytes.NewReader(data))
	if err != nil {
		return Layer{}, err
	}
	l := &layer{Hash: digest, Unpacked: digest, Bytes: size, file: s.file(digest.Hex)}
	if err := image.WriteBytes(l.file, 0o644, data); err != nil {
		return Layer{}, err
	}
	return Layer{Layer: l, Key: digest.Hex}, s.note(digest.Hex, l)
}
