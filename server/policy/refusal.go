package policy

import (
	"fmt"
	"strconv"
	"time"

	"github.com/slimctl/slimctl/internal/lazyregexp"
)

// Code is the class of a refusal. The numbers are application codes inside a
// tool result (`_meta.code`); they are never a JSON-RPC error.code, because the
// MCP revision 2026-07-28 reserves that range.
type Code int

// The classes, from the one that wins when several apply to the one that loses.
const (
	Timeout          Code = -32007 // the deadline passed
	BudgetExceeded   Code = -32005 // size, rate or concurrency
	SandboxViolation Code = -32006 // a path, an environment or a program slot
	PolicyBlocked    Code = -32004 // URL, host, subcommand, option, value
	InvalidParams    Code = -32602 // the arguments do not fit the tool's schema
	Unreachable      Code = -32003 // nothing forbids it, but the site or the network does not answer
)

// classes holds what is known of each code; rank 0 wins over rank 1.
var classes = map[Code]struct {
	name string
	rank int
	exit int
}{
	Timeout:          {"TIMEOUT", 0, 124},
	BudgetExceeded:   {"BUDGET_EXCEEDED", 1, 75},
	SandboxViolation: {"SANDBOX_VIOLATION", 2, 126},
	PolicyBlocked:    {"POLICY_BLOCKED", 3, 126},
	InvalidParams:    {"INVALID_PARAMS", 4, 64},
	Unreachable:      {"UNREACHABLE", 5, 1},
}

// Name is the word for the code, for instance POLICY_BLOCKED.
func (c Code) Name() string { return classes[c].name }

// ExitCode is the exit_code of a result that was refused with this code.
func (c Code) ExitCode() int { return classes[c].exit }

// Refusal says why a call was not run or not finished. It never repeats the
// caller's text, so that it can be logged and shown.
type Refusal struct {
	Code       Code
	Rule       string        // stable id, for instance "wait.script"
	Message    string        // what was wrong and what to do
	Retryable  bool          // the same call may succeed later
	RetryAfter time.Duration // how long to wait first; 0 when unknown
}

// Error gives the line that a caller reads in stderr:
// "POLICY_BLOCKED (-32004) wait.script: what and what to do".
func (r *Refusal) Error() string {
	return fmt.Sprintf("%s (%d) %s: %s", r.Code.Name(), int(r.Code), r.Rule, r.Message)
}

// RefusalHeader is the header in which the egress proxy says why it refused a
// request, or a number to ask it with (egress.Why). No site can send it: the
// proxy drops what begins with Proxy- from the answers of sites. Nor can a page:
// browsers keep such headers for themselves.
const RefusalHeader = "Proxy-Browser-Shell-Refusal"

var refusalLine = lazyregexp.New(`^(retryable )?[A-Z_]+ \((-[0-9]{1,6})\) ([a-z.-]{1,64}): ([ -~]{1,500})$`)

// Header returns the value of RefusalHeader.
func (r *Refusal) Header() string {
	if r.Retryable {
		return "retryable " + r.Error()
	}
	return r.Error()
}

// ParseRefusal reads the value of RefusalHeader; nil if it is none.
func ParseRefusal(header string) *Refusal {
	m := refusalLine.FindStringSubmatch(header)
	if m == nil {
		return nil
	}
	n, _ := strconv.Atoi(m[2]) // digits
	if _, known := classes[Code(n)]; !known {
		return nil
	}
	return &Refusal{Code: Code(n), Rule: m[3], Message: m[4], Retryable: m[1] != ""}
}

func refuse(code Code, rule, format string, args ...any) *Refusal {
	return &Refusal{Code: code, Rule: rule, Message: fmt.Sprintf(format, args...)}
}

func blocked(rule, format string, args ...any) *Refusal {
	return refuse(PolicyBlocked, rule, format, args...)
}

// Worst picks the refusal whose class wins, the first one among equals. Nil
// entries are no refusal; of none it gives nil.
func Worst(all ...*Refusal) *Refusal {
	var w *Refusal
	for _, r := range all {
		if r != nil && (w == nil || classes[r.Code].rank < classes[w.Code].rank) {
			w = r
		}
	}
	return w
}
