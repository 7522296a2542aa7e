package ocitest

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// maxLines limits the differences that Diff prints; the others are only counted.
const maxLines = 40

// Diff returns the differences of got from want, one line per path or key, or "". V is Node for trees, any for configs.
func Diff[V any](want, got map[string]V) string {
	all := maps.Clone(want)
	if all == nil {
		all = map[string]V{}
	}
	maps.Copy(all, got)
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(all)) {
		w, wanted := want[key]
		g, is := got[key]
		switch {
		case !wanted:
			lines = append(lines, fmt.Sprintf("+ %s: unexpected: %s", key, describe(g)))
		case !is:
			lines = append(lines, fmt.Sprintf("- %s: missing: %s", key, describe(w)))
		case !reflect.DeepEqual(w, g):
			lines = append(lines, fmt.Sprintf("! %s:\n\twant %s\n\tgot  %s", key, describe(w), describe(g)))
		}
	}
	if more := len(lines) - maxLines; more > 0 {
		lines = append(lines[:maxLines], fmt.Sprintf("... and %d more", more))
	}
	return strings.Join(lines, "\n")
}

func describe(v any) string {
	n, ok := v.(Node)
	if !ok {
		text, err := json.Marshal(v)
		if err != nil {
			return fmt.Sprintf("%v", v)
		}
		return string(text)
	}
	s := fmt.Sprintf("%s %04o %d:%d %d bytes", n.Type, n.Mode, n.UID, n.GID, n.Size)
	if n.SHA256 != "" {
		s += " sha256:" + n.SHA256[:12]
	}
	if n.Link != "" {
		s += " -> " + n.Link
	}
	if n.Major != 0 || n.Minor != 0 {
		s += fmt.Sprintf(" device %d,%d", n.Major, n.Minor)
	}
	for _, k := range slices.Sorted(maps.Keys(n.Xattrs)) {
		s += fmt.Sprintf(" %s=%q", k, n.Xattrs[k])
	}
	return s
}
