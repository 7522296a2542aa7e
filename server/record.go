package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/slimctl/slimctl/internal/lazyregexp"
	"github.com/slimctl/slimctl/server/audit"
	"github.com/slimctl/slimctl/server/output"
	"github.com/slimctl/slimctl/server/policy"
)

// record writes a line of the audit log for each call, before its answer leaves. If the log is not writable, the call
// doesn't run. If its line can't be written, the answer is withheld.
type record struct {
	log      *audit.Log
	redactor *output.Redactor
	policy   *policy.Policy
	digest   string // of the policy
	runID    string
}

func (h record) OnBefore(_ context.Context, c Call) (Call, Decision) {
	if err := h.log.Ready(); err != nil && !(c.closes && errors.Is(err, audit.ErrFull)) { // close gives a session back, and opens none
		return c, deny(unrecordedRefusal(err))
	}
	return c, Decision{}
}

func (h record) OnAfter(_ context.Context, c Call, r Result) Result {
	rec := h.newRecord(c, r)
	write := h.log.Finish
	if rec.Refused {
		write = h.log.Write
	}
	if err := write(rec); err != nil {
		return r.withRefusal(unrecordedRefusal(err))
	}
	return r
}

func unrecordedRefusal(err error) *policy.Refusal {
	if errors.Is(err, audit.ErrFull) {
		return &policy.Refusal{
			Code: policy.PolicyBlocked, Rule: "audit.full", Retryable: true,
			Message: "the audit log is full, so nothing is run; tell the operator to move its older files away",
		}
	}
	return &policy.Refusal{
		Code: policy.PolicyBlocked, Rule: "audit.unavailable", Retryable: true,
		Message: "the audit log cannot be written, so nothing is run or shown; tell the operator",
	}
}

func (h record) newRecord(c Call, r Result) audit.Record {
	rec := audit.Record{
		Event: audit.ToolFinished, Events: listEvents(r),
		RequestID: c.Origin.RequestID, Subject: c.Origin.Subject, // from the gate, so not redacted: "key:1a2b3c4d" would match
		TraceID:    c.Origin.TraceID,
		ClientName: h.redactor.String(c.Origin.ClientName), ClientVersion: h.redactor.String(c.Origin.ClientVersion), Protocol: h.redactor.String(c.Origin.Protocol),
		RunID: h.runID, PolicySHA256: h.digest,
		Tool: c.Tool, Subcommand: c.Command.Name, URLHost: h.targetHost(c, r),
		Decision: "allow", ExitCode: r.ExitCode, DurationMS: time.Since(c.Received).Milliseconds(),
		BytesOut: len(r.Stdout) + len(r.Stderr), Truncated: r.Truncated,
	}
	if c.SessionID != "" {
		sum := sha256.Sum256([]byte(c.SessionID))
		rec.Session = hex.EncodeToString(sum[:8])
	}
	if r.Refusal == nil {
		rec.Argv = h.redactArgv(c.Argv)
		return rec
	}
	rec.Rule, rec.ErrorName = r.Refusal.Rule, r.Refusal.Code.Name()
	if denied := r.Refusal.Code != policy.Timeout && r.Refusal.Code != policy.Unreachable; denied {
		rec.Decision = "deny"
	}
	if !r.ran && r.Refusal.Code != policy.Unreachable {
		rec.Event, rec.Refused = audit.PolicyBlocked, true
	}
	if !strings.HasPrefix(rec.Rule, "calls.") { // the lines of a flood need no arguments
		rec.Argv = h.redactArgv(c.Argv)
	}
	return rec
}

// listEvents returns the events of a call, in order.
func listEvents(r Result) []string {
	all := []string{audit.ToolCall}
	if r.ran {
		all = append(all, audit.SandboxExec)
	}
	all = append(all, r.Events...)
	if r.Refusal != nil && r.Refusal.Code != policy.Unreachable {
		if !r.ran {
			all = append(all, audit.PolicyBlocked)
		}
		switch family, _, _ := strings.Cut(r.Refusal.Rule, "."); family {
		case "url", "page":
			all = append(all, audit.NetworkBlocked)
		case "command", "option", "wait", "tool", "shell":
			all = append(all, audit.CommandBlocked)
		}
	}
	return append(all, audit.ToolFinished)
}

// targetHost returns the host that a call is about: of the page that was refused, or of the address to open.
func (h record) targetHost(c Call, r Result) string {
	if r.refusedAt != "" {
		return h.redactor.String(hostIn(r.refusedAt))
	}
	if c.Command.Name == "open" {
		if u, refused := h.policy.CheckURL(c.Command.Args[0]); refused == nil {
			return u.Host
		}
	}
	if len(c.Argv) < 2 || !slices.Contains([]string{"open", "goto", "navigate"}, c.Argv[0]) {
		return ""
	}
	for _, word := range c.Argv[1:] {
		if host := hostIn(word); host != "" && !strings.HasPrefix(word, "-") {
			return h.redactor.String(host)
		}
	}
	return ""
}

// writtenHost finds the host in an address that may have any form, as a browser would: a backslash is a slash, and http
// needs none. An address of another scheme has no host without them.
var writtenHost = lazyregexp.New(`(?i)^(?:https?:[/\\]*|[a-z][a-z0-9+.-]*:[/\\]{2}|(?:[/\\]{2})?)(?:[^/\\?#]*@)?(\[[^\]/\\?#]*\]|[^/\\?#:\[\]]*)(?::[0-9]*)?(?:[/\\?#]|$)`)

// hostIn returns the host in a refused address as it is written, for the log alone. It has at most 128 bytes.
func hostIn(address string) string {
	m := writtenHost.FindStringSubmatch(strings.TrimSpace(address))
	if m == nil {
		return ""
	}
	return audit.BoundText(strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) || unicode.IsSpace(r) {
			return utf8.RuneError
		}
		return unicode.ToLower(r)
	}, m[1]))
}

// redactArgv returns the call's arguments without probable secrets: it omits texts for a field and hides parts of
// addresses. The words of a refused argv can be anything, so each goes through the redactor.
func (h record) redactArgv(argv []string) []string {
	var out []string
	for i, a := range h.redactor.Argv(argv) {
		switch {
		case i > 1 && (argv[0] == "fill" || argv[0] == "type" || argv[0] == "select"):
			a = fmt.Sprintf("[%d characters]", utf8.RuneCountInString(argv[i]))
		case i > 0 && argv[0] == "open":
			a = "[address]"
		}
		out = append(out, a)
	}
	return out
}
