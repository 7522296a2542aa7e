// Package shell walks through the shell scripts of an image without running them: both ways of every choice, and what each
// variable of the environment comes to and decides. Bash's language is followed, and the programs that matter to what an
// image exposes.
package shell

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

// Walk is a walk through what a container runs, and what is known of it so far. Start begins it at the entrypoint; Follow
// goes on with the programs of the supervisord that the entrypoint starts. What can't be followed is a note, never an error
// or a panic. The room is made of these parts:
//
//	walk.go       where a walk begins: at the entrypoint, and at a program of supervisord
//	parse.go      a file's text as a syntax tree, where it is a shell script at all
//	script.go     scripts that run scripts: source, bash FILE, su, a program found in PATH
//	command.go    one command after the other: redirections, pipes, if, for, case, functions
//	branch.go     both ways of a choice, and what they leave together
//	builtin.go    the builtins; programs.go the programs that are known
//	word.go       words, with the expand package; condition.go what [ and [[ ask
//	value.go      a text with what it comes from; variable.go where such are kept
//	effect.go     what is told of it: renderings, changed files, hooks, rights
type Walk struct {
	// Scripts are the shell scripts, in the order that they are met.
	Scripts []Script
	// Supervisord is the main file of the supervisord that is started; empty when none is seen.
	Supervisord string
	// Renderings are the files made from templates.
	Renderings []Rendering
	// Changes are files that are made, changed or removed otherwise.
	Changes []Change
	// Hooks are what runs words of the environment as a command.
	Hooks []Hook
	// Grants are what the scripts write that gives rights, such as a line for sudo.
	Grants []tree.Note
	// Notes tell of what could not be followed.
	Notes []tree.Note
	// Reads are the variables of the environment that are read, by name.
	Reads map[string]*Reading

	ctx     context.Context
	img     *tree.Image
	env     map[string]string // the image's own environment
	scripts map[string]*script
	single  int               // files read one by one
	touched map[string]origin // files that the scripts make or take away, with what decides on them
	steps   int
	tooMuch bool
	started map[string]variable // the environment of the supervisord that is started
	clean   bool                // that and chosen are the whole environment of the programs
	chosen  []string
	job     string // the program whose command is walked through; empty for the start
	jobAt   tree.Place
	argv    [][]string // the programs that a job comes to
	given   *store     // what each job has of started
	left    int        // steps, for all jobs to come
	err     error      // of reading the image
}

// frame is where a command runs.
type frame struct {
	vars  *store
	funcs map[string]function
	saved map[string]variable // in a function, what its local variables were before it
	name  string              // $0
	at    string              // the file that the text is in; empty for the image config
	base  int                 // lines of the file that come before the text
	why   origin              // what decides whether it runs at all
	// dormant is true in a branch that the image's files rule out.
	dormant bool
	stdin   *value
	out     *output // nil when nothing reads it
	end     *ending
	calls   []string // functions and scripts around it
	depth   int
	bash    bool
	bare    bool // nothing of the container's environment came here
}

func (sh *Walk) place(f *frame, pos syntax.Pos) tree.Place {
	if f.at == "" {
		return sh.jobAt
	}
	return sh.img.Place(f.at, f.base+int(pos.Line()))
}

// Note adds a note, in the way of fmt.Sprintf, unless it is there already or there are too many.
func (sh *Walk) Note(at tree.Place, format string, args ...any) {
	n := tree.Note{Place: at, Text: fmt.Sprintf(format, args...)}
	if len(sh.Notes) < maxNotes && !slices.Contains(sh.Notes, n) {
		sh.Notes = append(sh.Notes, n)
	}
}

// room tells whether there is room for one more of what there are n of, and notes it when there isn't.
func (sh *Walk) room(f *frame, n, most int, what string) bool {
	if n >= most {
		sh.Note(tree.Place{Path: f.at}, "more than %d %s: only these are told", most, what)
	}
	return n < most
}

// enter tells whether there is room for one more level.
func (sh *Walk) enter(f *frame) bool {
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
			sh.Note(tree.Place{Path: f.at}, "the start is too long or too deep to be followed to its end")
		}
		return false
	}
	return true
}
