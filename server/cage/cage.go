// Package cage holds a program that may have been taken over: Chromium, which reads pages, and the X server and the window
// manager that it talks to. A cage needs no privilege; three parts of the kernel make it, each of which holds by itself:
//
//   - Landlock: which files are read, written and started, which TCP ports are listened on, and no signals to others
//     (landlock(7)).
//   - A seccomp filter: no sockets but TCP's and local ones, no tracing, no namespaces, no other system-call ABI (seccomp(2)).
//   - A supervisor, who makes each connection in the program's place: what the program asks for is looked at in the
//     supervisor's own copy, so that it can't be swapped meanwhile (seccomp_unotify(2)).
package cage

import (
	"errors"
	"fmt"
	"strings"
)

// Rules are what a program may do in its cage. Paths are absolute; one that isn't there is left out.
type Rules struct {
	Read    []string // files, and directories with all below, that it reads
	Execute []string // the same, that it may also start
	Write   []string // directories below which it may do all but start files
	Devices []string // device files that it may also control (ioctl)
	Listen  []uint16 // TCP ports that it may listen on
	Proxy   uint16   // the TCP port of 127.0.0.1 that it may connect to; 0 is none
	Display string   // the socket of the X server that it may connect to; "" is none
}

// Connects tells whether the program connects to anything: without, connect is refused and needs no supervisor.
func (r Rules) Connects() bool { return r.Proxy != 0 || r.Display != "" }

// Parts are the parts of a cage that this kernel, and what the container runs in, have.
type Parts struct {
	Landlock   int  // its ABI version; 0 is none. TCP ports from 4 on, signals from 6 on
	Filter     bool // seccomp
	Supervisor bool // connections are made by the supervisor
}

// String is one line for the log.
func (p Parts) String() string {
	has := func(b bool) string {
		if b {
			return "yes"
		}
		return "no"
	}
	landlock := "no"
	if p.Landlock > 0 {
		landlock = fmt.Sprintf("ABI %d", p.Landlock)
	}
	return fmt.Sprintf("Landlock %s, seccomp filter %s, supervised connections %s", landlock, has(p.Filter), has(p.Supervisor))
}

// ErrIncomplete is the error of a cage with a part missing.
var ErrIncomplete = errors.New("the cage is not whole")

// Whole is nil, or an ErrIncomplete that names what is missing for the rules.
func (p Parts) Whole(r Rules) error {
	var missing []string
	if p.Landlock == 0 {
		missing = append(missing, "Landlock (Linux 5.13, and a container runtime whose seccomp profile lets it through)")
	}
	if !p.Filter {
		missing = append(missing, "seccomp filters")
	}
	if r.Connects() && !p.Supervisor {
		missing = append(missing, "seccomp user notification, and reading /proc/PID/mem of a child")
	}
	if missing == nil {
		return nil
	}
	return fmt.Errorf("%w: there is no %s", ErrIncomplete, strings.Join(missing, ", no "))
}
