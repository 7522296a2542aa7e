//go:build !linux

package process

import (
	"errors"
	"os"
	"time"
)

// Child is a placeholder; Start never returns one.
type Child struct {
	PID                   int
	Stdin, Stdout, Stderr *os.File
}

// Start returns an error: programs run on Linux only.
func Start(Program) (*Child, error) { return nil, errors.New("programs are run on Linux only") }

// Done returns nil.
func (*Child) Done() <-chan struct{} { return nil }

// Ending returns "".
func (*Child) Ending() string { return "" }

// End does nothing.
func (*Child) End(time.Duration) int { return 0 }

// ClosePipes does nothing.
func (*Child) ClosePipes() {}
