// Package output writes an image: to this machine as an OCI layout or an archive, to a registry, or to the Docker
// daemon. Each output appears whole or not at all.
package output

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/agext/levenshtein"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	ocitypes "github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/errgroup"
	"golang.org/x/term"

	"github.com/slimctl/slimctl/image"
)

// The types of outputs.
const (
	OCI           = "oci"
	OCIArchive    = "oci-archive"
	DockerArchive = "docker-archive"
)

var types = []string{OCI, OCIArchive, DockerArchive}

// Spec is the type and destination of an output on this machine.
type Spec struct {
	// Type is "oci" (a layout directory), "oci-archive" or "docker-archive" (uncompressed tar).
	Type string
	// Dest is a path that doesn't exist, an empty directory, or an earlier output of the same type, which is replaced.
	// "-" is standard output, for archives only.
	Dest string
}

// String returns the output in the form that Parse reads.
func (o Spec) String() string { return "type=" + o.Type + ",dest=" + o.Dest }

// Parse parses "type=oci,dest=DIR" like buildx: comma-separated, with quotes around values that contain commas.
// buildx's "tar=true" turns "oci" into an archive; "tar=false" keeps the directory.
func Parse(s string) (Spec, error) {
	bad := func(format string, args ...any) (Spec, error) {
		return Spec{}, fmt.Errorf(format, args...)
	}
	if strings.TrimSpace(s) == "" {
		return Spec{}, errors.New("empty output: write type=oci,dest=DIR")
	}
	r := csv.NewReader(strings.NewReader(s))
	fields, err := r.Read()
	if err != nil {
		return bad("%w", err)
	}
	if _, err := r.Read(); err != io.EOF {
		return bad("more than one line")
	}
	var o Spec
	seen := map[string]string{}
	for _, f := range fields {
		key, value, ok := strings.Cut(f, "=")
		key = strings.ToLower(strings.TrimSpace(key))
		if !ok {
			kind := OCI
			if strings.HasSuffix(f, ".tar") {
				kind = OCIArchive
			}
			return bad("%q is not key=value: write type=%s,dest=%s", f, kind, f)
		}
		if _, twice := seen[key]; twice {
			return bad("%s is given twice", key)
		}
		seen[key] = value
		switch key {
		case "type":
			o.Type = value
		case "dest":
			o.Dest = value
		case "tar":
		case "name":
			return bad("name is not an attribute here: use --tag")
		default:
			return bad("unknown attribute %q: did you mean %q? (type, dest, tar)", key, nearest(key, []string{"type", "dest", "tar"}))
		}
	}
	if o.Type == "" {
		return bad("type is missing: one of %s", strings.Join(types, ", "))
	}
	if !slices.Contains(types, o.Type) {
		if o.Type == "registry" || o.Type == "image" {
			return bad("type %q: use --push", o.Type)
		}
		return bad("unknown type %q: did you mean %q? (%s)", o.Type, nearest(o.Type, types), strings.Join(types, ", "))
	}
	if o.Dest == "" {
		return bad("dest is missing: a path, or - for standard output")
	}
	tar, given := seen["tar"]
	if given {
		archive, err := strconv.ParseBool(tar)
		switch {
		case err != nil:
			return bad("tar=%q is neither true nor false", tar)
		case archive && o.Type == OCI:
			o.Type = OCIArchive
		case !archive && o.Type != OCI:
			return bad("tar=false does not go with type %s", o.Type)
		}
	}
	if o.Type == OCI {
		if o.Dest == "-" {
			return bad("a directory can't go to standard output: use type=%s", OCIArchive)
		}
		if !given && strings.HasSuffix(o.Dest, ".tar") {
			return bad("type=oci writes a directory: use type=%s for a file, or add tar=false", OCIArchive)
		}
	}
	return o, nil
}

func nearest(word string, valid []string) string {
	for _, v := range valid {
		if word != "" && strings.HasPrefix(v, word) {
			return v
		}
	}
	return slices.MinFunc(valid, func(a, b string) int {
		return levenshtein.Distance(word, a, nil) - levenshtein.Distance(word, b, nil)
	})
}

