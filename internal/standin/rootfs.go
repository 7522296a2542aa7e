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

// Rootfs is a real root file system, as one layer below the stand-in's files, with which the stand-in boots. Files that
// it has are left out above it, and placeholders of programs become links to its programs.
type Rootfs struct {
	// File is the blob, which is hard-linked to layouts if possible.
	File   string
	Layer  v1.Descriptor
	DiffID v1.Hash
	// Tree is the content of the layer.
	Tree *tree.Tree
}

// overReal lists the stand-in's files that replace the root file system's, because the base has links at these paths.
var overReal = map[string]bool{
	"/usr/bin/supervisord": true, // lines B and C have pip's, from files/live
}

// realPrograms maps paths of programs in the base to their paths in the root file system.
var realPrograms = map[string]string{
	"/opt/browser/chrome":            "/usr/lib/chromium/chromium",
	"/opt/browser/current/chrome":    "/usr/lib/chromium/chromium",
	"/opt/python3.11/bin/python3.11": "/usr/bin/python3",
	"/opt/python3.12/bin/python3.12": "/usr/bin/python3",
	"/usr/bin/python3.10":            "/usr/bin/python3",
}

// realNode replaces each of the base's copies of Node. It is a file, not a link, because some copies have a second
// name.
const realNode = "#!/bin/sh\nexec /usr/bin/node \"$@\"\n"

// adapt changes a line's files so that they fit on the root file system. A nil r changes nothing.
func (r *Rootfs) adapt(tree map[string]image.File) {
	if r == nil {
		return
	}
	// Debian's Chromium reads this directory on every line.
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

// program returns the replacement of a placeholder whose program the root file system has. It returns other files
// unchanged.
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

// dirAt returns the directory p of the root file system, or else of the stand-in.
func (r *Rootfs) dirAt(p string) image.File {
	if r != nil {
		if e, ok := r.Tree.Lookup(p); ok && e.IsDir() {
			return image.File{Entry: e.Entry}
		}
	}
	return dirAt(p)
}

// putBelow adds the root file system below an image's layers, in the layout at dir.
func (r *Rootfs) putBelow(dir string, m *v1.Manifest, c *v1.ConfigFile) error {
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
