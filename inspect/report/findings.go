package report

import (
	"bytes"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"

	"github.com/slimctl/slimctl/inspect/verify"
	"github.com/slimctl/slimctl/internal/rawname"
)

// SARIF is SARIF 2.1.0 with places as paths in the image, a format of Findings alone.
const SARIF = "sarif"

// Findings writes a report of verify as Text, JSON or SARIF. The verdict is in Markdown and HTML of Diffs, too.
func Findings(w io.Writer, format string, r *verify.Report) error {
	switch format {
	case Text:
		return findingsText(w, r)
	case JSON:
		return writeDocument(w, r)
	case SARIF:
		return writeDocument(w, sarif(r))
	}
	return fmt.Errorf("report format %q: want text, json or sarif", format)
}

// Rules writes every rule as Text or JSON.
func Rules(w io.Writer, format string) error {
	switch format {
	case JSON:
		return writeDocument(w, verify.Rules())
	case Text:
	default:
		return fmt.Errorf("rules format %q: want text or json", format)
	}
	var b bytes.Buffer
	for i, r := range verify.Rules() {
		marks := ""
		if len(r.Holes) > 0 {
			marks = ", hole " + strings.Join(r.Holes, " ")
		}
		if r.Dynamic {
			marks += ", on the running image"
		}
		fmt.Fprintf(&b, "%s%s  %s%s\n  %s\n  why: %s\n  fix: %s\n", strings.Repeat("\n", min(i, 1)), r.ID, r.Severity, marks, r.Title, r.Why, r.Fix)
	}
	_, err := w.Write(b.Bytes())
	return err
}

// most limits the places of a finding, and the findings of one rule, in the text.
const (
	mostPlaces  = 4
	mostOfRule  = 20
	mostOfOther = 3 // findings of one rule, if compared on a base that the image doesn't name
	mostIdle    = 5
)

func findingsText(w io.Writer, r *verify.Report) error {
	var b bytes.Buffer
	known := verify.ByID()
	findings := r.Merged()
	most := mostOfRule
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
		fmt.Fprintf(&b, "%s %s: %s\n", f.Severity, f.Rule, known[f.Rule].Title)
		for j, g := range findings[i:n] {
			if j == most {
				fmt.Fprintf(&b, "  … and %d more\n", n-i-j)
				break
			}
			writeFinding(&b, g, len(r.Platforms))
		}
		if f.Fix != "" {
			fmt.Fprintf(&b, "  fix: %s\n", f.Fix)
		}
		b.WriteByte('\n')
		i = n
	}
	writeUse(&b, r.Use)
	for _, u := range r.Unchecked {
		fmt.Fprintf(&b, "not checked: %s\n", rawname.Line(u))
	}
	fmt.Fprintf(&b, "%s: %s\n", rawname.Line(r.Name()), verdict(r))
	_, err := w.Write(b.Bytes())
	return err
}

// writeUse writes the used part, and the largest unused files.
func writeUse(b *bytes.Buffer, u *verify.Use) {
	if u == nil {
		return
	}
	fmt.Fprintf(b, "opened: %d of %d files, %s of %s", u.Opened.Files, u.All.Files, Bytes(u.Opened.Bytes), Bytes(u.All.Bytes))
	for i, f := range u.Idle[:min(len(u.Idle), mostIdle)] {
		fmt.Fprintf(b, "%s%s %s", map[bool]string{true: "; largest never opened: ", false: ", "}[i == 0], rawname.Line(f.Path), Bytes(f.Bytes))
	}
	b.WriteByte('\n')
}

func writeFinding(b *bytes.Buffer, f verify.Merged, platforms int) {
	fmt.Fprintf(b, "  %s", rawname.Line(f.Message))
	if len(f.Platforms) < platforms && len(f.Platforms) > 0 {
		fmt.Fprintf(b, " [%s]", rawname.Line(strings.Join(f.Platforms, ", ")))
	}
	b.WriteByte('\n')
	for i, p := range f.Places {
		if i == mostPlaces {
			fmt.Fprintf(b, "    … and %s\n", english.Plural(len(f.Places)-i, "more place", ""))
			break
		}
		fmt.Fprintf(b, "    at %s", rawname.Line(p.String()))
		if p.Layer != "" {
			fmt.Fprintf(b, " (layer %s)", short(p.Layer))
		}
		b.WriteByte('\n')
	}
	if f.Source != "" {
		fmt.Fprintf(b, "    by %s\n", rawname.Line(f.Source))
	}
}

