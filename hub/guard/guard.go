// Package guard decides which tool calls the hub forwards to a server.
//
// It checks names and arguments only. It can't know what a server does with them: if a server must not read a file, its
// user and file system must prevent that.
package guard

import (
	"encoding/json"
	"fmt"
)

// The rules in a Denial.
const (
	RuleBlocked   = "tool.blocked"        // by the lists of tools, by read_only, or by a name that no pattern can match
	RuleSize      = "arguments.size"      // more bytes than max_argument_size_bytes
	RuleJSON      = "arguments.json"      // not a JSON object, nested too deep, a number out of range
	RulePath      = "arguments.path"      // one of sensitive_paths, or a forbidden directory
	RuleInjection = "arguments.injection" // a character with a meaning to a shell
)

// Rules holds the rules for one server. They are immutable, so calls may be checked concurrently.
type Rules struct {
	Whitelist *bool    // only Allowed may be called; nil: if there are any
	Allowed   []string // patterns, exact case; see matchesExact
	Blocked   []string // patterns, any case; they win over Allowed
	ReadOnly  bool     // only tools whose readOnlyHint is true
	MaxBytes  int      // of one call's arguments as JSON

	PathTools   []string // patterns of tools whose arguments are checked for paths
	Sensitive   []string // texts that no string may hold, in lower case
	DeniedDirs  []string
	AllowedDirs []string // if there are any, paths must be in one of these

	Shell           bool // the server hands arguments to a shell
	ShellCharacters string
}

// Default returns the rules without configuration. The shell characters are those that POSIX.1-2024 (XCU 2.2) requires
// to be quoted, except blanks, ^, -, ",", = and %, which neither begin nor end a command.
func Default() Rules {
	return Rules{
		MaxBytes:        1 << 20,
		PathTools:       []string{"*"},
		Sensitive:       []string{".ssh", ".gnupg", ".aws", "credentials", ".env", "password", "secret"},
		DeniedDirs:      []string{"/etc", "/proc", "/sys", "/dev", "/root", "/boot", "/run"},
		ShellCharacters: "|&;<>()$`\\\"'*?[]{}!#~",
	}
}

// Call is one call of a tool.
type Call struct {
	Server, Tool string // Tool is the server's name for it
	Arguments    json.RawMessage
	ReadOnly     bool // the tool's readOnlyHint
}

// Denial is the reason for denying a call. Its text never contains an argument.
type Denial struct {
	Rule    string // one of the Rule constants
	Message string
}

func deny(rule, format string, args ...any) *Denial {
	return &Denial{rule, fmt.Sprintf(format, args...)}
}

// Visible reports whether tools/list shows a tool; blocked ones are hidden. readOnly is the tool's readOnlyHint.
func (r Rules) Visible(server, tool string, readOnly bool) bool {
	allowed := len(r.Allowed) == 0
	if r.Whitelist != nil {
		allowed = !*r.Whitelist
	}
	return (readOnly || !r.ReadOnly) && checkNames(server, tool) && !matchesAny(r.Blocked, server, tool) &&
		(allowed || matchesExact(r.Allowed, server, tool))
}

// Check returns nil if the call is allowed. Its time is linear in the size of the arguments.
func (r Rules) Check(c Call) *Denial {
	if !r.Visible(c.Server, c.Tool, c.ReadOnly) {
		return deny(RuleBlocked, "the hub's rules do not allow the tool %q of server %s; use one of tools/list", c.Tool, c.Server)
	}
	if len(c.Arguments) > r.MaxBytes {
		return deny(RuleSize, "the arguments have %d bytes, more than max_argument_size_bytes (%d); send less in one call", len(c.Arguments), r.MaxBytes)
	}
	return r.scan(matchesAny(r.PathTools, c.Server, c.Tool)).checkArguments(c.Arguments)
}

// CheckText checks text outside tool calls: the URI of resources/read, the arguments of prompts/get. It looks for paths
// unless PathTools is empty.
func (r Rules) CheckText(texts ...string) *Denial {
	s := r.scan(len(r.PathTools) > 0)
	for _, t := range texts {
		if len(t) > r.MaxBytes {
			return deny(RuleSize, "a value has %d bytes, more than max_argument_size_bytes (%d); send less", len(t), r.MaxBytes)
		}
		if d := s.checkText(t, false); d != nil {
			return d
		}
	}
	return nil
}

func (r Rules) scan(paths bool) (s scan) {
	if paths {
		s = scan{paths: r.Sensitive, allowed: r.AllowedDirs, denied: r.DeniedDirs}
	}
	if r.Shell {
		s.shell = r.ShellCharacters
	}
	return s
}