// Check returns an error if the destination can't be written. It is called before the build.
func (o Spec) Check() error {
	if o.Dest == "-" {
		return nil
	}
	if info, err := os.Stat(filepath.Dir(o.Dest)); err != nil {
		return fmt.Errorf("destination %s: %w: make the directory first", o.Dest, err)
	} else if !info.IsDir() {
		return fmt.Errorf("destination %s: %s is not a directory", o.Dest, filepath.Dir(o.Dest))
	}
	info, err := os.Stat(o.Dest)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Lstat(o.Dest); err == nil {
			return fmt.Errorf("destination %s is a dangling symlink: %w", o.Dest, fs.ErrExist)
		}
		return nil
	case err != nil:
		return fmt.Errorf("destination: %w", err)
	case o.Type != OCI && !info.Mode().IsRegular() && !info.IsDir():
		return nil // a pipe or a device receives a stream
	case (o.Type == OCI) != info.IsDir():
		return &existsError{o.Dest}
	}
	if info.IsDir() {
		names, err := os.ReadDir(o.Dest)
		if err != nil {
			return fmt.Errorf("destination: %w", err)
		}
		if len(names) == 0 {
			return nil
		}
		for _, n := range names {
			if !slices.Contains([]string{"oci-layout", "index.json", "blobs"}, n.Name()) {
				return &existsError{o.Dest}
			}
		}
	}
	if !o.isOurs() {
		return &existsError{o.Dest}
	}
	return nil
}

// isOurs reports whether the destination holds one image made by slimctl, by the last entry of its history.
func (o Spec) isOurs() bool {
	src, err := image.Open(context.Background(), o.Type+":"+o.Dest, image.Options{})
	if err != nil {
		return false
	}
	if len(src.Ignored(true)) > 0 {
		return false
	}
	for _, p := range src.Platforms() {
		img, err := src.Image(p)
		if err != nil {
			return false
		}
		c, err := img.ConfigFile()
		if err != nil || len(c.History) == 0 || c.History[len(c.History)-1].Comment != "slimctl" {
			return false
		}
	}
	return true
}

// Place renames tmp, which is beside the destination, to the destination. It replaces an empty directory or an earlier
// output, and fails if anything else is there.
func (o Spec) Place(tmp string) error {
	if err := o.Check(); err != nil {
		return err
	}
	info, err := os.Stat(o.Dest)
	if err != nil || !info.IsDir() {
		return os.Rename(tmp, o.Dest)
	}
	if os.Remove(o.Dest) == nil { // it was empty
		return os.Rename(tmp, o.Dest)
	}
	if err := exchange(tmp, o.Dest); err != nil {
		return err
	}
	return os.RemoveAll(tmp) // now the earlier output
}

// swap exchanges two directories in three steps. If one fails, b is restored.
func swap(a, b string) error {
	aside := a + ".old"
	if err := os.Rename(b, aside); err != nil {
		return err
	}
	if err := os.Rename(a, b); err != nil {
		return errors.Join(err, os.Rename(aside, b))
	}
	return os.Rename(aside, a)
}

// existsError is an error for which errors.Is(err, fs.ErrExist) holds.
type existsError struct{ dest string }

func (e *existsError) Error() string {
	return fmt.Sprintf("destination %s exists and is not an output of slimctl build: remove it or choose another", e.dest)
}

func (e *existsError) Unwrap() error { return fs.ErrExist }

// Write writes b to the destination atomically: to a temporary name beside it, renamed at the end. If src is a layout
// directory, its blobs are reflinked or hard-linked instead of copied where the file system allows; changing a
// hard-linked file in place changes both.
//
// Linking a blob, and removing an output with links, changes the change time by which a blob counts as verified. Write
// records its own links, but after the removal of such an output the next build hashes the blobs again. tags name the
// image inside. src may be nil.
func (o Spec) Write(ctx context.Context, b image.Built, tags []name.Tag, src *image.Source, opt image.Options) error {
	opt = opt.WithDefaults()
	if err := o.Check(); err != nil {
		return err
	}
	if o.Type == DockerArchive {
		img, err := onlyImage(b)
		if err != nil {
			return err
		}
		b = image.Built{Image: img}
	}
	c, err := contentsOf(b)
	if err != nil {
		return err
	}
	cp := &copier{opt: opt, src: src}
	if o.Type == OCI {
		return writeLayout(ctx, o.Dest, c, tags, cp)
	}
	plan, err := planArchive(c, tags, o.Type == DockerArchive)
	if err != nil {
		return err
	}
	if o.Dest == "-" {
		if f, ok := opt.Stdout.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
			return errors.New("standard output is a terminal: redirect it to a file or a pipe")
		}
		return plan.stream(ctx, opt.Stdout, cp)
	}
	if info, err := os.Stat(o.Dest); err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(o.Dest, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(plan.stream(ctx, f, cp), f.Close())
	}
	return plan.write(ctx, o, cp)
}

