package report

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/verify"
	"github.com/slimctl/slimctl/internal/rawname"
)

// sampleFindings is a report with all that a report can have.
func sampleFindings() *verify.Report {
	layer := "sha256:" + strings.Repeat("ab", 32)
	r := &verify.Report{
		Reference: "example.org/slim:1", Digest: "sha256:" + strings.Repeat("cd", 32), Profile: "l0", Platforms: []string{"linux/amd64", "linux/arm64"},
		Rules: []string{"config", "mcp-servers", "programs", "upstreams"}, Unchecked: []string{"linux/amd64: layer 3 (abcdef), which was not read"},
	}
	r.Add(
		verify.Finding{Rule: "programs", Severity: verify.Error, Platform: "linux/amd64", Subject: "jupyter", Message: `the program "jupyter" runs /usr/bin/jupyter; the profile does not name it`, Fix: "Remove it.", Places: []tree.Place{{Path: "/opt/gem/supervisord.conf", Line: 7, Layer: layer}}},
		verify.Finding{Rule: "programs", Severity: verify.Error, Platform: "linux/arm64", Subject: "jupyter", Message: `the program "jupyter" runs /usr/bin/jupyter; the profile does not name it`, Fix: "Remove it.", Places: []tree.Place{{Path: "/opt/gem/supervisord.conf", Line: 7, Layer: layer}}},
		verify.Finding{Rule: "mcp-servers", Severity: verify.Error, Platform: "linux/arm64", Subject: "evil", Message: "an MCP server too many", Fix: "Remove it.", Source: "l0.yaml:3:4", Places: []tree.Place{{Path: "/a dir/ü:é", Line: 0}, {Path: "a:b"}, {Path: "/3"}, {Path: "/4"}, {Path: "/5"}}},
		verify.Finding{Rule: "config", Severity: verify.Warning, Platform: "linux/amd64", Subject: "title", Message: "another label", Fix: "Set it."},
	)
	return r
}

func TestFormats(t *testing.T) {
	for format, ext := range map[string]string{Text: "txt", JSON: "json", SARIF: "sarif"} {
		var b bytes.Buffer
		if err := Findings(&b, format, sampleFindings()); err != nil {
			t.Fatal(err)
		}
		golden(t, "findings."+ext, b.Bytes())
	}
	if err := Findings(&bytes.Buffer{}, "pdf", sampleFindings()); err == nil || !strings.Contains(err.Error(), "sarif") {
		t.Errorf("pdf: %v", err)
	}
	if err := Rules(&bytes.Buffer{}, "sarif"); err == nil {
		t.Error("the rules are written as sarif")
	}
}

func sarifSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text, err := os.ReadFile("testdata/sarif-2.1.0.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("sarif.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("sarif.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// What is written is SARIF 2.1.0 by its schema, also for an image that says evil things, and its fingerprints stay when lines
// and layers move.
func TestSARIFIsValid(t *testing.T) {
	schema := sarifSchema(t)
	fingerprints := func(r *verify.Report) []string {
		var b bytes.Buffer
		if err := Findings(&b, SARIF, r); err != nil {
			t.Fatal(err)
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(doc); err != nil {
			t.Error(err)
		}
		var log struct {
			Runs []struct {
				Results []struct {
					PartialFingerprints map[string]string
				}
			}
		}
		if err := json.Unmarshal(b.Bytes(), &log); err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, r := range log.Runs[0].Results {
			out = append(out, r.PartialFingerprints["slimctl/v1"])
		}
		return out
	}
	a, moved := sampleFindings(), sampleFindings()
	for i := range moved.Findings {
		for j := range moved.Findings[i].Places {
			moved.Findings[i].Places[j].Line += 5
			moved.Findings[i].Places[j].Layer = "sha256:other"
		}
	}
	before := fingerprints(a)
	if diff := cmp.Diff(before, fingerprints(moved)); diff != "" || len(before) != 4 || before[0] == before[1] {
		t.Errorf("%q: %s", before, diff)
	}
	fingerprints(hostileFindings())
	fingerprints(&verify.Report{})
	if err := schema.Validate(map[string]any{"version": "2.1.0"}); err == nil {
		t.Error("the schema takes anything")
	}
}

// hostileFindings is a report on an image whose names are made for a terminal, for XML and for JSON.
func hostileFindings() *verify.Report {
	const evil = "\x1b]0;owned\x07\u009b2J\u202egnp.exe\x00\xff]]><script>\"'\r\n\U000e0041"
	r := &verify.Report{Reference: evil, Profile: evil, Platforms: []string{"linux/amd64"}, Rules: []string{"programs"}, Unchecked: []string{evil}}
	r.Add(verify.Finding{Rule: "programs", Severity: verify.Error, Platform: "linux/amd64", Subject: evil, Message: evil, Source: evil, Fix: "Remove it.", Places: []tree.Place{{Path: "/" + evil, Line: 1, Layer: evil}}})
	return r
}

// Nothing that an image says acts on a terminal, and each format can be read again.
func TestHostileNames(t *testing.T) {
	for _, format := range []string{Text, JSON, SARIF} {
		var b bytes.Buffer
		if err := Findings(&b, format, hostileFindings()); err != nil {
			t.Fatalf("%s: %v", format, err)
		}
		for _, r := range b.String() {
			if r != '\n' && r != '\t' && !unicode.IsPrint(r) || r == unicode.ReplacementChar && format == Text {
				t.Errorf("%s holds %U", format, r)
			}
		}
		var any any
		switch format {
		case JSON, SARIF:
			if err := json.Unmarshal(b.Bytes(), &any); err != nil {
				t.Errorf("%s: %v", format, err)
			}
		}
	}
	var b bytes.Buffer
	if err := Findings(&b, JSON, hostileFindings()); err != nil {
		t.Fatal(err)
	}
	var back verify.Report
	if err := json.Unmarshal(b.Bytes(), &back); err != nil || !strings.Contains(rawname.Unquote(back.Findings[0].Message), "\u009b2J\u202egnp.exe\x00\xff") {
		t.Errorf("JSON is read back as %q, %v", back.Findings[0].Message, err)
	}
}

// docs/verify.md has every rule, in its table.
func TestDocs(t *testing.T) {
	const file, begin, end = "../../docs/verify.md", "<!-- rules: made by go test ./inspect/report -run TestDocs -update -->\n", "<!-- end of rules -->\n"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok1 := strings.Cut(string(text), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatalf("%s lacks %q or %q", file, begin, end)
	}
	var b strings.Builder
	for _, dynamic := range []bool{false, true} {
		if dynamic {
			b.WriteString("\n### On the running image\n")
		} else {
			b.WriteString("\n### On the image as it lies\n")
		}
		for _, r := range verify.Rules() {
			if r.Dynamic != dynamic {
				continue
			}
			b.WriteString("\n**`" + r.ID + "`** (" + r.Severity)
			if len(r.Holes) > 0 {
				b.WriteString(", hole " + strings.Join(r.Holes, ", "))
			}
			b.WriteString("): " + r.Title + ".\n" + r.Why + " *" + r.Fix + "*\n")
		}
	}
	want := head + begin + b.String() + "\n" + end + tail
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Errorf("docs/verify.md is stale; go test ./inspect/report -run TestDocs -update (-want +have):\n%s", diff)
	}
}
