package verify

import (
	"slices"

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
	{Rule: Rule{
		ID: "not-read", Title: "Every part of the surface was read", Severity: Error,
		Why: "A rule says nothing about what it was not shown.",
		Fix: "Report it as an error of slimctl.",
	}, each: notRead},
}

func notUnderstood(h *held) error {
	s := h.Surface
	notes := slices.Clone(s.Notes)
	if s.Supervisord != nil {
		notes = append(notes, s.Supervisord.Notes...)
	}
	if s.Start != nil {
		notes = append(notes, s.Start.Notes...)
	}
	if s.MCP != nil {
		notes = append(notes, s.MCP.Notes...)
	}
	if s.Privilege != nil {
		notes = append(notes, s.Privilege.Notes...)
	}
	other := map[tree.Note]bool{} // that other rules have
	for _, c := range s.Nginx {
		for _, n := range c.Notes {
			other[n] = true
		}
	}
	if h.Packages != nil {
		for _, n := range h.Packages.Notes {
			other[n] = true
		}
	}
	for _, n := range notes {
		if !other[n] {
			h.found(n.Place.Path, []tree.Place{n.Place}, "%s", n.Text)
		}
	}
	return nil
}

func packagesNotUnderstood(h *held) error {
	if h.Packages != nil {
		for _, n := range h.Packages.Notes {
			h.found(n.Place.Path, []tree.Place{n.Place}, "%s", n.Text)
		}
	}
	return nil
}

func notRead(h *held) error {
	s := h.Surface
	for _, part := range []struct {
		what    string
		missing bool
	}{
		{"what the image does at its start", s.Start == nil},
		{"its MCP servers", s.MCP == nil},
		{"its accounts and files with rights", s.Privilege == nil},
		{"its packages", h.Packages == nil},
		{"its programs", s.Supervisord == nil && len(h.want.Programs) > 0},
		{"its routes", len(s.Nginx) == 0 && len(h.want.Routes) > 0},
	} {
		if part.missing {
			h.found("", nil, "nothing is known of %s", part.what)
		}
	}
	if len(h.want.Laid) == 0 {
		h.found("", nil, "the profile is not resolved: which files it lays is not known")
	}
	return nil
}
