package verify

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/expect"
)

// rule is a Rule with what checks it: each looks at the image of one platform, all at everything together.
type rule struct {
	Rule
	each func(*held)
	all  func(*checker)
}

// surfaceRules are checked on every image: they check the profile, on the tree that it gives.
var surfaceRules = slices.Concat(
	mcpRules, programRules, startRules, routeRules, nginxRules, listenerRules, fileRules, privilegeRules, secretRules, platformRules, noteRules,
)

// checker is one run of Check.
type checker struct {
	ctx    context.Context
	in     Input
	held   []*held
	rule   Rule // the one that is being checked
	report *Report
	count  map[[2]string]int // of findings, by rule and platform
	err    error             // the first trouble with reading
}

// mostOfARule is how many findings a rule has on one platform before the others are only counted: an image can be made to
// have a million.
const mostOfARule = 500

// full says that nothing more need be looked for.
func (h *held) full() bool {
	return h.count[[2]string{h.rule.ID, platformOf(h.Image)}] > 10*mostOfARule
}

// held is an image with what it is held against.
type held struct {
	*checker
	*inspect.Image
	want *expect.Expect
}

// platformOf is os/arch with the variant, if any; linux/arm64/v8 is what linux/arm64 means (OCI image index, "variant").
func platformOf(img *inspect.Image) string {
	p := img.Platform
	s := p.OS + "/" + p.Architecture
	if p.Variant != "" && s+"/"+p.Variant != "linux/arm64/v8" {
		s += "/" + p.Variant
	}
	return s
}

// found reports a finding of the rule that is being checked. what is its subject.
func (h *held) found(what string, places []tree.Place, format string, args ...any) {
	h.foundIn("", what, places, format, args...)
}

// foundIn is found with the profile's line that it is held against.
func (h *held) foundIn(source, what string, places []tree.Place, format string, args ...any) {
	h.add(Finding{
		Platform: platformOf(h.Image), Subject: what, Places: places, Source: source, Message: fmt.Sprintf(format, args...),
	})
}

func (k *checker) add(f Finding) {
	of := [2]string{k.rule.ID, f.Platform}
	if k.count[of]++; k.count[of] > mostOfARule {
		return
	}
	f.Rule, f.Severity, f.Fix = k.rule.ID, k.rule.Severity, k.rule.Fix
	k.report.Findings = append(k.report.Findings, f)
}

// more tells of the findings that were only counted.
func (k *checker) more() {
	for _, platform := range append(k.report.Platforms, "") {
		if n := k.count[[2]string{k.rule.ID, platform}] - mostOfARule; n > 0 {
			k.report.Findings = append(k.report.Findings, Finding{
				Rule: k.rule.ID, Severity: k.rule.Severity, Fix: k.rule.Fix, Platform: platform,
				Message: fmt.Sprintf("%d more findings of this rule are not listed", n),
			})
		}
	}
}

// at is the file at p as evidence.
func (h *held) at(p string) []tree.Place { return []tree.Place{h.Files.Place(p, 0)} }

// difference lists what of a the list b has not, in a's order, each once.
func difference(a, b []string) []string {
	var out []string
	for _, s := range a {
		if !slices.Contains(b, s) && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// list writes names for a sentence; "none" when there is none, and the first few of many.
func list(names []string) string {
	const most = 8
	switch n := len(names); {
	case n == 0:
		return "none"
	case n > most:
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), n-most)
	}
	return strings.Join(names, ", ")
}
