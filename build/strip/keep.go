package strip

import (
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// keepLayers sets the metadata of the directories in files, which Input.planFiles returned, to that of the base's
// layers. It returns the base's layers that stay unchanged, by component.
//
// A rebuilt layer contains the directories above its files as the base has them up to that layer, so it doesn't depend
// on later layers. If a layer that changes such a directory is left out, the last component contains the directory's
// final state.
func (in Input) keepLayers(files map[string][]file) (map[string]v1.Layer, error) {
	blobs, err := in.Image.Layers()
	if err != nil {
		return nil, err
	}
	stays := map[string]bool{"/": true} // directories that stay
	for _, list := range files {
		for _, f := range list {
			if f.IsDir() {
				stays[f.Path] = true
			}
		}
	}
	own := map[string]v1.Layer{}
	below := map[string]tree.Entry{} // the base's directories up to the current layer
	said := map[string]tree.Entry{}  // the image's directories up to it
	for i, l := range in.Base.Layers {
		c := in.Order[i]
		for _, e := range l.Entries {
			if e.IsDir() {
				below[e.Path] = e
			}
		}
		if in.staysWhole(l, files[c], stays) {
			if own[c], err = newOwn(l.Annotations, blobs[i]); err != nil {
				return nil, err
			}
			for _, e := range l.Entries {
				if e.IsDir() {
					said[e.Path] = e
				}
			}
			continue
		}
		for j, f := range files[c] {
			if !f.IsDir() {
				continue
			}
			if e, ok := below[f.Path]; ok {
				files[c][j].Entry = e
			}
			said[f.Path] = files[c][j].Entry
		}
	}
	last := in.Order[len(in.Order)-1]
	add := map[string]file{}
	for _, f := range files[last] {
		add[f.Path] = f
	}
	delete(stays, "/")
	for p := range stays {
		e, ok := in.Base.Lookup(p)
		if have, is := said[p]; !ok || is && sameDir(have, e) {
			continue
		}
		for _, dir := range append(image.Parents(p), p) {
			if e, ok := in.Base.Lookup(dir); ok {
				add[dir] = file{Entry: e}
			}
		}
	}
	if len(add) > 0 {
		files[last] = slices.SortedFunc(maps.Values(add), func(a, b file) int { return strings.Compare(a.Path, b.Path) })
	}
	return own, nil
}

// staysWhole reports whether a layer of the base stays unchanged. files is what stays of it. A layer with a whiteout
// doesn't, because its target is gone, but its mark needs a directory; nor one with a hard link to a file of a lower
// layer, which may be removed.
func (in Input) staysWhole(l tree.Layer, files []file, stays map[string]bool) bool {
	mine := map[string]bool{}
	for _, f := range files {
		if !f.IsDir() && f.edit == "" {
			mine[f.Path] = true
		}
	}
	for _, e := range l.Entries {
		var ok bool
		switch e.Type {
		case tree.TypeWhiteout:
			ok = stays[path.Dir(e.Path)]
		case tree.TypeOpaque, image.TypeDir:
			ok = stays[e.Path]
		case image.TypeLink:
			ok = mine[e.Path] && e.Digest != tree.Digest{}
		default:
			ok = mine[e.Path]
		}
		if !ok {
			return false
		}
	}
	return len(files) > 0
}

// sameDir reports whether two entries of a directory have the same metadata.
func sameDir(a, b tree.Entry) bool {
	return a.Mode == b.Mode && a.UID == b.UID && a.GID == b.GID && maps.Equal(a.Xattrs, b.Xattrs) &&
		a.ModTime.Truncate(time.Second).Equal(b.ModTime.Truncate(time.Second))
}

// ownLayer is a layer of the base with the descriptor for our manifest.
type ownLayer struct {
	v1.Layer
	desc v1.Descriptor
}

func newOwn(annotations map[string]string, blob v1.Layer) (v1.Layer, error) {
	d, err := partial.Descriptor(blob)
	if err != nil {
		return nil, err
	}
	d.MediaType = types.MediaType(image.OCILayerType(d.MediaType))
	d.Annotations = image.KeptAnnotations(annotations)
	return ownLayer{blob, *d}, nil
}

func (l ownLayer) Descriptor() (*v1.Descriptor, error) { return &l.desc, nil }
func (l ownLayer) MediaType() (types.MediaType, error) { return l.desc.MediaType, nil }
