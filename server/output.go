package server

import (
	"context"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/server/output"
	"github.com/slimctl/slimctl/server/policy"
)

// normalise converts the output of agent-browser to data or an error text.
type normalise struct{ pass }

func (normalise) OnAfter(_ context.Context, c Call, r Result) Result {
	if r.raw == nil || r.Refusal != nil {
		return r
	}
	r.Stdout, r.Stderr, r.ExitCode = output.Normalise(c.Command.Name, commandWords(c.Command), output.Run{
		Stdout: r.raw.Stdout, Stderr: r.raw.Stderr, ExitCode: r.raw.ExitCode,
	})
	return r
}

// commandWords returns the positionals and the values of options.
func commandWords(c policy.Command) []string {
	return slices.DeleteFunc(c.Argv("")[1:], func(word string) bool { return strings.HasPrefix(word, "--") })
}

// redact hides probable secrets, before anything is truncated.
type redact struct {
	pass
	redactor *output.Redactor
}

func (h redact) OnAfter(_ context.Context, _ Call, r Result) Result {
	hide := h.redactor
	if len(r.secrets) > 0 {
		hide = hide.With(r.secrets)
	}
	r.Stdout, r.Stderr = hide.JSON(r.Stdout), hide.String(r.Stderr)
	return r
}

// truncate limits an answer to the policy's size and removes control characters.
type truncate struct {
	pass
	policy *policy.Policy
}

func (h truncate) OnAfter(_ context.Context, _ Call, r Result) Result {
	limit := h.policy.Limits.OutputBytes
	var cutOut, cutErr int
	r.Stdout, cutOut = output.Truncate(output.EscapeControls(r.Stdout), limit)
	r.Stderr, cutErr = output.TruncateText(output.ReplaceControls(r.Stderr), limit)
	r.Truncated = cutOut+cutErr > 0
	return r
}
