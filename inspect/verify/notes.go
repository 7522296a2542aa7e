package verify

import (
	"github.com/slimctl/slimctl/image/tree"
)

var noteRules = []rule{
	{Rule: Rule{
		ID: "not-understood", Title: "Everything that was read makes sense", Severity: Error,
		Why: "What slimctl can't make sense of can't be called closed: a line that it reads otherwise than supervisord, nginx or the hub hides what they do.",
		Fix: "Correct the place, or report it as an error of slimctl.",
	}, each: notUnderstood},
	{Rule: Rule{
		ID: "package-not-understood", Title: "Every package database makes sense", Severity: Warning,
		Why: "Which package a file belongs to is asked of these: what is not in them counts as nobody's.",
		Fix: "Correct the place, or report it as an error of slimctl.",
	}, each: packagesNotUnderstood},
}

func notUnderstood(h *held) {
	other := map[tree.Note]bool{} // covered by other rules
	for _, c := range h.Surface.Nginx {
		for _, n := range c.Notes {
			other[n] = true
		}
	}
	for _, n := range h.Packages.Notes {
		other[n] = true
	}
	for _, n := range h.Surface.Notes {
		if !other[n] {
			h.reportFinding(n.Place.Path, []tree.Place{n.Place}, "%s", n.Text)
		}
	}
}

func packagesNotUnderstood(h *held) {
	for _, n := range h.Packages.Notes {
		h.reportFinding(n.Place.Path, []tree.Place{n.Place}, "%s", n.Text)
	}
}
