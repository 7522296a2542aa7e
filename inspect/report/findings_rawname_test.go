package report

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/verify"
	"github.com/slimctl/slimctl/internal/rawname"
)

// TestRawNames: a name that is no UTF-8 leads back to its file from each format for programs.
func TestRawNames(t *testing.T) {
	const path = "/opt/\xff\u202e"
	r := &verify.Report{Rules: []string{"file-closed"}}
	r.Add(verify.Finding{Rule: "file-closed", Severity: verify.Error, Message: "there is " + path, Subject: path, Places: []tree.Place{{Path: path}}})
	var b bytes.Buffer
	if err := Findings(&b, JSON, r); err != nil {
		t.Fatal(err)
	}
	var got verify.Report
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got = rawname.Unquoted(got); got.Findings[0].Places[0].Path != path || got.Findings[0].Subject != path {
		t.Errorf("JSON: %q", got.Findings)
	}
	b.Reset()
	if err := Findings(&b, SARIF, r); err != nil {
		t.Fatal(err)
	}
	if s := b.String(); strings.Contains(s, "\uFFFD") || strings.Contains(s, `\ufffd`) || !strings.Contains(s, "opt/%FF%E2%80%AE") {
		t.Errorf("SARIF: %s", s)
	}
}
