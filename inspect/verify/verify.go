// Package verify compares an image with a profile's expectation, and reports every difference as a finding.
package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/expect"
)

// Severities of a finding, in SARIF's words (SARIF 2.1.0, section 3.27.10).
const (
	Error   = "error"   // the image is not closed: verification fails
	Warning = "warning" // needs attention: verification passes
	Info    = "note"
)

// Rule is one check.
type Rule struct {
	// ID is stable: "nginx-upstream".
	ID       string `json:"id"`
	Title    string `json:"title"`
	Severity string `json:"severity"`
	// Why describes the attack on an image that violates the rule; Fix is the remedy.
	Why string `json:"why"`
	Fix string `json:"fix"`
	// Holes lists the letters in facts/aio-base.md 4.4 of the holes that the rule finds, for example "b".
	Holes []string `json:"holes,omitempty"`
	// Dynamic is true if the rule needs a running image.
	Dynamic bool `json:"dynamic,omitempty"`
}

// Finding is one difference between an image and the profile's expectation.
type Finding struct {
	Rule     string `json:"rule"`
	Severity string `json:"severity"`
	Platform string `json:"platform,omitempty"`
	// Message describes the problem, with names.
	Message string `json:"message"`
	// Places are the evidence; Subject is a route, a program or a variable.
	Places  []tree.Place `json:"places,omitempty"`
	Subject string       `json:"subject,omitempty"`
	// Source is the relevant line of the profile, as file:line:column.
	Source string `json:"source,omitempty"`
	Fix    string `json:"fix,omitempty"`
}

// Input is the input of Check.
type Input struct {
	// Images are results of inspect.Read.
	Images []*inspect.Image
	// Expect has one entry for each image, by platform.
	Expect map[string]*expect.Expect
	// Ignored lists the entries of the index that are neither images nor attestations; see image.Source.Ignored.
	Ignored []string
	// Outside lists what a layout holds that no digest covers, and Names what it calls the image; see image.Source.
	Outside, Names []string
	// Index is the stored index; nil for an image without one.
	Index []byte
	// Ledgers maps platforms to the digest of the ledger that refers to the image.
	Ledgers map[string][]string
	// FromDocker is true for an image that Docker stored, without its annotations.
	FromDocker bool
	// Want is the expected image; nil disables the comparison.
	Want *Want
	// SurfaceOnly lets an image pass without a comparison: one that was just built, or a foreign one.
	SurfaceOnly bool
}

// Report is the result.
type Report struct {
	Reference string `json:"reference"`
	Digest    string `json:"digest"`
	Profile   string `json:"profile"`
	// Base is the base used for the comparison, with its digest; empty without a comparison.
	Base string `json:"base,omitempty"`
	// OtherBase is the digest of the base that the image's annotations name, if it isn't Base. The text begins with it.
	OtherBase string   `json:"-"`
	Platforms []string `json:"platforms"`
	// Rules lists the IDs of all checked rules.
	Rules    []string  `json:"rules"`
	Findings []Finding `json:"findings"`
	// Proven states that the image equals the expected one: ByDigest or ByTree. It is empty otherwise, or without a
	// comparison.
	Proven string `json:"proven,omitempty"`
	// SurfaceOnly is true if the comparison was disabled.
	SurfaceOnly bool `json:"surfaceOnly,omitempty"`
	// Passed is true if no finding is an Error, and the image is proven or SurfaceOnly.
	Passed bool `json:"passed"`
	// Use is the amount of an image with layers of its own that was opened when it was booted.
	Use *Use `json:"use,omitempty"`
	// Unchecked lists impossible checks with their reasons.
	Unchecked []string `json:"unchecked,omitempty"`
}

// Rules returns all rules, static ones first, sorted by ID.
func Rules() []Rule {
	var out []Rule
	for _, r := range slices.Concat(surfaceRules(), compareRules) {
		out = append(out, r.Rule)
	}
	slices.SortFunc(out, func(a, b Rule) int { return strings.Compare(a.ID, b.ID) })
	for _, r := range dynamicRules { // already sorted
		r.Dynamic = true
		out = append(out, r)
	}
	return out
}

// Check checks every static rule. An error reports that reading an image failed; missing content of an image is a
// finding.
func Check(ctx context.Context, in Input) (*Report, error) {
	if len(in.Images) == 0 {
		return nil, errors.New("no image to verify")
	}
	k := &checker{ctx: ctx, in: in, count: map[[2]string]int{}, report: &Report{Reference: in.Images[0].Reference, Findings: []Finding{}, SurfaceOnly: in.SurfaceOnly}}
	if len(in.Images) == 1 {
		k.report.Digest = in.Images[0].Digest.String()
	}
	for _, img := range in.Images {
		want := in.Expect[platformOf(img)]
		k.report.Platforms = append(k.report.Platforms, platformOf(img))
		if want != nil {
			k.report.Profile = want.Profile
			k.held = append(k.held, &held{checker: k, Image: img, want: want})
			k.held[len(k.held)-1].noteUnread()
		}
	}
	slices.Sort(k.report.Platforms)
	k.report.Platforms = slices.Compact(k.report.Platforms)
	rules := surfaceRules()
	if in.Want != nil {
		if err := k.compare(in.Want); err != nil {
			return nil, fmt.Errorf("compare: %w", err)
		}
	}
	for _, r := range rules {
		k.rule = r.Rule
		k.report.Rules = append(k.report.Rules, r.ID)
		if r.all != nil {
			r.all(k)
		}
		for _, h := range k.held {
			if r.each != nil {
				r.each(h)
			}
			if err := cmp.Or(context.Cause(ctx), k.err); err != nil {
				return nil, fmt.Errorf("rule %s, %s: %w", r.ID, platformOf(h.Image), err)
			}
		}
		k.addCounted()
	}
	slices.Sort(k.report.Rules)
	slices.Sort(k.report.Unchecked)
	k.report.Unchecked = slices.Compact(k.report.Unchecked)
	k.report.Add()
	return k.report, nil
}

// Add adds findings, sorts all and updates Passed. Findings that differ only in their places become one.
func (r *Report) Add(findings ...Finding) {
	type key struct{ rule, platform, subject, message string }
	at := map[key]int{}
	var out []Finding
	for _, f := range slices.Concat(r.Findings, findings) {
		k := key{f.Rule, f.Platform, f.Subject, f.Message}
		i, ok := at[k]
		if !ok {
			i = len(out)
			at[k] = i
			out = append(out, f)
			out[i].Places = nil
		}
		for _, p := range f.Places {
			if len(out[i].Places) < mostPlacesKept && !slices.Contains(out[i].Places, p) {
				out[i].Places = append(out[i].Places, p)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Finding) int {
		return cmp.Or(
			cmp.Compare(rank(a.Severity), rank(b.Severity)), strings.Compare(a.Rule, b.Rule),
			strings.Compare(a.Subject, b.Subject), strings.Compare(a.Message, b.Message), strings.Compare(a.Platform, b.Platform),
		)
	})
	r.Findings = slices.Concat([]Finding{}, out)
	r.Passed = !slices.ContainsFunc(r.Findings, func(f Finding) bool { return rank(f.Severity) == 0 }) &&
		(r.Proven != "" || r.SurfaceOnly)
}

// mostPlacesKept limits the places of a finding.
const mostPlacesKept = 100

// rank sorts the gravest first; an unknown severity counts as an error.
func rank(severity string) int {
	switch severity {
	case Info:
		return 2
	case Warning:
		return 1
	}
	return 0
}
