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

// New returns a walk through img, whose config sets the environment env.
func New(img *tree.Image, env map[string]string) *Walk {
	return &Walk{
		img: img, env: env, scripts: map[string]*script{}, Reads: map[string]*Reading{},
		touched: map[string]origin{}, left: maxFollow * maxSteps,
	}
}

// Start walks through the command that a container starts: one word at least. Call it once, before Follow.
func (sh *Walk) Start(ctx context.Context, command []string) error {
	sh.ctx = ctx
	f := sh.newFrame()
	var args []value
	for _, w := range command {
		args = append(args, literal(w))
	}
	if err := sh.prefetchScripts(command[0]); err != nil {
		return err
	}
	sh.runExternal(f, args, syntax.Pos{})
	if len(sh.Scripts) == 0 && sh.Supervisord == "" && len(sh.Notes) == 0 {
		sh.Note(sh.img.Place(command[0], 0), "the image starts this file, and it can't be followed")
	}
	return sh.err
}

// AssumeEnvironment replaces Start for an image whose entrypoint is no script. given is the whole environment of the
// programs, apart from the variables in chosen, which are set at start.
func (sh *Walk) AssumeEnvironment(given []Variable, chosen []string) {
	sh.clean, sh.chosen = true, chosen
	sh.started = map[string]variable{}
	for _, v := range given {
		sh.started[v.Name] = variable{value: literal(v.Value), exported: true}
	}
}

// Environment returns the variables that the scripts set for the programs, sorted by name.
func (sh *Walk) Environment() []Variable {
	var out []Variable
	for _, name := range sortedKeys(sh.started) {
		v := sh.started[name]
		if !v.outer || len(v.from) > 1 || v.text != sh.env[name] {
			if !v.known {
				v.text = ""
			}
			out = append(out, Variable{name, v.text, v.known, v.from.namesAtLeast(decides)})
		}
	}
	return out
}

// AddRead records that a program reads a variable of the environment.
func (sh *Walk) AddRead(name string, at tree.Place) { sh.recordRead(&frame{}, name, at) }

// Job is a program of supervisord, reduced to the values that a walk uses.
type Job struct {
	Name string
	// Command are the words that supervisord makes of its command line, %(ENV_X)s as written.
	Command []string
	// Autostart is as written.
	Autostart string
	// Uses are other values of its section in which variables are replaced, such as user and numprocs, as written.
	Uses []string
	// Environment is what its section adds to the environment, as written.
	Environment map[string]string
	Place       tree.Place
}

// Follow walks through the command of a program that the start leads to. argv lists the programs that the command runs
// in the end, with their arguments as far as they are known for a container started with the image's own environment:
// ${NAME} or ? stands for the rest. decide lists the variables that start or stop the program.
func (sh *Walk) Follow(ctx context.Context, j Job) (argv [][]string, decide []string, err error) {
	sh.ctx = ctx
	sh.job, sh.jobAt, sh.argv = j.Name, j.Place, nil
	f := sh.newFrame()
	f.bash = false
	if sh.given == nil {
		sh.given = &store{}
		for name, v := range sh.started {
			v.exported = true
			sh.given.setVariable(name, v)
		}
	}
	f.vars.up = sh.given
	for _, name := range sortedKeys(j.Environment) {
		v := sh.fillEnvironment(f, j.Environment[name], j.Place)
		f.vars.setVariable(name, variable{value: v, exported: true})
	}
	var args []value
	for _, w := range j.Command {
		args = append(args, sh.fillEnvironment(f, w, j.Place))
	}
	for _, w := range j.Uses {
		sh.fillEnvironment(f, w, j.Place)
	}
	starts := sh.fillEnvironment(f, j.Autostart, j.Place)
	decide = starts.from.namesAtLeast(decides)
	for _, c := range sh.Changes {
		if c.Path == j.Place.Path {
			decide = append(slices.Clip(decide), c.Variables...)
		}
	}
	if len(args) > 0 {
		from := max(0, maxSteps-sh.left)
		sh.steps, sh.tooMuch = from, false
		sh.runExternal(f, args, syntax.Pos{})
		sh.left -= sh.steps - from
	}
	return sh.argv, decide, sh.err
}

// newFrame returns the frame in which the entrypoint runs.
func (sh *Walk) newFrame() *frame {
	f := &frame{vars: &store{}, funcs: map[string]function{}, end: &ending{}, bash: true}
	sh.setPositionals(f, nil)
	return f
}

// prefetchScripts loads the scripts around the first one in one read: each read of an image goes through whole layers.
func (sh *Walk) prefetchScripts(first string) error {
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
		s.parseText(string(data))
		sh.scripts[p] = s
	}
	return nil
}

// envName matches supervisord's references to the environment.
var envName = regexp.MustCompile(`%\(ENV_([^)]*)\)s`)

// fillEnvironment returns text with each %(ENV_X)s replaced by the value of X.
func (sh *Walk) fillEnvironment(f *frame, text string, at tree.Place) value {
	out, last := literal(""), 0
	for _, m := range envName.FindAllStringSubmatchIndex(text, -1) {
		name := text[m[2]:m[3]]
		_, given := f.vars.getVariable(name)
		v := sh.peekVariable(f, name)
		switch {
		case sh.clean && !given:
			if !slices.Contains(sh.chosen, name) {
				sh.Note(at, "supervisord does not start: nothing gives it %s", name)
			}
			v.value = literal(text[m[0]:m[1]])
		case v.outer:
			sh.recordRead(f, name, at)
		}
		out = out.concat(literal(text[last:m[0]])).concat(v.value)
		last = m[1]
	}
	return out.concat(literal(text[last:]))
}
