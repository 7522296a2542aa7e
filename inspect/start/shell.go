package start

import (
	"context"
	"fmt"
	"slices"

	"mvdan.cc/sh/v3/syntax"

	"github.com/slimctl/slimctl/image/tree"
)

// Bounds on what scripts can make us do.
const (
	maxScript  = 256 << 10 // bytes of one
	maxScripts = 500
	maxReads   = 100    // files that are read one by one, since each may mean to go through a layer
	maxSteps   = 50_000 // commands walked through, from the entrypoint on and for one program of supervisord
	maxFollow  = 4      // times that, for all programs of supervisord
	maxDepth   = 250    // branches, functions and scripts in each other
	maxLoop    = 64     // rounds of one for loop
	maxNotes   = 200
	maxPlaces  = 50 // of one variable
)

// shell walks through scripts without running anything: both ways of every choice, and what each variable of the
// environment comes to and decides. It is made of these parts:
//
//	parse.go      a file's text as a syntax tree, where it is a shell script at all
//	script.go     scripts that run scripts: source, bash FILE, a program found in PATH
//	statement.go  one command after the other: redirections, pipes, if, for, case
//	branch.go     both ways of a choice, and what they leave together
//	call.go       a command with its words: function, builtin or program
//	builtin.go    the builtins; programs.go, wrapper.go and envsubst.go the programs that are known
//	word.go       words: parameters, substitutions, arithmetic; condition.go what [ and [[ ask
//	value.go      a text with what it depends on; store.go, variable.go, output.go where such are kept
//	status.go     how a command ends: yes, no or maybe
//	effect.go     what is told of it: renderings, changed files, hooks, rights
//
// start.go begins at the entrypoint, follow.go at a program of supervisord, and switches.go says at the end what each
// variable does.
type shell struct {
	ctx     context.Context
	img     *tree.Image
	report  *Report
	env     map[string]string // the image's own environment
	scripts map[string]*script
	// templates are the placeholders of files that envsubst reads, by path.
	templates map[string][]string
	single    int // files read one by one
	reads     map[string]*reading
	touched   map[string]names // files that the scripts make or take away, with what decides on them
	steps     int
	tooMuch   bool
	frames    int                 // names the local variables of each call
	started   map[string]variable // the environment of the supervisord that is started
	decides   map[string][]string // the programs that a variable starts or stops
	job       string              // the program whose command is walked through; empty for the start
	jobAt     tree.Place
	argv      [][]string // the programs that a job comes to
	err       error      // of reading the image
}

// frame is where a command runs.
type frame struct {
	vars   *store
	funcs  map[string]function
	locals map[string]string // the key of each local variable by its name
	args   *[]value
	name   string // $0
	at     string // the file that the text is in; empty for the image config
	base   int    // lines of the file that come before the text
	why    names  // variables that decide whether it runs at all
	// dormant is true in a branch that the image's files rule out.
	dormant bool
	stdin   *value
	out     *output
	calls   []string // functions and scripts around it
	depth   int
	bash    bool
	bare    bool // nothing of the container's environment came here
}

func (sh *shell) place(f *frame, pos syntax.Pos) tree.Place {
	if f.at == "" {
		return sh.jobAt
	}
	return sh.img.Place(f.at, f.base+int(pos.Line()))
}

func (sh *shell) note(at tree.Place, format string, args ...any) {
	n := tree.Note{Place: at, Text: fmt.Sprintf(format, args...)}
	if len(sh.report.Notes) < maxNotes && !slices.Contains(sh.report.Notes, n) {
		sh.report.Notes = append(sh.report.Notes, n)
	}
}

// enter tells whether there is room for one more level.
func (sh *shell) enter(f *frame) bool {
	sh.steps++
	if sh.err == nil {
		sh.err = context.Cause(sh.ctx)
	}
	if sh.err != nil {
		return false
	}
	if sh.steps > maxSteps || f.depth > maxDepth {
		if !sh.tooMuch {
			sh.tooMuch = true
			sh.note(tree.Place{Path: f.at}, "the start is too long or too deep to be followed to its end")
		}
		return false
	}
	return true
}
