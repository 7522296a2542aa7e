//go:build unix

package need

import (
	"syscall"
	"testing"
	"time"
)

// CPU returns the processor time of this process while do runs. Other processes don't affect it.
func CPU(t testing.TB, do func()) time.Duration {
	t.Helper()
	used := func() time.Duration {
		var r syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
			t.Fatal(err)
		}
		return time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	before := used()
	do()
	return used() - before
}
