package resolve

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/build/keep"
	"github.com/slimctl/slimctl/build/ledger"
	"github.com/slimctl/slimctl/build/strip"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// writeLedger writes the ledger, which records what becomes of each path of the base. component is
// strip.Input.Component.
func (w *work) writeLedger(files *tree.Image, set *keep.Set, component func(string) string, layers []strip.Layer) (strip.Layer, error) {
	edited := map[string]tree.Digest{}
	for _, l := range layers {
		maps.Copy(edited, l.Edited)
	}
	// ours maps each overlay path, and each directory above it, to the overlay; the first path in sorted order decides.
	ours := map[string]string{}
	for _, p := range slices.Backward(slices.Sorted(maps.Keys(w.laid))) {
		for _, at := range append(image.Parents(p), p) {
			ours[at] = "overlay " + w.laid[p].overlay
		}
	}
	var out bytes.Buffer
	book, err := ledger.NewWriter(&out, ledger.Header{Profile: w.in.Profile.Name, Platform: w.platform.String(), Base: w.recipe.Base.Manifest.String()})
	if err != nil {
		return strip.Layer{}, err
	}
	add := func(rows ...ledger.Row) {
		for _, r := range rows {
			if err == nil {
				err = book.Add(r)
			}
		}
	}
	add(packageRows(set)...)
	var gone []*tree.Entry
	for e := range files.Walk("/") {
		if e.Path == "/" {
			continue
		}
		row := ledgerRow(e, set, edited)
		overlay, laid := ours[e.Path]
		row.Component = component(e.Path)
		switch {
		case row.Component != "":
			row.Stays, row.From, row.Why = whyStays(set, e)
		case laid && e.IsDir():
			row.Stays, row.From, row.Component = ledger.Added, overlay, ledger.Ours
		default:
			gone = append(gone, e)
			continue
		}
		add(row)
	}
	add(addedRows(files, ours, w.laid)...)
	for _, e := range gone {
		row := ledgerRow(e, set, edited)
		if overlay, laid := ours[e.Path]; laid {
			row.Goes, row.From = ledger.Replaced, overlay
		} else {
			row.Goes, row.From, row.Why = w.whyGoes(set, e)
		}
		if !e.IsDir() {
			row.Component = w.component(*e, row.Package)
		}
		add(row)
	}
	if err := errors.Join(err, book.Close()); err != nil {
		return strip.Layer{}, err
	}
	return strip.Blob(w.in.Cache.Dir, out.Bytes())
}

// ledgerRow returns the row of a path, still without its fate.
func ledgerRow(e *tree.Entry, set *keep.Set, edited map[string]tree.Digest) ledger.Row {
	row := ledger.Row{Path: e.Path, Package: set.Owner(e.Path), Link: e.Link, Type: e.Type}
	if e.Type == image.TypeFile {
		row.Type, row.Bytes = "", e.Size
	}
	if digest, ok := edited[e.Path]; ok {
		row.Digest, row.Edited = e.Digest.String(), digest.String()
	}
	return row
}

func packageRows(set *keep.Set) (out []ledger.Row) {
	gone := set.GonePackages()
	for _, name := range slices.Sorted(maps.Keys(set.Packages)) {
		r := set.Packages[name]
		out = append(out, ledger.Row{Package: name, Stays: r.Rule, From: r.From, Why: r.Why})
	}
	for _, name := range slices.Sorted(maps.Keys(gone)) {
		r := gone[name]
		out = append(out, ledger.Row{Package: name, Goes: r.Rule, From: r.From, Why: r.Why})
	}
	return out
}

// addedRows returns the rows of the overlays' paths that the base doesn't have.
func addedRows(files *tree.Image, ours map[string]string, laid map[string]laid) (out []ledger.Row) {
	for _, p := range slices.Sorted(maps.Keys(ours)) {
		if _, ok := files.Lookup(p); ok {
			continue
		}
		row := ledger.Row{Path: p, Stays: ledger.Added, From: ours[p], Component: ledger.Ours}
		if l, ok := laid[p]; !ok || l.dir {
			row.Type = image.TypeDir
		}
		out = append(out, row)
	}
	return out
}

func whyStays(set *keep.Set, e *tree.Entry) (rule, from, why string) {
	r, ok := set.Paths[e.Path]
	if !ok {
		return ledger.Directory, "", ""
	}
	return r.Rule, r.From, r.Why
}

// whyGoes returns why a path of the base is not in the image's layers.
func (w *work) whyGoes(set *keep.Set, e *tree.Entry) (rule, from, why string) {
	for p := e.Path; p != ""; p = p[:strings.LastIndexByte(p, '/')] {
		if r, ok := w.removed[p]; ok {
			if p == e.Path {
				return ledger.Removed, "", r.Why
			}
			return ledger.Removed, p, r.Why
		}
	}
	if e.IsDir() {
		return ledger.Empty, "", ""
	}
	r := set.Gone(e.Path)
	return r.Rule, r.From, r.Why
}
