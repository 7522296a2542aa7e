// Package shell walks through the shell scripts of an image without running them. It takes both branches of every choice, and
// records the value of each variable of the environment and what depends on it. It follows the language of bash, and the
// programs that matter to what an image exposes. New returns a Walk; its method Start comes first.
//
//	walk.go       Start, at the entrypoint; Follow, at a program of supervisord
//	parse.go      the syntax tree of a file, if the file is a shell script
//	script.go     commands that run scripts: source, bash FILE, su, a program found in PATH
//	command.go    statements: redirections, pipes, if, for, case, functions
//	branch.go     both branches of a choice, and how their results are merged
//	builtin.go    the builtins; programs.go the known programs
//	word.go       words, by the expand package; condition.go [ and [[
//	value.go      values and their origin; variable.go the variables
//	effect.go     the findings: renderings, changed files, hooks, rights
package shell

import (
	"context"
	"fmt"
	"slices"

	"mvdan.cc/sh/v3/syntax"

	"github.com/slimctl/slimctl/image/tree"
)

// Bounds on the work and the findings that scripts can cause.
const (
	maxScript  = 256 << 10 // bytes of one script
	maxScripts = 500
	maxReads   = 100    // files that are read one by one, since each read may inflate a whole layer
	maxSteps   = 50_000 // commands walked through, from the entrypoint on and for one program of supervisord
	maxFollow  = 4      // times that, for all programs of supervisord
	maxDepth   = 250    // branches, functions and scripts in each other
	maxLoop    = 64     // rounds of one for loop
	maxNotes   = 200
	maxPlaces  = 50 // of one variable
)

// Walk is a walk through the commands that a container runs, with its findings so far. Start begins it at the
// entrypoint; Follow continues with the programs of the supervisord that the entrypoint starts. A command that can't be
// followed becomes a note, never an error or a panic. A Walk is not safe for concurrent use.
type Walk struct {
	// Scripts are the shell scripts, in the order that they are met.
	Scripts []Script
	// Supervisord is the main file of the supervisord that is started; empty when none is seen.
	Supervisord string
	// Renderings are the files made from templates.
	Renderings []Rendering
	// Changes are files that are made, changed or removed otherwise.
	Changes []Change
	// Hooks are the places at which words from the environment are run as a command.
	Hooks []Hook
	// Grants are the files that the scripts write and that give rights, such as a line for sudo.
	Grants []tree.Note
	// Notes name what could not be followed.
	Notes []tree.Note
	// Reads are the variables of the environment that are read, by name.
	Reads map[string]*Reading

	ctx     context.Context
	img     *tree.Image
	env     map[string]string // the image's own environment
	scripts map[string]*script
	single  int               // files read one by one
	touched map[string]origin // files that the scripts make or remove, with what decides on them
	steps   int
	tooMuch bool
	started map[string]variable // the environment of the supervisord that is started
	clean   bool                // started and chosen are the whole environment of the programs
	chosen  []string
	job     string // the program whose command is walked through; empty for the start
	jobAt   tree.Place
	argv    [][]string // the programs that the job runs in the end
	given   *store     // the variables of started, exported to each job
	left    int        // steps left for all further jobs
	err     error      // of reading the image
}

// frame is the environment in which a command runs.
type frame struct {
	vars  *store
	funcs map[string]function
	saved map[string]variable // in a function, what its local variables were before it
	name  string              // $0
	at    string              // the file that the text is in; empty for the image config
	base  int                 // lines of the file that come before the text
	why   origin              // the variables that decide whether it runs at all
	// dormant is true in a branch that the image's files rule out.
	dormant bool
	stdin   *value  // nil for the container's
	out     *output // nil when nothing reads it
	end     *ending
	calls   []string // functions and scripts around it
	depth   int
	bash    bool
	bare    bool // no variable of the container's environment is passed on to here
}

// placeOf returns the place of a syntax position: a line of the frame's file, or the place of the job when the text is
// no file's.
func (sh *Walk) placeOf(f *frame, pos syntax.Pos) tree.Place {
	if f.at == "" {
		return sh.jobAt
	}
	return sh.img.Place(f.at, f.base+int(pos.Line()))
}

// Note adds a note, formatted as by fmt.Sprintf, unless it is there already or there are maxNotes.
func (sh *Walk) Note(at tree.Place, format string, args ...any) {
	n := tree.Note{Place: at, Text: fmt.Sprintf(format, args...)}
	if len(sh.Notes) < maxNotes && !slices.Contains(sh.Notes, n) {
		sh.Notes = append(sh.Notes, n)
	}
}

// hasRoom reports whether n is below most, and adds a note when it isn't. what names the things that are counted.
func (sh *Walk) hasRoom(f *frame, n, most int, what string) bool {
	if n >= most {
		sh.Note(tree.Place{Path: f.at}, "more than %d %s: only these are told", most, what)
	}
	return n < most
}

// enter counts one step and reports whether the walk may go one level deeper: the context is live, and neither
// maxSteps nor maxDepth is exceeded.
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
