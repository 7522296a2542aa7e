package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/inspect/size"
)

// mapCells returns the cells of a treemap for each side. A component has the same color on all sides.
func mapCells(sides []size.Sizes) []map[string]any {
	type cell struct {
		Name  string `json:"name"`
		Bytes int64  `json:"bytes"`
		Color int    `json:"color"`
		Room  int64  `json:"room"` // bytes of the bigger side: both sides have one layout
		Note  string `json:"note,omitempty"`
	}
	by := make([]map[string]int64, len(sides))
	most := map[string]int64{}
	for i, s := range sides {
		by[i] = map[string]int64{}
		for _, c := range s.Components {
			by[i][c.Name] += c.Size
			most[c.Name] = max(most[c.Name], by[i][c.Name])
		}
	}
	names := make([]string, 0, len(most))
	for name := range most {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(most[b], most[a]), cmp.Compare(a, b)) })
	const colors = 9
	color := map[string]int{}
	for _, name := range names {
		if color[name] = colors; name != "other" && len(color) <= colors {
			color[name] = len(color) - 1
		}
	}
	out := make([]map[string]any, len(sides))
	for i := range sides {
		cells, total := []cell{}, int64(0)
		for _, name := range names {
			bytes := by[i][name]
			if most[name] <= 0 {
				continue
			}
			c := cell{Name: quote(cut(name, maxCell)), Bytes: max(bytes, 0), Color: color[name], Room: most[name]}
			if len(sides) == 2 {
				switch other := by[1-i][name]; {
				case other <= 0:
					c.Note = []string{"gone in slim", "new in slim"}[i]
				case bytes <= 0:
					c.Note = []string{"not in base", "gone"}[i]
				case i == 1 && bytes != other:
					c.Note = change(bytes - other)
				}
			}
			total += bytes
			cells = append(cells, c)
		}
		out[i] = map[string]any{"total": total, "cells": cells[:min(len(cells), 400)]}
	}
	return out
}

func mapLabel(side string, s size.Sizes) string {
	var words []string
	for _, c := range s.Components[:min(len(s.Components), 5)] {
		words = append(words, quote(cut(c.Name, 60))+" "+Bytes(c.Size))
	}
	return fmt.Sprintf("Treemap of %s by component: %s; the table below has all", side, strings.Join(words, ", "))
}

// stacks returns the layers of each side; their width is their download.
func stacks(names []string, sides []size.Sizes) ([]stack, []key) {
	most := int64(1)
	in := map[string]int{}
	for _, s := range sides {
		most = max(most, s.Transfer)
		for _, l := range s.Layers {
			in[l.Digest]++
		}
	}
	classes := map[string]bool{}
	var out []stack
	for i, s := range sides {
		k := stack{Side: names[i], Total: Bytes(s.Transfer)}
		k.Label = strings.TrimSpace(names[i]+" "+count(len(s.Layers), "layer")) + ", " + k.Total + " to download"
		x := 0.0
		for n, l := range s.Layers[:min(len(s.Layers), manyLayers)] {
			wide := 1000 * float64(l.Size) / float64(most)
			class := "both"
			if len(sides) == 2 && in[l.Digest] < 2 {
				class = k.Side
			}
			title := fmt.Sprintf("layer %d, %s: %s to download, %s unpacked, %s of that visible. %s",
				n+1, short(l.Digest), Bytes(l.Size), Bytes(l.Unpacked), Bytes(l.Visible), cut(quote(l.CreatedBy), maxCell))
			k.Bars = append(k.Bars, bar{class, title, x, max(0, wide-0.8)})
			classes[class] = true
			if l.Unpacked > 0 && l.Visible < l.Unpacked && !l.Unread {
				hidden := wide * (1 - float64(max(l.Visible, 0))/float64(l.Unpacked))
				k.Bars = append(k.Bars, bar{"hidden", title, x + max(0, wide-0.8-hidden), min(hidden, max(0, wide-0.8))})
				classes["hidden"] = true
			}
			x += wide
		}
		out = append(out, k)
	}
	words := map[string]string{
		"both": "shared by both", "base": "only in base", "slim": "only in slim", "hidden": "hidden by a layer above, and still transferred",
	}
	if len(sides) == 1 {
		words["both"] = "visible"
	}
	var legend []key
	for _, class := range []string{"both", "base", "slim", "hidden"} {
		if classes[class] {
			legend = append(legend, key{class, words[class]})
		}
	}
	return out, legend
}
