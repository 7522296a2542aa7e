// Package acceptance boots an image and tests its profile's promises: slimctl verify --run.
//
// Programs inside may lie about themselves, so observations come from this machine where possible: sockets and
// processes from the kernel, answers from the published port.
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

// Options configures a run.
type Options struct {
	// Image is an image for this machine's architecture.
	Image sandbox.Image
	// Expect is the expectation for its platform.
	Expect *expect.Expect
	Runner sandbox.Runner
	// Policy is the text of the image's policy file.
	Policy []byte
	// Artifacts is a directory that receives, for each container, DIR/ID/evidence.json and the content of /output; may
	// be empty.
	Artifacts string
	// Patience is the time for the image to become healthy, and for its programs to run; 0 is two minutes.
	Patience time.Duration
	// Log receives a line about each booted container; may be nil.
	Log func(format string, args ...any)
}

// Result is the result of a run.
type Result struct {
	// Report contains only the dynamic rules.
	*verify.Report
	// Opened maps the image's opened files to the first program that opened each; NotObserved is the reason if they are
	// unknown or incomplete.
	Opened      map[string]string
	NotObserved error
}

// Run boots the image and tests it from outside and inside: as its operator starts it, with every variable that opens a
// base, and without a key. An error reports that nothing can be run here; an image that doesn't start is a finding.
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

// Observe tests the image like Run, with a key, to find the opened files; it discards findings. An image that doesn't
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

// trial prepares a run.
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
	site     *site // nil if the policy allows none
	report   *verify.Report
	findings []verify.Finding
	Result   Result
}

// rules lists the rules that need a running image.
var rules = slices.DeleteFunc(verify.Rules(), func(r verify.Rule) bool { return !r.Dynamic })

// maxFindings limits the findings of one rule: a server that answers everything would cause hundreds.
const maxFindings = 20

// addFinding adds a finding. The caller must limit quotations from the image.
func (t *trial) addFinding(rule, subject, format string, args ...any) {
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
		f.Subject, f.Message = "", "further findings of this rule are left out"
	}
	t.findings = append(t.findings, f)
}

func (t *trial) unchecked(format string, args ...any) {
	if what := fmt.Sprintf(format, args...); !slices.Contains(t.report.Unchecked, what) {
		t.report.Unchecked = append(t.report.Unchecked, what)
	}
}

// asOperated boots the image for most tests: with a key and a read-only root file system.
func (t *trial) asOperated(ctx context.Context) error {
	return t.boot(ctx, "with a key", map[string]string{keyVariable: t.key}, func(ctx context.Context, b *box) error {
		if err := b.inside(ctx, ""); err != nil {
			return err
		}
		b.strangers(ctx)
		b.routes(ctx, "")
		b.routes(ctx, t.key)
		b.tool(ctx)
		b.desktop(ctx)
		return b.inside(ctx, "after it was tried, ")
	})
}

// withVariables boots with all variables that open a base: they must have no effect.
func (t *trial) withVariables(ctx context.Context) error {
	env := maps.Clone(variables)
	env[keyVariable] = t.key
	return t.boot(ctx, "with every variable", env, func(ctx context.Context, b *box) error {
		if err := b.inside(ctx, "with the variables set, "); err != nil {
			return err
		}
		b.obeyed(ctx)
		b.routes(ctx, "")
		b.tools(ctx, "with the variables set, ")
		return nil
	})
}

// withoutKey boots without any settings: the image must refuse.
func (t *trial) withoutKey(ctx context.Context) error {
	sb, err := t.start(ctx, "without a key", nil)
	if err != nil || sb == nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, t.Patience)
	defer cancel()
	status, err := sb.Wait(wait)
	if err != nil && wait.Err() == nil {
		return err
	}
	if wait.Err() != nil || status.TimedOut {
		t.addFinding("run-key", keyVariable, "without a key the image starts, and runs on")
	} else if status.ExitCode == 0 {
		t.addFinding("run-key", keyVariable, "without a key the image ends with exit status 0, as if all were well")
	}
	_, err = sb.Stop(context.WithoutCancel(ctx))
	return errors.Join(err, context.Cause(ctx))
}

const keyVariable = "SANDBOX_API_KEY"

// quote returns the beginning of an image's text.
func quote(text string) string {
	const limit = 200
	text = strings.TrimSpace(text)
	if len(text) > limit {
		return fmt.Sprintf("%q …", text[:limit])
	}
	return fmt.Sprintf("%q", text)
}
