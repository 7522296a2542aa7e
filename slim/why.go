package slim

import (
	"fmt"
	"path"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/build/resolve"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// ProfileLine is a line of a profile about a path.
type ProfileLine struct {
	Source string `json:"source"` // file:line:column, or "profile NAME" for a rule of every profile
	Does   string `json:"does"`   // "removes", "lays", "owns", "keeps"
	What   string `json:"what"`   // the path or glob that it names
	Why    string `json:"why,omitempty"`
	When   string `json:"when,omitempty"`
}

// About returns the lines of a profile about a path or a directory above it. base is the base's entry at the path, or
// nil if unknown.
func About(p *profile.Profile, at string, base *tree.Entry) []ProfileLine {
	out := []ProfileLine{}
	if base != nil && base.Privileged() && !coversAny(p.Privileged, at) {
		out = append(out, ProfileLine{"profile " + p.Name, "removes", at, resolve.WhyPrivileged, ""})
	}
	for _, r := range p.Remove {
		if what := r.Path + r.Glob; covers(what, at) && !coversAny(r.Except, at) {
			out = append(out, ProfileLine{r.Position.String(), "removes", what, r.Why, when(r.When)})
		}
	}
	for _, o := range p.Overlays {
		for _, f := range o.Files {
			if f.Path != at {
				continue
			}
			why := f.Why
			if why == "" {
				why = o.Why
			}
			out = append(out, ProfileLine{f.Position.String(), "lays", f.Path, why, when(f.When)})
		}
	}
	for _, o := range p.Own {
		if !image.Within(at, o.Path) {
			continue
		}
		does := "owns"
		if coversAny(o.Keep, at) {
			does = "keeps"
		}
		out = append(out, ProfileLine{o.Position.String(), does, o.Path, o.Why, ""})
	}
	return out
}

// covers reports whether a path or glob matches at or a directory above it.
func covers(pattern, at string) bool {
	for ; at != "/"; at = path.Dir(at) {
		if doublestar.MatchUnvalidated(pattern, at) {
			return true
		}
	}
	return false
}

func coversAny(patterns []string, at string) bool {
	for _, p := range patterns {
		if covers(p, at) {
			return true
		}
	}
	return false
}

// when describes a condition in words.
func when(w profile.When) string {
	var words []string
	if len(w.Line) > 0 {
		words = append(words, fmt.Sprintf("line %s", profile.Join(w.Line)))
	}
	if len(w.Platform) > 0 {
		words = append(words, profile.Join(w.Platform))
	}
	if w.Exists != "" {
		words = append(words, "the base has "+w.Exists)
	}
	if w.Missing != "" {
		words = append(words, "the base lacks "+w.Missing)
	}
	return strings.Join(words, ", ")
}
