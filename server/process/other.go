//go:build !linux

package process

import (
	"context"
	"errors"
	"os"
	"time"
)

// Run returns an error: programs run on Linux only.
func Run(context.Context, Command) (Result, error) {
	return Result{ExitCode: -1}, errors.New("programs are run on Linux only")
}

// End does nothing.
func End(...string) int { return 0 }

// Alive returns false.
func Alive(...string) bool { return false }

// Ended returns true.
func Ended(*os.Process) bool { return true }

// EndGroup does nothing.
func EndGroup(int, string, time.Duration) {}

// EndChildren does nothing.
func EndChildren() int { return 0 }

// LowerPriority does nothing.
func LowerPriority() {}

// Harden does nothing.
func Harden() error { return nil }
