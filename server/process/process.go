// Package process starts programs that are not trusted to end, to be quiet or
// to clean up after themselves, and ends what they leave behind.
//
// It works on Linux alone; elsewhere it compiles and Run gives an error.
package process

import "time"

// What every program and everything it starts may use at most. They are
// resource limits of each process (getrlimit(2)), inherited by the next; a
// stricter limit that was there already stays.
const (
	MaxFile  = 64 << 20          // bytes that a file may grow to
	MaxCPU   = 600 * time.Second // of one process in its whole life
	MaxFiles = 1024              // open at once
)

// Command is one run of a program, without a shell.
type Command struct {
	Path string   // absolute
	Argv []string // what follows the program's name
	Env  []string // the whole environment; nothing is inherited
	Dir  string   // working directory; empty is ours
	// Daemon tells that it may leave a daemon behind, which then gets the
	// limits too if it was there before its parent had them.
	Daemon bool
	// MaxOutput bounds stdout and stderr, each, in bytes. A program that
	// prints more is ended.
	MaxOutput int64
}

// Result is how a program ended.
type Result struct {
	Stdout, Stderr []byte // up to MaxOutput bytes each
	ExitCode       int    // 128 + n after signal n; -1 when it did not start
	Killed         bool   // Run ended it: ctx was over or it printed too much
	TooMuch        bool   // it printed more than MaxOutput
}
