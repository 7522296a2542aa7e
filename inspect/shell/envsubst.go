package shell

import (
	"regexp"
	"slices"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// placeholder is how envsubst finds variables.
var placeholder = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\$([A-Za-z_][A-Za-z0-9_]*)`)

func placeholders(text string) []string {
	var out []string
	for _, m := range placeholder.FindAllStringSubmatch(text, -1) {
		name := m[1] + m[2]
		if !slices.Contains(out, name) && len(out) < 10*maxNames {
			out = append(out, name)
		}
	}
	return out
}

// envsubst replaces variables in its input: those of its argument, or all.
func (sh *Walk) envsubst(f *frame, args []value, at tree.Place) value {
	v := sh.stdin(f)
	ops := operands(args)
	var vars []string
	switch {
	case len(ops) > 0 && ops[0].known:
		v.variables = placeholders(ops[0].text)
		if v.variables == nil {
			v.variables = []string{}
		}
		vars = v.variables
	case len(ops) > 0:
		sh.Note(at, "which variables envsubst replaces here can't be told%s", because(ops[0]))
		fallthrough
	default:
		v.variables = nil
		if v.file != "" {
			if e, ok := sh.img.Stat(v.file); ok && e.Type == image.TypeFile && e.Size <= maxScript {
				_, ok := sh.templates[e.Path]
				switch {
				case ok:
				case sh.single >= maxReads:
					sh.Note(at, "which variables envsubst replaces in %s is not known: there are too many templates", e.Path)
				default:
					sh.single++
					data, err := sh.img.ReadFile(sh.ctx, e.Path)
					if err != nil && sh.err == nil {
						sh.err = err
					}
					sh.templates[e.Path] = placeholders(string(data))
				}
				vars = sh.templates[e.Path]
			}
		}
	}
	v.values = map[string]string{}
	for _, name := range vars {
		w := sh.peek(f, name)
		if w.outer {
			sh.read(f, name, at)
		}
		v.data, v.why = v.data.with(w.data), v.why.with(w.why)
		if w.known {
			v.values[name] = w.text
		}
	}
	if v.file == "" {
		sh.Note(at, "which template envsubst reads here can't be told")
	}
	v.known, v.rendered, v.text = false, true, ""
	return v
}
