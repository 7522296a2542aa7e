// Package cage confines a program that may have been taken over: Chromium, and the X server and window manager that it
// talks to. A cage needs no privilege. It has three parts, each useful without the others:
//
//   - Landlock limits files, executables and TCP ports, and forbids signals to other processes (landlock(7)).
//   - A seccomp filter permits a list of system calls, and of sockets TCP and local streams only (seccomp(2)).
//   - A supervisor makes each connection and each listening socket for the program, from its own copy of the address,
//     which the program can't swap after the check (seccomp_unotify(2)).
package cage

import (
	"errors"
	"fmt"
	"strings"
)

// Rules describes what a program may do in its cage. Paths are absolute; missing ones are skipped.
type Rules struct {
	Read    []string // files and directory trees that it may read
	Execute []string // files and directory trees that it may also execute
	Write   []string // directory trees in which it may do everything but execute files; no path has a link
	Devices []string // device files that it may read, write and control (ioctl)
	Listen  []uint16 // TCP ports of the loopback interface that it may listen on
	Proxy   uint16   // TCP port of 127.0.0.1 that it may connect to; 0 means none
	Display string   // socket of the X server that it may connect to; "" means none
}

// Parts reports which parts of a cage the kernel and the container runtime provide.
type Parts struct {
	Landlock   int  // ABI version, 0 for none; TCP ports need 4, signals 6
	Filter     bool // seccomp
	Supervisor bool // the supervisor makes connections and listening sockets
}

// String returns one line for the log.
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
	return fmt.Sprintf("Landlock %s, seccomp filter %s, supervised connections %s",
		landlock, has(p.Filter), has(p.Supervisor))
}

// ErrIncomplete reports a cage with a missing part.
var ErrIncomplete = errors.New("cage incomplete")

// Missing names the parts that aren't there, each with what it needs.
func (p Parts) Missing() (missing []string) {
	if p.Landlock == 0 {
		missing = append(missing, "Landlock (needs Linux 5.13, and a seccomp profile of the container that allows it)")
	}
	for _, limit := range []struct {
		abi          int
		what, kernel string
	}{
		{3, "the truncating of files", "6.2"}, {4, "TCP ports", "6.7"},
		{5, "the control of devices", "6.10"}, {6, "signals", "6.12"},
	} {
		if p.Landlock > 0 && p.Landlock < limit.abi {
			missing = append(missing, fmt.Sprintf("Landlock for %s (needs ABI %d, Linux %s; here is ABI %d)",
				limit.what, limit.abi, limit.kernel, p.Landlock))
		}
	}
	if !p.Filter {
		missing = append(missing, "seccomp filters")
	}
	if !p.Supervisor {
		missing = append(missing,
			"supervised connections (need seccomp user notification, and access to a child's /proc/PID/mem)")
	}
	return missing
}

// Whole returns nil, or an ErrIncomplete that names the parts that are missing.
func (p Parts) Whole() error {
	missing := p.Missing()
	if missing == nil {
		return nil
	}
	return fmt.Errorf("%w: no %s; to start without, set \"cage\": \"available\" in the policy file",
		ErrIncomplete, strings.Join(missing, ", no "))
}
