package verify

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
	"github.com/jstemmer/go-junit-report/v2/junit"

	"github.com/slimctl/slimctl/internal/rawname"
)

// Formats of a report. Rules can be written as Text and JSON.
const (
	Text  = "text"
	JSON  = "json"
	JUnit = "junit" // JUnit's XML with a test case for each rule
	SARIF = "sarif" // SARIF 2.1.0 with places as paths in the image
)

// Write writes the report in one of the formats. It escapes control characters in the image's content.
func (r *Report) Write(w io.Writer, format string) error {
	switch format {
	case Text:
		return r.writeText(w)
	case JSON:
		return writeJSON(w, rawname.Quoted(*r))
	case JUnit:
		return r.writeJUnit(w)
	case SARIF:
		return writeJSON(w, r.sarif())
	}
	return fmt.Errorf("report format %q: want text, json, junit or sarif", format)
}

// WriteRules writes every rule as Text or JSON.
func WriteRules(w io.Writer, format string) error {
	switch format {
	case JSON:
		return writeJSON(w, Rules())
	case Text:
	default:
		return fmt.Errorf("rules format %q: want text or json", format)
	}
	var b bytes.Buffer
	for i, r := range Rules() {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%s  %s%s\n  %s\n  why: %s\n  fix: %s\n", r.ID, r.Severity, r.marks(), r.Title, r.Why, r.Fix)
	}
	_, err := w.Write(b.Bytes())
	return err
}

// marks returns the holes that a rule finds, and whether it needs a running image.
func (r Rule) marks() string {
	var out string
	if len(r.Holes) > 0 {
		out = ", hole " + strings.Join(r.Holes, " ")
	}
	if r.Dynamic {
		out += ", on the running image"
	}
	return out
}

// writeJSON writes v with an escape for every character that a terminal interprets; JSON readers decode it.
func writeJSON(w io.Writer, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(rawname.Printable(b.Bytes()))
	return err
}

// same identifies findings that differ only in their platforms.
type same struct {
	Finding
	platforms []string
}

// merged joins equal findings of several platforms, in the report's order.
func (r *Report) merged() []same {
	var out []same
	at := map[string]int{}
	for _, f := range r.Findings {
		k := f.Rule + "\x00" + f.Subject + "\x00" + f.Message
		i, ok := at[k]
		if !ok {
			i = len(out)
			at[k] = i
			out = append(out, same{Finding: f})
		}
		if f.Platform != "" && !slices.Contains(out[i].platforms, f.Platform) {
			out[i].platforms = append(out[i].platforms, f.Platform)
		}
	}
	return out
}

// most limits the places of a finding, and the findings of one rule, in the text.
const (
	mostPlaces   = 4
	mostFindings = 20
	mostOfOther  = 3 // findings of one rule, if compared on a base that the image doesn't name
	mostIdle     = 5
)

func (r *Report) writeText(w io.Writer) error {
	var b bytes.Buffer
	known := byID()
	titles := map[string]string{Error: "error", Warning: "warning", Info: "note"}
	findings := r.merged()
	most := mostFindings
	if r.OtherBase != "" {
		most = mostOfOther
		fmt.Fprintf(&b, "%s names another base than %s: %s; if that is its base, pass --base IMAGE@%[3]s, or --lock FILE\n\n",
			rawname.Line(r.Reference), rawname.Line(r.Base), r.OtherBase)
	}
	for i := 0; i < len(findings); {
		f := findings[i]
		n := i
		for n < len(findings) && findings[n].Rule == f.Rule && findings[n].Severity == f.Severity {
			n++
		}
		fmt.Fprintf(&b, "%s %s: %s\n", titles[f.Severity], f.Rule, known[f.Rule].Title)
		for j, g := range findings[i:n] {
			if j == most {
				fmt.Fprintf(&b, "  … and %d more\n", n-i-j)
				break
			}
			g.write(&b, len(r.Platforms))
		}
		if f.Fix != "" {
			fmt.Fprintf(&b, "  fix: %s\n", f.Fix)
		}
		b.WriteByte('\n')
		i = n
	}
	r.Use.write(&b)
	for _, u := range r.Unchecked {
		fmt.Fprintf(&b, "not checked: %s\n", rawname.Line(u))
	}
	fmt.Fprintf(&b, "%s: %s\n", rawname.Line(r.name()), r.summary())
	_, err := w.Write(b.Bytes())
	return err
}

// write writes the used part, and the largest unused files.
func (u *Use) write(b *bytes.Buffer) {
	if u == nil {
		return
	}
	fmt.Fprintf(b, "opened: %d of %d files, %s of %s", u.Opened.Files, u.All.Files, size(u.Opened.Bytes), size(u.All.Bytes))
	for i, f := range u.Idle[:min(len(u.Idle), mostIdle)] {
		fmt.Fprintf(b, "%s%s %s", map[bool]string{true: "; largest never opened: ", false: ", "}[i == 0], rawname.Line(f.Path), size(f.Bytes))
	}
	b.WriteByte('\n')
}

