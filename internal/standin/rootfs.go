package standin

import (
	"errors"
	"io"
	"os"
	"path"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// Rootfs is a real root file system, as one layer, for the stand-in's files to lie on. Then the stand-in boots: what the
// root file system has is left out above it, and the programs that stay placeholders otherwise lead to it.
type Rootfs struct {
	// File is the blob, which a layout gets as a hard link where the file system can.
	File   string
	Layer  v1.Descriptor
	DiffID v1.Hash
	// Tree is what the layer holds.
	Tree *tree.Tree
}

// overReal are the stand-in's files that hide the root file system's: links that the base has at these names.
var overReal = map[string]bool{
	"/usr/bin/supervisord": true, // lines B and C have pip's, which files/live brings
}

// realPrograms are where the programs are that the base has elsewhere.
var realPrograms = map[string]string{
	"/opt/browser/chrome":            "/usr/lib/chromium/chromium",
	"/opt/browser/current/chrome":    "/usr/lib/chromium/chromium",
	"/opt/python3.11/bin/python3.11": "/usr/bin/python3",
	"/opt/python3.12/bin/python3.12": "/usr/bin/python3",
	"/usr/bin/python3.10":            "/usr/bin/python3",
}

// realNode stands for each of the base's copies of Node. It is a file and no link, since some have a second name.
const realNode = "#!/bin/sh\nexec /usr/bin/node \"$@\"\n"

// lay changes a line's files so that they go on the root file system; a nil r leaves them as they are.
func (r *Rootfs) lay(tree map[string]image.File) {
	if r == nil {
		return
	}
	// Debian's Chromium looks here on every line.
	tree["/etc/chromium"] = image.Symlink("/etc/chromium", "/etc/browser")
	for p, f := range tree {
		if _, ok := r.Tree.Lookup(p); ok && (f.Type != image.TypeSymlink || !overReal[p]) {
			delete(tree, p)
			continue
		}
		if f.Type == image.TypeFile {
			tree[p] = r.program(f)
		}
	}
	for p, f := range tree {
		if f.Type != image.TypeLink {
			continue
		}
		if target, ok := tree[f.Link]; !ok || target.Type != image.TypeFile {
			tree[p] = image.Symlink(p, f.Link)
		}
	}
}

// program is what takes the place of a placeholder that the root file system has a program for; any other file stays.
func (r *Rootfs) program(f image.File) image.File {
	if target, ok := realPrograms[f.Path]; ok {
		return image.Symlink(f.Path, target)
	}
	if strings.HasPrefix(f.Path, "/opt/") && path.Base(f.Path) == "node" {
		return image.Bytes(f.Path, 0o755, []byte(realNode))
	}
	if data, err := files.ReadFile("files/live" + f.Path); err == nil {
		return image.Bytes(f.Path, 0o755, data)
	}
	return f
}

// dirAt is the directory p as the root file system has it, or else the stand-in.
func (r *Rootfs) dirAt(p string) image.File {
	if r != nil {
		if e, ok := r.Tree.Lookup(p); ok && e.IsDir() {
			return image.File{Entry: e.Entry}
		}
	}
	return dirAt(p)
}

// below puts the root file system below an image's layers, in the layout at dir.
func (r *Rootfs) below(dir string, m *v1.Manifest, c *v1.ConfigFile) error {
	m.Layers = append([]v1.Descriptor{r.Layer}, m.Layers...)
	c.RootFS.DiffIDs = append([]v1.Hash{r.DiffID}, c.RootFS.DiffIDs...)
	c.History = append([]v1.History{{Created: c.Created, CreatedBy: liveStep}}, c.History...)
	to := blobPath(dir, r.Layer.Digest)
	if os.Link(r.File, to) == nil {
		return nil
	}
	in, err := os.Open(r.File)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
