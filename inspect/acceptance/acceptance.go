// Package acceptance boots an image and tries what its profile promises: slimctl verify --run.
//
// What runs inside may lie about itself, so what counts is seen from this machine where that is possible: sockets and
// processes come from the kernel, answers from the published port.
package acceptance

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/slimctl/slimctl/inspect/expect"
	"github.com/slimctl/slimctl/inspect/sandbox"
	"github.com/slimctl/slimctl/inspect/verify"
)

// Options say what is run, and what it must hold.
type Options struct {
	// Image is of this machine's architecture.
	Image sandbox.Image
	// Expect is for its platform.
	Expect *expect.Expect
	Runner sandbox.Runner
	// Policy is the text of the image's policy file.
	Policy []byte
	// Artifacts is a directory that gets, for each container, DIR/ID/evidence.json and what it wrote to /output; empty for none.
	Artifacts string
	// Patience is how long the image may take until it is healthy, and until its programs run; 0 is two minutes.
	Patience time.Duration
	// Log takes a line about each container that is booted; may be nil.
	Log func(format string, args ...any)
}

// Result is what trying an image gives.
type Result struct {
	// Report has the dynamic rules alone.
	*verify.Report
	// Opened has the image's files that were opened, with the program that opened each first; NotObserved says why they are not
	// known, or not all.
	Opened      map[string]string
	NotObserved error
}

// Run boots the image, and tries it from outside and inside: as its operator starts it, with every variable that opens a
// base, and without a key. An error is trouble with running anything here; an image that doesn't start is a finding.
func Run(ctx context.Context, o Options) (*Result, error) {
	t, err := o.trial()
	if err != nil {
		return nil, err
	}
	for _, boot := range []func(context.Context) error{t.asOperated, t.withVariables, t.withoutKey} {
		if err := boot(ctx); err != nil {
			return nil, err
		}
		if t.hasFound("run-start") {
			t.unchecked("all that only an image shows which starts")
			break
		}
	}
	t.report.Add(t.findings...)
	return &t.Result, nil
}

// Observe tries the image as Run does, with a key, for what is opened in it: its findings are of no interest. An image that doesn't
// start is an error.
func Observe(ctx context.Context, o Options) (*Result, error) {
	t, err := o.trial()
	if err == nil {
		err = t.asOperated(ctx)
	}
	if err != nil {
		return nil, err
	}
	if t.hasFound("run-start") {
		return nil, fmt.Errorf("%s: %s", o.Image.Reference, t.findings[0].Message)
	}
	return &t.Result, nil
}

// trial prepares one.
func (o Options) trial() (*trial, error) {
	if o.Patience <= 0 {
		o.Patience = 2 * time.Minute
	}
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	digest, err := o.Image.Digest()
	if err != nil {
		return nil, err
	}
	report := &verify.Report{
		Reference: o.Image.Reference, Digest: digest.String(), Profile: o.Expect.Profile, Platforms: []string{o.Expect.Platform},
		Findings: []verify.Finding{},
	}
	t := &trial{Options: o, key: rand.Text(), report: report, Result: Result{Report: report, Opened: map[string]string{}}}
	t.Runner.Watch = true
	for _, r := range rules {
		t.report.Rules = append(t.report.Rules, r.ID)
	}
	slices.Sort(t.report.Rules)
	if t.site, err = newSite(o.Policy); err != nil {
		t.unchecked("no page was opened: %s", quote(err.Error()))
	} else {
		t.Runner.Sites, t.Runner.World = map[string]http.Handler{t.site.host: t.site}, nowhere
	}
	return t, nil
}

func (t *trial) hasFound(rule string) bool {
	return slices.ContainsFunc(t.findings, func(f verify.Finding) bool { return f.Rule == rule })
}

// trial is one Run under way.
type trial struct {
	Options
	key      string
	site     *site // nil when the policy allows none
	report   *verify.Report
	findings []verify.Finding
	Result   Result
}

// rules are those that only a running image shows.
var rules = slices.DeleteFunc(verify.Rules(), func(r verify.Rule) bool { return !r.Dynamic })

// maxFindings is how many findings of one rule are told: a server that answers everything would give hundreds.
const maxFindings = 20

// find adds a finding. What it quotes of the image is bounded by the caller.
func (t *trial) find(rule, subject, format string, args ...any) {
	i := slices.IndexFunc(rules, func(r verify.Rule) bool { return r.ID == rule })
	f := verify.Finding{
		Rule: rule, Severity: rules[i].Severity, Platform: t.Expect.Platform, Subject: subject, Message: fmt.Sprintf(format, args...), Fix: rules[i].Fix,
	}
	same := 0
	for _, have := range t.findings {
		if have.Rule == rule {
			same++
		}
	}
	switch {
	case same > maxFindings:
		return
	case same == maxFindings:
		f.Subject, f.Message = "", "there is more of this; it is not told"
	}
	t.findings = append(t.findings, f)
}

func (t *trial) unchecked(format string, args ...any) {
	if what := fmt.Sprintf(format, args...); !slices.Contains(t.report.Unchecked, what) {
		t.report.Unchecked = append(t.report.Unchecked, what)
	}
}

// asOperated is the boot that most is tried on: a key is set, the root file system is read-only.
func (t *trial) asOperated(ctx context.Context) error {
	return t.boot(ctx, "with a key", map[string]string{keyVariable: t.key}, func(ctx context.Context, b *box) error {
		if err := b.inside(ctx, ""); err != nil {
			return err
		}
		b.secrets(ctx, nil)
		b.setuid(ctx)
		b.strangers(ctx)
		b.routes(ctx, "")
		b.routes(ctx, t.key)
		b.tool(ctx)
		b.desktop(ctx)
		return b.inside(ctx, "after it was tried, ")
	})
}

// withVariables boots with every variable that opens a base at once: nothing may be other than without.
func (t *trial) withVariables(ctx context.Context) error {
	env := maps.Clone(variables)
	env[keyVariable] = t.key
	return t.boot(ctx, "with every variable", env, func(ctx context.Context, b *box) error {
		if err := b.inside(ctx, "with the variables set, "); err != nil {
			return err
		}
		b.secrets(ctx, variables)
		b.obeyed(ctx)
		b.routes(ctx, "")
		b.tools(ctx, "with the variables set, ")
		return nil
	})
}

// withoutKey boots with nothing set at all: the image has to refuse.
func (t *trial) withoutKey(ctx context.Context) error {
	sb, err := t.start(ctx, "without a key", nil)
	if err != nil || sb == nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, min(t.Patience, 30*time.Second))
	defer cancel()
	status, err := sb.Wait(wait)
	if err != nil && wait.Err() == nil {
		return err
	}
	if wait.Err() != nil || status.TimedOut {
		t.find("run-key", keyVariable, "without a key the image starts, and runs on")
	} else if status.ExitCode == 0 {
		t.find("run-key", keyVariable, "without a key the image ends with exit status 0, as if all were well")
	}
	_, err = sb.Stop(context.WithoutCancel(ctx))
	return errors.Join(err, context.Cause(ctx))
}

const keyVariable = "SANDBOX_API_KEY"

// quote shows the beginning of what an image said.
func quote(text string) string {
	const limit = 200
	text = strings.TrimSpace(text)
	if len(text) > limit {
		return fmt.Sprintf("%q …", text[:limit])
	}
	return fmt.Sprintf("%q", text)
}