func size(bytes int64) string { return humanize.Bytes(uint64(bytes)) } //nolint:gosec // a size is not negative

func (f same) write(b *bytes.Buffer, platforms int) {
	fmt.Fprintf(b, "  %s", rawname.Line(f.Message))
	if len(f.platforms) < platforms && len(f.platforms) > 0 {
		fmt.Fprintf(b, " [%s]", rawname.Line(strings.Join(f.platforms, ", ")))
	}
	b.WriteByte('\n')
	for i, p := range f.Places {
		if i == mostPlaces {
			fmt.Fprintf(b, "    … and %s\n", english.Plural(len(f.Places)-i, "more place", ""))
			break
		}
		fmt.Fprintf(b, "    at %s", rawname.Line(p.String()))
		if p.Layer != "" {
			fmt.Fprintf(b, " (layer %s)", rawname.Line(shortDigest(p.Layer)))
		}
		b.WriteByte('\n')
	}
	if f.Source != "" {
		fmt.Fprintf(b, "    by %s\n", rawname.Line(f.Source))
	}
}

// name returns the image's reference with its digest.
func (r *Report) name() string {
	if r.Digest == "" || strings.Contains(r.Reference, r.Digest) {
		return r.Reference
	}
	return r.Reference + "@" + r.Digest
}

// Count counts the findings of a severity; one on several platforms counts once.
func (r *Report) Count(severity string) (n int) {
	for _, f := range r.merged() {
		if f.Severity == severity {
			n++
		}
	}
	return n
}

func (r *Report) summary() string {
	verdict := "passed"
	if !r.Passed {
		verdict = "not passed"
	}
	against := "profile " + rawname.Line(r.Profile)
	if r.Base != "" {
		against += " on " + rawname.Line(r.Base)
	}
	return fmt.Sprintf("%s: %s; %s, %s, %s, %s", verdict, r.proof(against), rawname.Line(strings.Join(r.Platforms, " and ")), english.Plural(len(r.Rules), "rule", ""),
		english.Plural(r.Count(Error), "error", ""), english.Plural(r.Count(Warning), "warning", ""))
}

// proof returns a short description of Proven.
func (r *Report) proof(against string) string {
	switch {
	case r.Proven == ByDigest:
		return "proven, " + against + " gives this digest"
	case r.Proven == ByTree:
		return "proven, " + against + " gives these files and this config"
	case r.SurfaceOnly:
		return against + ", surface only, nothing was proven"
	}
	return against + ", not proven"
}

func byID() map[string]Rule {
	out := map[string]Rule{}
	for _, r := range Rules() {
		out[r.ID] = r
	}
	return out
}

// ruleIDs returns the rules of the report: those checked, and those with findings.
func (r *Report) ruleIDs() []string {
	out := slices.Clone(r.Rules)
	for _, f := range r.Findings {
		out = append(out, f.Rule)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (r *Report) writeJUnit(w io.Writer) error {
	known := byID()
	suite := junit.Testsuite{Name: rawname.Line(r.name()), Package: "slimctl.verify." + rawname.Line(r.Profile), Time: "0"}
	for _, u := range r.Unchecked {
		suite.AddProperty("unchecked", rawname.Line(u))
	}
	findings := r.merged()
	for _, id := range r.ruleIDs() {
		c := junit.Testcase{Name: id, Classname: "slimctl.verify." + rawname.Line(r.Profile), Time: "0"}
		var text bytes.Buffer
		var first string
		failed := false
		for _, f := range findings {
			if f.Rule != id {
				continue
			}
			if f.Severity == Error && !failed {
				failed, first = true, f.Message
			}
			f.write(&text, len(r.Platforms))
		}
		if failed {
			fmt.Fprintf(&text, "fix: %s\n", known[id].Fix)
			c.Failure = &junit.Result{Message: rawname.Line(first), Type: id, Data: cdata(text.String())}
		} else if text.Len() > 0 {
			c.SystemOut = &junit.Output{Data: cdata(text.String())}
		}
		suite.AddTestcase(c)
	}
	suites := junit.Testsuites{Name: "slimctl verify"}
	suites.AddSuite(suite)
	if _, err := io.WriteString(w, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"); err != nil {
		return err
	}
	return suites.WriteXML(w)
}

// cdata splits "]]>", the only text that ends a CDATA section.
func cdata(s string) string { return strings.ReplaceAll(s, "]]>", "]] >") }

// The used parts of SARIF 2.1.0 (sections 3.13 to 3.49).
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool struct {
			Driver struct {
				Name           string      `json:"name"`
				InformationURI string      `json:"informationUri"`
				Rules          []sarifRule `json:"rules"`
			} `json:"driver"`
		} `json:"tool"`
		OriginalURIBaseIDs map[string]sarifArtifact `json:"originalUriBaseIds"`
		Results            []sarifResult            `json:"results"`
	}
	sarifText struct {
		Text string `json:"text"`
	}
	sarifRule struct {
		ID               string    `json:"id"`
		ShortDescription sarifText `json:"shortDescription"`
		FullDescription  sarifText `json:"fullDescription"`
		Help             sarifText `json:"help"`
		Default          struct {
			Level string `json:"level"`
		} `json:"defaultConfiguration"`
		Properties map[string][]string `json:"properties,omitempty"`
	}
	sarifResult struct {
		RuleID       string            `json:"ruleId"`
		RuleIndex    int               `json:"ruleIndex"`
		Level        string            `json:"level"`
		Message      sarifText         `json:"message"`
		Locations    []sarifLocation   `json:"locations"`
		Fingerprints map[string]string `json:"partialFingerprints"`
		Properties   map[string]string `json:"properties,omitempty"`
	}
	sarifLocation struct {
		Physical *sarifPhysical `json:"physicalLocation,omitempty"`
		Logical  []sarifLogical `json:"logicalLocations,omitempty"`
		Message  *sarifText     `json:"message,omitempty"`
	}
	sarifPhysical struct {
		Artifact sarifArtifact `json:"artifactLocation"`
		Region   *sarifRegion  `json:"region,omitempty"`
	}
	sarifArtifact struct {
		URI         string     `json:"uri"`
		URIBaseID   string     `json:"uriBaseId,omitempty"`
		Description *sarifText `json:"description,omitempty"`
	}
	sarifRegion struct {
		StartLine int `json:"startLine"`
	}
	sarifLogical struct {
		Name               string `json:"name,omitempty"`
		FullyQualifiedName string `json:"fullyQualifiedName"`
	}
)

