package diff

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/internal/rawname"
)

// MaxText is the largest Options.Text, in bytes.
const MaxText = 1 << 20

// Limits for the files of one image whose texts are compared, and so for memory and time: their number and their total
// bytes. Small files come first.
const (
	maxTexts     = 1000
	maxTextBytes = 8 << 20
)

// addTexts adds the unified diffs of files of at most limit bytes.
func (c *comparison) addTexts(ctx context.Context, d *Diff, limit int64) error {
	limit = min(limit, MaxText)
	type candidate struct {
		*Change
		old, new int64 // sizes
	}
	var candidates []candidate
	for i := range d.Files {
		ch := &d.Files[i]
		if ch.Kind != Modified || typeOf(ch.Old) != image.TypeFile {
			continue
		}
		old, new := fileOf(c.base.Tree, ch.Old), fileOf(c.slim.Tree, ch.New)
		switch {
		case max(old.Size, new.Size) > limit:
			ch.NoText = Large
		default:
			candidates = append(candidates, candidate{ch, old.Size, new.Size})
		}
	}
	slices.SortStableFunc(candidates, func(a, b candidate) int { return cmp.Compare(a.old+a.new, b.old+b.new) })
	var paths []string
	var sum int64
	for i, ch := range candidates {
		if sum += max(ch.old, ch.new); sum > maxTextBytes || i == maxTexts {
			for _, out := range candidates[i:] {
				out.NoText = Limit
			}
			d.Notes = append(d.Notes, fmt.Sprintf("%d changed files are without their texts: there are %d others already", len(candidates)-i, i))
			candidates = candidates[:i]
			break
		}
		paths = append(paths, ch.Path)
	}
	if len(paths) == 0 {
		return nil
	}
	olds, err := c.base.ReadFiles(ctx, paths...)
	if err != nil {
		return fmt.Errorf("%s: %w", d.Base.Reference, err)
	}
	news, err := c.slim.ReadFiles(ctx, paths...)
	if err != nil {
		return fmt.Errorf("%s: %w", d.Slim.Reference, err)
	}
	for _, ch := range candidates {
		old, new := olds[ch.Path], news[ch.Path]
		if !isText(old) || !isText(new) {
			ch.NoText = Binary
			continue
		}
		ch.Text = udiff.Unified("base"+rawname.Shown(ch.Path), "slim"+rawname.Shown(ch.Path), string(old), string(new))
	}
	return nil
}

func isText(data []byte) bool { return utf8.Valid(data) && bytes.IndexByte(data, 0) < 0 }
