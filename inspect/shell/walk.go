package shell

import (
	"context"
	"path"
	"regexp"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// New is a walk through img, whose own environment is env.
func New(img *tree.Image, env map[string]string) *Walk {
	return &Walk{
		img: img, env: env, scripts: map[string]*script{}, Reads: map[string]*Reading{},
		touched: map[string]origin{}, left: maxFollow * maxSteps,
	}
}

// Start walks through the command that a container starts: one word at least. Call it once, before Follow.
func (sh *Walk) Start(ctx context.Context, command []string) error {
	sh.ctx = ctx
	f := sh.frame()
	var args []value
	for _, w := range command {
		args = append(args, literal(w))
	}
	if err := sh.prefetch(command[0]); err != nil {
		return err
	}
	sh.outside(f, args, syntax.Pos{})
	if len(sh.Scripts) == 0 && sh.Supervisord == "" && len(sh.Notes) == 0 {
		sh.Note(sh.img.Place(command[0], 0), "it is what the image starts, and it can't be followed")
	}
	return sh.err
}

// Only takes the place of Start where no script is: given is the whole environment of the programs, with the variables
// that are chosen at start.
func (sh *Walk) Only(given []Variable, chosen []string) {
	sh.clean, sh.chosen = true, chosen
	sh.started = map[string]variable{}
	for _, v := range given {
		sh.started[v.Name] = variable{value: literal(v.Value), exported: true}
	}
}

// Environment is what the scripts set for the programs, sorted by name.
func (sh *Walk) Environment() []Variable {
	var out []Variable
	for _, name := range sorted(sh.started) {
		v := sh.started[name]
		if !v.outer || len(v.from) > 1 || v.text != sh.env[name] {
			if !v.known {
				v.text = ""
			}
			out = append(out, Variable{name, v.text, v.known, v.from.names(decides)})
		}
	}
	return out
}

// Read adds that a variable of the environment is read.
func (sh *Walk) Read(name string, at tree.Place) { sh.read(&frame{}, name, at) }

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

// Follow walks through the command of a program that the start leads to. argv are the programs that it comes to once
// scripts are followed, with what is known of their arguments when the container is started with the image's own
// environment: ${NAME} or ? stands for the rest. decide are the variables that start and stop it.
func (sh *Walk) Follow(ctx context.Context, j Job) (argv [][]string, decide []string, err error) {
	sh.ctx = ctx
	sh.job, sh.jobAt, sh.argv = j.Name, j.Place, nil
	f := sh.frame()
	f.bash = false
	if sh.given == nil {
		sh.given = &store{}
		for name, v := range sh.started {
			v.exported = true
			sh.given.set(name, v)
		}
	}
	f.vars.up = sh.given
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
	decide = starts.from.names(decides)
	for _, c := range sh.Changes {
		if c.Path == j.Place.Path {
			decide = append(slices.Clip(decide), c.Variables...)
		}
	}
	if len(args) > 0 {
		from := max(0, maxSteps-sh.left)
		sh.steps, sh.tooMuch = from, false
		sh.outside(f, args, syntax.Pos{})
		sh.left -= sh.steps - from
	}
	return sh.argv, decide, sh.err
}

// frame is where the entrypoint runs.
func (sh *Walk) frame() *frame {
	f := &frame{vars: &store{}, funcs: map[string]function{}, end: &ending{}, bash: true}
	sh.setArgs(f, nil)
	return f
}

// prefetch reads the scripts around the first one at once: each read of an image goes through whole layers.
func (sh *Walk) prefetch(first string) error {
	e, ok := sh.img.Stat(first)
	if !ok {
		return nil
	}
	var paths []string
	around := sh.img.Dir(path.Dir(e.Path))
	for _, d := range around {
		if d.IsDir() {
			around = append(around, sh.img.Dir(d.Path)...)
		}
	}
	for _, d := range around {
		if strings.HasSuffix(d.Path, ".sh") && d.Type == image.TypeFile && d.Size <= maxScript && len(paths) < maxScripts/2 {
			paths = append(paths, d.Path)
		}
	}
	if len(paths) == 0 {
		return nil
	}
	content, err := sh.img.ReadFiles(sh.ctx, paths...)
	if err != nil {
		return err
	}
	for p, data := range content {
		s := &script{path: p}
		s.parse(string(data))
		sh.scripts[p] = s
	}
	return nil
}

var envName = regexp.MustCompile(`%\(ENV_([^)]*)\)s`)

// filled fills %(ENV_X)s in.
func (sh *Walk) filled(f *frame, text string, at tree.Place) value {
	out, last := literal(""), 0
	for _, m := range envName.FindAllStringSubmatchIndex(text, -1) {
		name := text[m[2]:m[3]]
		_, given := f.vars.get(name)
		v := sh.peek(f, name)
		switch {
		case sh.clean && !given:
			if !slices.Contains(sh.chosen, name) {
				sh.Note(at, "supervisord does not start: nothing gives it %s", name)
			}
			v.value = literal(text[m[0]:m[1]])
		case v.outer:
			sh.read(f, name, at)
		}
		out = out.and(literal(text[last:m[0]])).and(v.value)
		last = m[1]
	}
	return out.and(literal(text[last:]))
}