// verdict returns the last line of the text.
func verdict(r *verify.Report) string {
	result := "passed"
	if !r.Passed {
		result = "not passed"
	}
	against := "profile " + rawname.Line(r.Profile)
	if r.Base != "" {
		against += " on " + rawname.Line(r.Base)
	}
	return fmt.Sprintf("%s: %s; %s, %s, %s, %s", result, proof(r, against), rawname.Line(strings.Join(r.Platforms, " and ")), english.Plural(len(r.Rules), "rule", ""),
		english.Plural(r.Count(verify.Error), "error", ""), english.Plural(r.Count(verify.Warning), "warning", ""))
}

// proof returns a short description of Proven.
func proof(r *verify.Report, against string) string {
	switch {
	case r.Proven == verify.ByDigest:
		return "proven, " + against + " gives this digest"
	case r.Proven == verify.ByTree:
		return "proven, " + against + " gives these files and this config"
	case r.SurfaceOnly:
		return against + ", surface only, nothing was proven"
	}
	return against + ", not proven"
}

// object is a JSON object.
type object = map[string]any

// sarif returns a report in SARIF 2.1.0 (sections 3.13 to 3.49). Paths are relative to ROOTFS, the image's root.
func sarif(r *verify.Report) object {
	known, ids := verify.ByID(), r.RuleIDs()
	message := func(s string) object { return object{"text": rawname.Line(s)} }
	rules, results := []object{}, []object{}
	for _, id := range ids {
		k := known[id]
		rule := object{
			"id": id, "shortDescription": message(k.Title), "fullDescription": message(k.Why), "help": message(k.Fix),
			"defaultConfiguration": object{"level": sarifLevel(k.Severity)},
		}
		if len(k.Holes) > 0 {
			rule["properties"] = object{"holes": k.Holes}
		}
		rules = append(rules, rule)
	}
	for _, f := range r.Findings {
		properties := object{}
		for key, value := range map[string]string{"platform": f.Platform, "subject": f.Subject, "profile": f.Source} {
			if value != "" {
				properties[key] = rawname.Line(value)
			}
		}
		var locations []object
		for _, p := range f.Places {
			uri := strings.ReplaceAll((&url.URL{Path: strings.TrimPrefix(p.Path, "/")}).EscapedPath(), ":", "%3A")
			physical := object{"artifactLocation": object{"uri": uri, "uriBaseId": "ROOTFS"}}
			if p.Line > 0 {
				physical["region"] = object{"startLine": p.Line}
			}
			at := object{"physicalLocation": physical}
			if p.Layer != "" {
				at["message"] = message("layer " + p.Layer)
			}
			locations = append(locations, at)
		}
		if len(f.Places) == 0 {
			logical := object{"fullyQualifiedName": rawname.Line(strings.TrimSpace(r.Reference + " " + f.Subject))}
			if f.Subject != "" {
				logical["name"] = rawname.Line(f.Subject)
			}
			locations = []object{{"logicalLocations": []object{logical}}}
		}
		results = append(results, object{
			"ruleId": f.Rule, "ruleIndex": slices.Index(ids, f.Rule), "level": sarifLevel(f.Severity), "message": message(f.Message),
			"locations": locations, "partialFingerprints": object{"slimctl/v1": f.Fingerprint()}, "properties": properties,
		})
	}
	return object{"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": []object{{
		"tool":               object{"driver": object{"name": "slimctl verify", "informationUri": "https://github.com/slimctl/slimctl", "rules": rules}},
		"originalUriBaseIds": object{"ROOTFS": object{"uri": "file:///", "description": message("the root of the image " + r.Name())}},
		"results":            results,
	}}}
}

// sarifLevel returns SARIF's word for a severity: an unknown one counts as an error.
func sarifLevel(severity string) string {
	if severity != verify.Warning && severity != verify.Info {
		return verify.Error
	}
	return severity
}
