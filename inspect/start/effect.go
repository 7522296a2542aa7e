package start

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/slimctl/slimctl/image/tree"
)

// hook marks variables whose value is run.
func (sh *shell) hook(f *frame, vars names, how string, pos syntax.Pos) {
	at := sh.place(f, pos)
	for _, name := range vars {
		h := Hook{Variable: name, How: how, Dormant: f.dormant, Place: at}
		i := slices.IndexFunc(sh.report.Hooks, func(o Hook) bool { return o.Variable == name && o.How == how })
		switch {
		case i < 0:
			sh.report.Hooks = append(sh.report.Hooks, h)
		case sh.report.Hooks[i].Dormant && !h.Dormant:
			sh.report.Hooks[i] = h
		}
	}
}

// absent notes a file that isn't there, unless it may be in a layer that was not read.
func (sh *shell) absent(at tree.Place, format, p string) {
	if !slices.ContainsFunc(sh.img.Layers, func(l tree.Layer) bool { return l.Unread }) {
		sh.note(at, format, p)
	}
}

// write tells of a file that is written, made or rendered.
func (sh *shell) write(f *frame, to value, content value, how string, at tree.Place) {
	p := file(to)
	if p == "" {
		if prefix := to.text; to.known || !strings.HasPrefix(prefix, "/") {
			return // a path of the working directory, /dev/fd or a home
		}
		sh.note(at, "which file is written here can't be told%s", because(to))
		return
	}
	if strings.HasPrefix(p, "/dev/") || strings.HasPrefix(p, "/proc/") {
		return
	}
	decides := content.data.with(content.why, to.data, to.why, f.why)
	if how == ">>" || how == "sed -i" {
		decides = decides.with(sh.touched[p])
	}
	sh.touched[p] = sh.touched[p].with(decides)
	if gives := rights(p); gives != "" {
		text := "it writes to " + p + ", " + gives
		if content.known && content.text != "" {
			text = "it writes " + strings.TrimSpace(content.text) + " to " + p + ", " + gives
		}
		sh.grant(f, at, text)
	}
	if content.rendered && content.file != "" {
		sh.rendering(f, Rendering{Template: content.file, Output: p, Variables: content.variables, Values: content.values, Place: at})
		return
	}
	sh.change(f, Change{Path: p, How: how, Variables: decides, Place: at})
}

func (sh *shell) rendering(f *frame, r Rendering) {
	_, there := sh.img.Stat(r.Template)
	_, made := sh.touched[r.Template]
	r.Dormant = f.dormant || !there && !made
	for i, o := range sh.report.Renderings {
		if o.Template == r.Template && o.Output == r.Output && slices.Equal(o.Variables, r.Variables) {
			sh.report.Renderings[i].Dormant = o.Dormant && r.Dormant
			return
		}
	}
	if len(sh.report.Renderings) == maxScripts {
		sh.note(tree.Place{Path: f.at}, "more than %d files are made from templates: only these are told", maxScripts)
		return
	}
	sh.report.Renderings = append(sh.report.Renderings, r)
}

func (sh *shell) change(f *frame, c Change) {
	c.Dormant = f.dormant
	for i, o := range sh.report.Changes {
		if o.Path == c.Path && o.How == c.How {
			sh.report.Changes[i].Variables = names(o.Variables).with(c.Variables)
			sh.report.Changes[i].Dormant = o.Dormant && c.Dormant
			return
		}
	}
	if len(sh.report.Changes) == 2*maxScripts {
		sh.note(tree.Place{Path: f.at}, "more than %d files are changed: only these are told", 2*maxScripts)
		return
	}
	sh.report.Changes = append(sh.report.Changes, c)
}

func (sh *shell) grant(f *frame, at tree.Place, text string) {
	n := tree.Note{Place: at, Text: text}
	switch {
	case f.dormant || slices.Contains(sh.report.Grants, n):
	case len(sh.report.Grants) == maxNotes:
		sh.note(tree.Place{Path: f.at}, "more than %d rights are given: only these are told", maxNotes)
	default:
		sh.report.Grants = append(sh.report.Grants, n)
	}
}

// rights says what a file gives to whom it names.
func rights(p string) string {
	switch {
	case p == "/etc/sudoers" || strings.HasPrefix(p, "/etc/sudoers.d/"):
		return "which sudo obeys"
	case p == "/etc/passwd" || p == "/etc/shadow" || p == "/etc/group" || p == "/etc/gshadow":
		return "which says who is who"
	case strings.HasPrefix(p, "/etc/pam.d/"):
		return "which says who may log in"
	case p == "/etc/ld.so.preload":
		return "which every program loads"
	case strings.HasPrefix(p, "/etc/cron"), strings.HasPrefix(p, "/var/spool/cron/"):
		return "which cron runs"
	case strings.HasPrefix(p, "/root/.ssh/"), strings.HasSuffix(p, "/.ssh/authorized_keys"):
		return "which ssh lets in by"
	}
	return ""
}
