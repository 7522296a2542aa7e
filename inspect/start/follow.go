package start

import (
	"context"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/slimctl/slimctl/image/tree"
)

// Job is a program of supervisord, as far as it matters here.
type Job struct {
	Name string
	// Command are the words that supervisord makes of its command line, %(ENV_X)s as written.
	Command []string
	// Autostart is as written.
	Autostart string
	// Uses are other values of its section that take variables in, such as user and numprocs, as written.
	Uses []string
	// Environment is what its section adds to the environment, as written.
	Environment map[string]string
	Place       tree.Place
}

// Follow follows the commands of the programs that the start leads to, and adds to the report which variables they read,
// which start and stop them, and what of the environment they run. The result has, by name, the programs that each command
// comes to once scripts are followed, with what is known of their arguments when the container is started with the image's
// own environment: ${NAME} or ? stands for the rest. Call it once, after Read.
func (r *Report) Follow(ctx context.Context, jobs []Job) (map[string][][]string, error) {
	sh := r.shell
	sh.ctx = ctx
	line := Line(sh.img)
	out := map[string][][]string{}
	started := &store{}
	for name, v := range sh.started {
		v.exported = true
		started.set(name, v)
	}
	left := maxFollow * maxSteps
	for _, j := range jobs {
		sh.job, sh.jobAt, sh.argv = j.Name, j.Place, nil
		f := sh.frame()
		f.bash = false
		f.vars.up = started
		for _, name := range sorted(j.Environment) {
			v := sh.filled(f, j.Environment[name], j.Place)
			f.vars.set(name, variable{value: v, exported: true})
		}
		var args []value
		for _, w := range j.Command {
			args = append(args, sh.filled(f, w, j.Place))
		}
		for _, w := range j.Uses {
			sh.filled(f, w, j.Place)
		}
		starts := sh.filled(f, j.Autostart, j.Place)
		for _, name := range starts.data.with(starts.why) {
			sh.starts(name, j.Name)
		}
		for _, c := range r.Changes {
			if c.Path == j.Place.Path {
				for _, name := range c.Variables {
					sh.starts(name, j.Name)
				}
			}
		}
		if len(args) > 0 {
			from := max(0, maxSteps-left)
			sh.steps, sh.tooMuch = from, false
			sh.outside(f, args, syntax.Pos{})
			left -= sh.steps - from
		}
		if sh.err != nil {
			return nil, sh.err
		}
		out[j.Name] = sh.argv
		sh.byProgram(f, j, line)
	}
	if !r.Clean {
		sh.finish()
	}
	return out, nil
}

func (sh *shell) starts(name, program string) {
	if !slices.Contains(sh.decides[name], program) {
		sh.decides[name] = append(sh.decides[name], program)
	}
}

// byProgram adds what programs read that are no shell scripts.
func (sh *shell) byProgram(f *frame, j Job, line string) {
	for _, r := range table {
		is := r.by != "" && line != "" && strings.Contains(r.lines, line)
		if !is || j.Name != r.by && !slices.ContainsFunc(sh.argv, func(argv []string) bool { return path.Base(argv[0]) == r.by }) {
			continue
		}
		sh.read(f, r.names, j.Place)
		if r.how != "" {
			h := Hook{Variable: r.names, How: r.how, Place: j.Place}
			if !slices.ContainsFunc(sh.report.Hooks, func(o Hook) bool { return o.Variable == h.Variable && o.How == h.How }) {
				sh.report.Hooks = append(sh.report.Hooks, h)
			}
		}
	}
}

var envName = regexp.MustCompile(`%\(ENV_([^)]*)\)s`)

// filled fills %(ENV_X)s in.
func (sh *shell) filled(f *frame, text string, at tree.Place) value {
	out := literal("")
	for len(text) > 0 {
		m := envName.FindStringSubmatchIndex(text)
		if m == nil {
			return out.and(literal(text))
		}
		out = out.and(literal(text[:m[0]]))
		name := text[m[2]:m[3]]
		v, given := f.vars.get(name)
		if !given {
			v = sh.peek(f, name)
		}
		switch {
		case sh.report.Clean && !given:
			if !slices.ContainsFunc(sh.report.Choices, func(c Choice) bool { return c.Variable == name }) {
				sh.note(at, "supervisord does not start: nothing gives it %s", name)
			}
			v.value = literal(text[m[0]:m[1]])
		case v.outer:
			sh.read(f, name, at)
		}
		out = out.and(v.value)
		text = text[m[1]:]
	}
	return out
}

// Values is the environment of the programs, as far as it is known, when the container is started with the image's own:
// config is that of the image.
func (r *Report) Values(config map[string]string) map[string]string {
	out := map[string]string{}
	if !r.Clean {
		maps.Copy(out, config)
	}
	for _, v := range r.Environment {
		if v.Known {
			out[v.Name] = v.Value
		} else {
			delete(out, v.Name)
		}
	}
	return out
}
