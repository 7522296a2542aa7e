package server

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/slimctl/slimctl/internal/lazyregexp"
	"github.com/slimctl/slimctl/server/output"
	"github.com/slimctl/slimctl/server/policy"
	"github.com/slimctl/slimctl/server/process"
)

// waitMargin is the part of a call's time that a native wait leaves for its answer.
const waitMargin = time.Second

// runLines runs a command. It takes a snapshot again of a page that moves on meanwhile. The call's time alone decides how
// long a wait waits: the native agent-browser, which has 25 s of its own, is told; 0.8 to 0.19, which gives a condition
// 10 s, runs again and again, and longer pauses are split.
func (b *browser) runLines(ctx context.Context, ses *session, c Call) (process.Result, error) {
	pause := readPause(c.Command)
	wait := awaits(c.Command)
	argv := c.Run
	if wait && c.Generation == policy.Native && !slices.Contains(c.Command.Options, "--timeout") {
		deadline, _ := ctx.Deadline()
		left := time.Until(deadline)
		argv = append(slices.Clone(argv), "--timeout", strconv.FormatInt(max(left-waitMargin, left/2, 1).Milliseconds(), 10))
	}
	for tries := 1; ; tries++ {
		if pause > 0 && c.Generation == policy.Node {
			step := min(pause, maxPause)
			pause -= step
			argv = append(slices.Clone(c.Run[:len(c.Run)-1]), strconv.Itoa(step))
		}
		out, err := b.runNodeLine(ctx, ses, c, argv)
		switch {
		case err != nil || out.Killed || ctx.Err() != nil:
		case c.Generation == policy.Node && (wait && timedOut(out) || out.ExitCode == 0 && pause > 0):
			continue
		case c.Command.Name == "snapshot" && tries < snapshotTries && pageMovedOn(out):
			continue
		}
		return out, err
	}
}

// readPause returns the milliseconds of a wait for a time, and 0 for any other command.
func readPause(c policy.Command) int {
	if c.Name != "wait" || len(c.Args) == 0 {
		return 0
	}
	ms, _ := strconv.Atoi(c.Args[0]) // 0 for a selector
	return ms
}

// awaits reports whether a command waits for something other than a time.
func awaits(c policy.Command) bool {
	return c.Name == "wait" && (len(c.Args) == 0 || !digits.MatchString(c.Args[0]))
}

var digits = lazyregexp.New(`^[0-9]+$`)

// maxPause is the longest pause in one run of agent-browser 0.8 to 0.19, in milliseconds; see nodeDeadline.
const maxPause = 20000

// runNodeLine runs one command line, for at most nodeDeadline with agent-browser 0.8 to 0.19.
func (b *browser) runNodeLine(ctx context.Context, ses *session, c Call, argv []string) (process.Result, error) {
	if c.Generation == policy.Node {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, nodeDeadline)
		defer cancel()
	}
	return b.agentBrowser(ctx, ses, argv, ses.daemon == nil)
}

// timedOut reports whether agent-browser gave up by itself.
func timedOut(out process.Result) bool {
	return out.ExitCode != 0 && output.TimedOut(output.Run{Stdout: out.Stdout})
}

// waitedRefusal returns the refusal for a wait in vain. The pages have been checked.
func waitedRefusal(ses *session, c Call) *policy.Refusal {
	where := ""
	if pages := ses.tab.Pages(); len(pages) > 0 {
		where = fmt.Sprintf("; the page is %.300s", pages[0].URL)
	}
	return &policy.Refusal{
		Code: policy.Timeout, Rule: "timeout.wait", Retryable: true,
		Message: fmt.Sprintf("what the call waited for did not come in %s%s: take a snapshot, or give a larger timeout", time.Since(c.Received).Round(time.Second), where),
	}
}

// isReference matches a reference of a snapshot, as the grammar passes it on.
var isReference = lazyregexp.New(`^@e[0-9]+$`)

// oldReference returns a reference in a command for agent-browser 0.8 to 0.19 that belongs to a page that was left, for
// which that version would look for 10 s. It returns "" if there is none, and notes which page a snapshot shows.
func oldReference(ses *session, c policy.Command) string {
	at := slices.IndexFunc(c.Args, isReference.MatchString)
	if at < 0 && c.Name != "snapshot" {
		return ""
	}
	document, _ := ses.tab.Document()
	if c.Name == "snapshot" {
		ses.document = document
	}
	if at < 0 || document == ses.document {
		return ""
	}
	return c.Args[at]
}