// onlyImage returns the image of a result with one platform.
func onlyImage(b image.Built) (v1.Image, error) {
	if b.Image != nil {
		return b.Image, nil
	}
	m, err := b.Index.IndexManifest()
	if err != nil {
		return nil, err
	}
	images, have := []v1.Hash{}, []string{}
	for _, d := range m.Manifests {
		if image.IsImage(d) {
			images = append(images, d.Digest)
			if d.Platform != nil {
				have = append(have, d.Platform.String())
			}
		}
	}
	if len(images) != 1 {
		return nil, fmt.Errorf("a docker archive holds one platform, but the image has %d (%s): choose one with --platform",
			len(images), strings.Join(have, ", "))
	}
	return b.Index.Image(images[0])
}

// layoutMarker is the content of oci-layout (OCI image specification, image-layout.md).
const layoutMarker = `{"imageLayoutVersion":"1.0.0"}`

// DefaultName is the name (image.AnnotationRefName) of an image without a tag in a layout. ctr, umoci, regctl and
// skopeo need a name.
const DefaultName = "latest"

// topIndex returns index.json, with one entry per tag, or one with the name unnamed, which may be empty.
func topIndex(c *contents, tags []name.Tag, unnamed string) ([]byte, error) {
	root := c.root.desc
	plain := v1.Descriptor{MediaType: root.MediaType, Size: root.Size, Digest: root.Digest, Platform: root.Platform}
	top := v1.IndexManifest{SchemaVersion: 2, MediaType: ocitypes.OCIImageIndex, Manifests: []v1.Descriptor{}}
	for _, t := range tags {
		d := plain
		d.Annotations = map[string]string{
			image.AnnotationImageName: image.DockerName(t.Name()), image.AnnotationRefName: t.TagStr(),
		}
		top.Manifests = append(top.Manifests, d)
	}
	if len(tags) == 0 {
		if unnamed != "" {
			plain.Annotations = map[string]string{image.AnnotationRefName: unnamed}
		}
		top.Manifests = append(top.Manifests, plain)
	}
	if len(c.referrers) > 0 {
		for i := range top.Manifests {
			// An entry of its own would be a second image for programs that take a layout's only one.
			top.Manifests[i].Annotations[image.AnnotationReferrers] = c.list.desc.Digest.String()
		}
	}
	return json.Marshal(top)
}

// writeLayout writes an OCI image layout directory.
func writeLayout(ctx context.Context, dest string, c *contents, tags []name.Tag, cp *copier) (err error) {
	mode := fs.FileMode(0o755)
	if p, err := filepath.EvalSymlinks(dest); err == nil {
		dest = p // it may be a link to an empty directory; replace the directory
		if info, err := os.Stat(dest); err == nil {
			mode = info.Mode().Perm()
		}
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dest), "."+filepath.Base(dest)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(tmp)
		}
	}()
	index, err := topIndex(c, tags, DefaultName)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tmp, "oci-layout"), []byte(layoutMarker), 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tmp, "index.json"), index, 0o644); err != nil {
		return err
	}
	if err := writeBlobs(ctx, filepath.Join(tmp, "blobs"), c, cp); err != nil {
		return err
	}
	if err := os.Chmod(tmp, mode); err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return Spec{Type: OCI, Dest: dest}.Place(tmp)
}

func writeBlobs(ctx context.Context, dir string, c *contents, cp *copier) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(copyJobs)
	for _, it := range c.all() {
		d := filepath.Join(dir, it.desc.Digest.Algorithm)
		if err := os.MkdirAll(d, 0o755); err != nil {
			return errors.Join(err, g.Wait())
		}
		g.Go(func() error { return cp.copyFile(ctx, filepath.Join(d, it.desc.Digest.Hex), it) })
	}
	return g.Wait()
}
