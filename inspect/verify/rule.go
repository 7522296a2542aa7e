package verify

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"

	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/expect"
)

// rule is a Rule with its checks: each checks the image of one platform, all checks everything together.
type rule struct {
	Rule
	each func(*held)
	all  func(*checker)
}

// surfaceRules returns the rules for every image: they check the profile, on its resulting tree.
func surfaceRules() []rule {
	var out []rule
	for _, l := range lists {
		out = append(out, rule{Rule: l.Rule, each: l.compare})
	}
	return slices.Concat(out, invariants, platformRules)
}

// checker is one run of Check.
type checker struct {
	ctx    context.Context
	in     Input
	held   []*held
	rule   Rule // the current one
	report *Report
	count  map[[2]string]int // of findings, by rule and platform
	err    error             // the first error of reading
}

// mostOfARule limits the findings of a rule on one platform; further ones are only counted. An image can be made to
// have a million.
const mostOfARule = 500

// held is an image with its expectation.
type held struct {
	*checker
	*inspect.Image
	want *expect.Expect
}

// platformOf returns os/arch with the variant, if any; linux/arm64/v8 equals linux/arm64 (OCI image index, "variant").
func platformOf(img *inspect.Image) string {
	p := img.Platform
	s := p.OS + "/" + p.Architecture
	if p.Variant != "" && s+"/"+p.Variant != "linux/arm64/v8" {
		s += "/" + p.Variant
	}
	return s
}

// reportFinding adds a finding of the current rule; what is its subject. Its source is the profile's line that adds the
// first place.
func (h *held) reportFinding(what string, places []tree.Place, format string, args ...any) {
	f := Finding{Platform: platformOf(h.Image), Subject: what, Places: places, Message: fmt.Sprintf(format, args...)}
	if len(places) > 0 {
		f.Source = h.want.Laid[places[0].Path]
	}
	h.addFinding(f)
}

func (k *checker) addFinding(f Finding) {
	of := [2]string{k.rule.ID, f.Platform}
	if k.count[of]++; k.count[of] > mostOfARule {
		return
	}
	f.Rule, f.Severity, f.Fix = k.rule.ID, cmp.Or(f.Severity, k.rule.Severity), k.rule.Fix
	k.report.Findings = append(k.report.Findings, f)
}

// addCounted adds a finding with the number of those that were only counted.
func (k *checker) addCounted() {
	for _, platform := range append(k.report.Platforms, "") {
		if n := k.count[[2]string{k.rule.ID, platform}] - mostOfARule; n > 0 {
			k.report.Findings = append(k.report.Findings, Finding{
				Rule: k.rule.ID, Severity: k.rule.Severity, Fix: k.rule.Fix, Platform: platform,
				Message: english.Plural(n, "more finding of this rule is not listed", "more findings of this rule are not listed"),
			})
		}
	}
}

// at returns the file at p as evidence.
func (h *held) at(p string) []tree.Place { return []tree.Place{h.Files.Place(p, 0)} }

// difference returns the unique elements of a that b lacks, in a's order.
func difference(a, b []string) []string {
	var out []string
	for _, s := range a {
		if !slices.Contains(b, s) && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// joinNames joins names for a sentence; "none" if there is none, and the first few of many.
func joinNames(names []string) string {
	const most = 8
	switch n := len(names); {
	case n == 0:
		return "none"
	case n > most:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), n-most)
	}
	return strings.Join(names, ", ")
}

// shortDigest returns the first twelve digits of a digest.
func shortDigest(digest string) string {
	algorithm, hex, ok := strings.Cut(digest, ":")
	if !ok || len(hex) < 12 {
		return digest
	}
	return algorithm + ":" + hex[:12]
}

// addUnchecked reports a check that was impossible, and the reason.
func (h *held) addUnchecked(format string, args ...any) {
	h.report.Unchecked = append(h.report.Unchecked, platformOf(h.Image)+": "+fmt.Sprintf(format, args...))
}

// noteUnread reports the number of unread layers of a platform.
func (h *held) noteUnread() {
	n := 0
	for _, l := range h.Files.Layers {
		if l.Unread {
			n++
		}
	}
	if n > 0 {
		h.addUnchecked("what %s hold, which were not read", english.Plural(n, "layer", ""))
	}
}
