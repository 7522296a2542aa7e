// Package process runs programs that may not end, may print endlessly or may leave processes behind, and ends what
// remains.
//
// It works on Linux only; elsewhere it compiles and Run returns an error.
package process

import "time"

// Limits for every program and its descendants. They are resource limits of each process (getrlimit(2)), inherited by
// its children; a stricter limit that exists already stays.
const (
	MaxFile  = 64 << 20          // bytes of a file
	MaxCPU   = 600 * time.Second // of one process in its whole life
	MaxFiles = 1024              // open at once
)

// Command is one run of a program, without a shell.
type Command struct {
	Path string   // absolute
	Argv []string // arguments after the program's name
	Env  []string // the complete environment; nothing is inherited
	Dir  string   // working directory; empty is ours
	// Daemon states that the program may leave a daemon behind. If the daemon started before its parent had limits, it
	// gets them, too.
	Daemon bool
	// MaxOutput limits stdout and stderr, each, in bytes. A program that prints more is killed.
	MaxOutput int64
}

// Result is the result of a run.
type Result struct {
	Stdout, Stderr []byte // up to MaxOutput bytes each
	ExitCode       int    // 128 + n after signal n; -1 when it did not start
	Killed         bool   // by Run: ctx ended or the output was too long
	TooMuch        bool   // the output was longer than MaxOutput
}
