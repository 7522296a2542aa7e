package build

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/build/ledger"
	"github.com/slimctl/slimctl/image"
)

// Kept describes a stripped base as changes to the base, for renderings that can't replace layers.
type Kept struct {
	// Gone are the paths of the base to remove, sorted. Paths below another one of them are left out.
	Gone []string
	// Edited are the files whose content differs from the base's.
	Edited []image.File

	gone map[string]bool // all removed paths
}

// IsEmpty reports whether nothing below dir is removed by itself.
func (k *Kept) IsEmpty(dir string) bool {
	for p := range k.gone {
		if p != dir && image.Within(p, dir) {
			return false
		}
	}
	return true
}

// Kept reads the changes to the base from the Strip step's ledger and layers.
func (r *Recipe) Kept() (*Kept, error) {
	if r.Ledger() == nil {
		return nil, fmt.Errorf("profile %s: its recipe has no ledger of what stays of the base", r.Profile)
	}
	in, err := r.Ledger().Compressed()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	gone, edited := map[string]bool{}, map[string]map[string]bool{} // edited is by component
	if _, err := ledger.Read(in, func(row ledger.Row) bool {
		switch {
		case row.Path != "" && row.Goes != "":
			gone[row.Path] = true
		case row.Edited != "":
			if edited[row.Component] == nil {
				edited[row.Component] = map[string]bool{}
			}
			edited[row.Component][row.Path] = true
		}
		return true
	}); err != nil {
		return nil, err
	}
	k := &Kept{gone: gone}
	for p := range gone {
		if !gone[path.Dir(p)] {
			k.Gone = append(k.Gone, p)
		}
	}
	slices.Sort(k.Gone)
	for _, c := range r.Stripped() {
		if len(edited[c.Name]) == 0 {
			continue
		}
		files, err := c.readFiles(edited[c.Name])
		if err != nil {
			return nil, fmt.Errorf("component %s: %w", c.Name, err)
		}
		k.Edited = append(k.Edited, files...)
	}
	return k, nil
}

// readFiles returns the wanted files of a component's layer.
func (c Component) readFiles(wanted map[string]bool) (out []image.File, err error) {
	raw, err := c.Uncompressed()
	if err != nil {
		return nil, err
	}
	defer raw.Close()
	archive := tar.NewReader(raw)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		p := image.Clean(h.Name)
		if !wanted[p] {
			continue
		}
		data, err := io.ReadAll(archive)
		if err != nil {
			return nil, err
		}
		f := image.Bytes(p, h.Mode, data)
		f.UID, f.GID, f.ModTime = h.Uid, h.Gid, h.ModTime
		for key, value := range h.PAXRecords {
			if name, ok := strings.CutPrefix(key, "SCHILY.xattr."); ok {
				if f.Xattrs == nil {
					f.Xattrs = image.Xattrs{}
				}
				f.Xattrs[name] = value
			}
		}
		out = append(out, f)
	}
}
