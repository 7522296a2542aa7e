package verify

import (
	"fmt"
	"slices"

	"github.com/dustin/go-humanize/english"

	"github.com/slimctl/slimctl/image/tree"
)

// compareRules lists the rules of (*checker).compare, for an image with an expected image.
var compareRules = []rule{
	{Rule: indexRule}, {Rule: manifestRule}, {Rule: annotationRule}, {Rule: configRule}, {Rule: historyRule}, {Rule: baseLayerRule}, {Rule: layerRule}, {Rule: fileRule}, {Rule: ledgerRule},
}

// treeRules lists the additional rules with SameTree.
var treeRules = []rule{
	{Rule: Rule{
		ID: "layer-archive", Title: "Every program that unpacks a layer above the base finds the same in it", Severity: Error,
		Why: "The archive of a layer can be made so that one program lays other files than the next: a path that is there twice, headers of which one counts, something behind the end. What was verified is what slimctl, containerd and Docker read. Of the base's layers it is told by not-understood.",
		Fix: "Build again; the archives of a build have none of it.",
	}, each: layersOdd},
}

// above returns the position of the lowest layer above the base's; sure is false if that is unknown.
func (h *held) above() (n int, sure bool) {
	if len(h.want.Base) == 0 || !h.onBase() {
		return len(h.Files.Layers), false
	}
	return len(h.want.Base), true
}

// onBase reports whether the image's lowest layers are the base's.
func (h *held) onBase() bool {
	if len(h.want.Base) > len(h.Files.Layers) {
		return false
	}
	for i, d := range h.want.Base {
		if h.Files.Layers[i].DiffID.String() != d {
			return false
		}
	}
	return true
}

// layersOdd checks the layers that belong neither to the base nor to the expected image.
func layersOdd(h *held) {
	var built []tree.Layer
	by := []string{"gzip"}
	if img := h.in.Want.Images[platformOf(h.Image)]; img != nil {
		built = img.Files.Layers
		if slices.ContainsFunc(built, func(l tree.Layer) bool { return l.Compression == "zstd" }) {
			by = append(by, "zstd")
		}
	}
	for i, l := range h.Files.Layers {
		if slices.Contains(h.want.Base, l.DiffID.String()) || slices.ContainsFunc(built, func(b tree.Layer) bool { return b.Digest == l.Digest }) {
			continue
		}
		if l.Foreign != "" {
			h.reportFinding(fmt.Sprintf("layer %d", i+1), place("/", l), "%s is not written as a build writes it: %s", h.layer(i), l.Foreign)
		}
		if l.Compression != "" && !slices.Contains(by, l.Compression) {
			h.reportFinding(fmt.Sprintf("layer %d", i+1), place("/", l), "%s has the compression %s; a build writes %s", h.layer(i), l.Compression, english.OxfordWordSeries(by, "or"))
		}
	}
}

// unread reports the number of unread layers of a platform.
func unread(h *held) {
	n := 0
	for _, l := range h.Files.Layers {
		if l.Unread {
			n++
		}
	}
	if n > 0 {
		h.addUnchecked("what %s hold, which were not read", english.Plural(n, "layer", ""))
	}
}

// layer returns a layer's name for a sentence.
func (h *held) layer(i int) string {
	l := h.Files.Layers[i]
	return fmt.Sprintf("layer %d (%s)", i+1, shortDigest(l.Digest.String()))
}