// rootfs is the base of the places in the image.
const rootfs = "ROOTFS"

func (r *Report) sarif() sarifLog {
	run := sarifRun{Results: []sarifResult{}, OriginalURIBaseIDs: map[string]sarifArtifact{
		rootfs: {URI: "file:///", Description: &sarifText{"the root of the image " + rawname.Line(r.name())}},
	}}
	run.Tool.Driver.Name, run.Tool.Driver.InformationURI = "slimctl verify", "https://github.com/slimctl/slimctl"
	run.Tool.Driver.Rules = []sarifRule{}
	known, ids := byID(), r.ruleIDs()
	for _, id := range ids {
		k := known[id]
		rule := sarifRule{ID: id, ShortDescription: sarifText{k.Title}, FullDescription: sarifText{k.Why}, Help: sarifText{k.Fix}}
		rule.Default.Level = level(k.Severity)
		if len(k.Holes) > 0 {
			rule.Properties = map[string][]string{"holes": k.Holes}
		}
		run.Tool.Driver.Rules = append(run.Tool.Driver.Rules, rule)
	}
	for _, f := range r.Findings {
		result := sarifResult{
			RuleID: f.Rule, RuleIndex: slices.Index(ids, f.Rule), Level: level(f.Severity), Message: sarifText{rawname.Line(f.Message)},
			Fingerprints: map[string]string{"slimctl/v1": f.fingerprint()}, Properties: map[string]string{},
		}
		for key, value := range map[string]string{"platform": f.Platform, "subject": f.Subject, "profile": f.Source} {
			if value != "" {
				result.Properties[key] = rawname.Line(value)
			}
		}
		for _, p := range f.Places {
			at := sarifLocation{Physical: &sarifPhysical{Artifact: sarifArtifact{
				URI: strings.ReplaceAll((&url.URL{Path: strings.TrimPrefix(p.Path, "/")}).EscapedPath(), ":", "%3A"), URIBaseID: rootfs,
			}}}
			if p.Line > 0 {
				at.Physical.Region = &sarifRegion{p.Line}
			}
			if p.Layer != "" {
				at.Message = &sarifText{"layer " + rawname.Line(p.Layer)}
			}
			result.Locations = append(result.Locations, at)
		}
		if len(f.Places) == 0 {
			name := rawname.Line(strings.TrimSpace(r.Reference + " " + f.Subject))
			result.Locations = []sarifLocation{{Logical: []sarifLogical{{Name: rawname.Line(f.Subject), FullyQualifiedName: name}}}}
		}
		run.Results = append(run.Results, result)
	}
	return sarifLog{Schema: "https://json.schemastore.org/sarif-2.1.0.json", Version: "2.1.0", Runs: []sarifRun{run}}
}

// level returns SARIF's word for a severity; they are equal.
func level(severity string) string {
	if rank(severity) == 0 {
		return Error
	}
	return severity
}

// fingerprint is stable for one finding across builds: it contains no lines, layers or digests.
func (f Finding) fingerprint() string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\x00%s\x00%s", f.Rule, f.Platform, f.Subject)
	var paths []string
	for _, p := range f.Places {
		paths = append(paths, p.Path)
	}
	slices.Sort(paths)
	for _, p := range slices.Compact(paths) {
		fmt.Fprintf(h, "\x00%s", p)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}
