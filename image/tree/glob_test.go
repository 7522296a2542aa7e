package tree_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// TestGlobSaysWhatItLeavesOut: a pattern that isn't understood, and paths beyond the limit, are no silent miss.
func TestGlobSaysWhatItLeavesOut(t *testing.T) {
	img, err := tree.FromFiles(t.Context(), nil, image.Bytes("/c/a.conf", 0o644, nil), image.Bytes("/c/b.conf", 0o644, nil),
		image.Bytes("/c/.h.conf", 0o644, nil), image.Symlink("/l", "c"), image.Symlink("/c/gone.conf", "nowhere"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		pattern string
		limit   int
		want    []string
		told    bool
	}{
		{"/c/*.conf", 9, []string{"/c/a.conf", "/c/b.conf", "/c/gone.conf"}, false},
		{"/l/[!b].conf", 9, []string{"/l/a.conf"}, false},
		{"/c/.*", 9, []string{"/c/.h.conf"}, false},
		{"/c/*.conf", 1, []string{"/c/a.conf"}, true},
		{"/c/[a.conf", 9, nil, true},
		{"/c/[x/a.conf]", 9, nil, true},
		{"/c/[[:alpha:]].conf", 9, nil, true},
		{"/c/" + strings.Repeat("*", 4096), 9, nil, true},
	} {
		got, err := tree.Glob(img, tt.pattern, tt.limit)
		if !slices.Equal(got, tt.want) || (err != nil) != tt.told {
			t.Errorf("%s: %q, %v; want %q", tt.pattern, got, err, tt.want)
		}
	}
}
