//go:build !linux

package process

import (
	"errors"
	"os"
	"time"
)

// Child is nothing here.
type Child struct {
	PID                   int
	Stdin, Stdout, Stderr *os.File
}

// Start gives an error: it works on Linux alone.
func Start(Program) (*Child, error) { return nil, errors.New("programs are run on Linux only") }

// Done is never closed.
func (*Child) Done() <-chan struct{} { return nil }

// Ending is empty.
func (*Child) Ending() string { return "" }

// End does nothing.
func (*Child) End(time.Duration) int { return 0 }

// ClosePipes does nothing.
func (*Child) ClosePipes() {}
