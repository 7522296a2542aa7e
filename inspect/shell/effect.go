package shell

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/slimctl/slimctl/image/tree"
)

// Script is a script that runs at start.
type Script struct {
	// Path is its path with links followed; Link is the path that is run, when that is a link.
	Path string `json:"path"`
	Link string `json:"link,omitempty"`
	// By is "entrypoint", the script that runs it, or the supervisord program whose command it is.
	By    string     `json:"by"`
	Place tree.Place `json:"place"`
}

// Rendering is a file that envsubst makes from another one, or a copy of it: then Variables is empty and not nil.
type Rendering struct {
	Template string `json:"template"`
	Output   string `json:"output"`
	// Variables are the variables that are replaced; nil for all.
	Variables []string `json:"variables,omitempty"`
	// Values are the known values of Variables when the container is started with the image's own environment.
	Values map[string]string `json:"values,omitempty"`
	// Once is true when the template is deleted afterwards.
	Once bool `json:"once,omitempty"`
	// Dormant is true when it never happens with the image's own files: the template is missing, or a script tests for
	// a file and takes the other branch.
	Dormant bool       `json:"dormant,omitempty"`
	Place   tree.Place `json:"place"`
}

// Change is a file that scripts make, change or remove by other means than envsubst.
type Change struct {
	Path string `json:"path"`
	// How is the means: ">", ">>", "touch", "tee", "sed -i", "rm".
	How string `json:"how"`
	// Variables are the variables of the environment that decide on its content or on whether it happens, sorted.
	Variables []string `json:"variables,omitempty"`
	// Dormant is as in Rendering.
	Dormant bool       `json:"dormant,omitempty"`
	Place   tree.Place `json:"place"`
}

// Hook runs a variable's value as a command, or as part of one that a shell reads.
type Hook struct {
	Variable string `json:"variable"`
	// How is the program: "bash -c", "eval"; "exec" and "command" for a variable that names the program itself.
	How string `json:"how"`
	// Dormant is as in Rendering.
	Dormant bool       `json:"dormant,omitempty"`
	Place   tree.Place `json:"place"`
}

// addHook adds a hook for each of the variables vars, whose value is run by how.
func (sh *Walk) addHook(f *frame, vars []string, how string, pos syntax.Pos) {
	at := sh.placeOf(f, pos)
	for _, name := range vars {
		h := Hook{Variable: name, How: how, Dormant: f.dormant, Place: at}
		i := slices.IndexFunc(sh.Hooks, func(o Hook) bool { return o.Variable == name && o.How == how })
		switch {
		case i < 0:
			sh.Hooks = append(sh.Hooks, h)
		case sh.Hooks[i].Dormant && !h.Dormant:
			sh.Hooks[i] = h
		}
	}
}

// noteAbsent adds a note about a missing file, unless the file may be in a layer that was not read.
func (sh *Walk) noteAbsent(at tree.Place, format, p string) {
	if !slices.ContainsFunc(sh.img.Layers, func(l tree.Layer) bool { return l.Unread }) {
		sh.Note(at, format, p)
	}
}

// recordWrite records that content is written to a file: as a rendering, or as a change; and as a grant
// when the file gives rights.
func (sh *Walk) recordWrite(f *frame, to value, content value, how string, at tree.Place) {
	p := pathOf(to)
	if p == "" {
		if !to.known && strings.HasPrefix(to.text, "/") { // any other is in the working directory or a home
			sh.Note(at, "which file is written here can't be told%s", dependencyNote(to))
		}
		return
	}
	if strings.HasPrefix(p, "/dev/") || strings.HasPrefix(p, "/proc/") {
		return
	}
	by := origin(nil).addOrigins(decides, content.from, to.from, f.why)
	if how == ">>" || how == "sed -i" {
		by = by.addOrigins(decides, sh.touched[p])
	}
	sh.touched[p] = sh.touched[p].addOrigins(decides, by)
	if gives := rightsBy(p); gives != "" {
		text := "it writes to " + p + ", " + gives
		if content.known && content.text != "" {
			text = "it writes " + strings.TrimSpace(content.text) + " to " + p + ", " + gives
		}
		sh.addGrant(f, at, text)
	}
	if fill := content.filled; fill != nil && content.file != "" {
		sh.addRendering(f, Rendering{Template: content.file, Output: p, Variables: fill.variables, Values: fill.values, Place: at})
		return
	}
	sh.addChange(f, Change{Path: p, How: how, Place: at}, by)
}

// addRendering adds r to Renderings, or merges it into the equal one there.
func (sh *Walk) addRendering(f *frame, r Rendering) {
	_, there := sh.img.Stat(r.Template)
	_, made := sh.touched[r.Template]
	r.Dormant = f.dormant || !there && !made
	for i, o := range sh.Renderings {
		if o.Template == r.Template && o.Output == r.Output && slices.Equal(o.Variables, r.Variables) {
			sh.Renderings[i].Dormant = o.Dormant && r.Dormant
			return
		}
	}
	if sh.hasRoom(f, len(sh.Renderings), maxScripts, "files are made from templates") {
		sh.Renderings = append(sh.Renderings, r)
	}
}

// addChange adds c, which by decides on, to Changes, or merges it into the one of the same path and means.
func (sh *Walk) addChange(f *frame, c Change, by origin) {
	c.Dormant = f.dormant
	i := slices.IndexFunc(sh.Changes, func(o Change) bool { return o.Path == c.Path && o.How == c.How })
	if i < 0 {
		if sh.hasRoom(f, len(sh.Changes), 2*maxScripts, "files are changed") {
			c.Variables = by.namesAtLeast(decides)
			sh.Changes = append(sh.Changes, c)
		}
		return
	}
	o := &sh.Changes[i]
	for _, name := range by.namesAtLeast(decides) {
		if !slices.Contains(o.Variables, name) && len(o.Variables) < maxNames {
			o.Variables = append(slices.Clip(o.Variables), name)
		}
	}
	slices.Sort(o.Variables)
	o.Dormant = o.Dormant && c.Dormant
}

// addGrant adds text to Grants, unless the command is dormant.
func (sh *Walk) addGrant(f *frame, at tree.Place, text string) {
	n := tree.Note{Place: at, Text: text}
	if !f.dormant && !slices.Contains(sh.Grants, n) && sh.hasRoom(f, len(sh.Grants), maxNotes, "rights are given") {
		sh.Grants = append(sh.Grants, n)
	}
}

// rightsBy returns, as a relative clause, how the file at p gives rights, or "" when it doesn't.
func rightsBy(p string) string {
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
