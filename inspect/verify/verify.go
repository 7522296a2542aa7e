// Package verify holds an image against what a profile expects, and tells every difference as a finding.
package verify

import (
	"context"

	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/expect"
)

// Severities of a finding, by SARIF's words (SARIF 2.1.0, section 3.27.10).
const (
	Error   = "error"   // the image is not closed: the gate fails
	Warning = "warning" // worth a look: the gate holds
	Info    = "note"
)

// Rule is one thing that is checked.
type Rule struct {
	// ID is stable: "nginx-port-proxy".
	ID       string `json:"id"`
	Title    string `json:"title"`
	Severity string `json:"severity"`
	// Why says what somebody does with an image that breaks the rule; Fix what to do about it.
	Why string `json:"why"`
	Fix string `json:"fix"`
	// Holes are the letters of facts/aio-base.md 4.4 that the rule finds, for example "b".
	Holes []string `json:"holes,omitempty"`
	// Dynamic is true for what only a running image shows.
	Dynamic bool `json:"dynamic,omitempty"`
}

// Finding is one difference between an image and what the profile expects.
type Finding struct {
	Rule     string `json:"rule"`
	Severity string `json:"severity"`
	Platform string `json:"platform,omitempty"`
	// Message says what is wrong, with names.
	Message string `json:"message"`
	// Places are the evidence; Subject what it is about: a route, a program, a variable.
	Places  []tree.Place `json:"places,omitempty"`
	Subject string       `json:"subject,omitempty"`
	// Source is the profile's line that it is held against, as file:line:column.
	Source string `json:"source,omitempty"`
	Fix    string `json:"fix,omitempty"`
}

// Input is what Check works on.
type Input struct {
	Images []*inspect.Image
	// Expect is one for each image, by platform.
	Expect map[string]*expect.Expect
	// Annotations are the index's; nil for an image without one.
	Annotations map[string]string
}

// Report is the result.
type Report struct {
	Reference string   `json:"reference"`
	Digest    string   `json:"digest"`
	Profile   string   `json:"profile"`
	Platforms []string `json:"platforms"`
	// Rules are the IDs of every rule that was checked.
	Rules    []string  `json:"rules"`
	Findings []Finding `json:"findings"`
	// Passed is true when no finding is an Error.
	Passed bool `json:"passed"`
	// Unchecked says what could not be looked at, and why.
	Unchecked []string `json:"unchecked,omitempty"`
}

// Rules lists every rule, static ones first, sorted by ID.
func Rules() []Rule { panic("not yet") }

// Check checks every static rule.
func Check(ctx context.Context, in Input) (*Report, error) { panic("not yet") }
