package nginx

import "testing"

// What nginx 1.22.1 does with the path of a request line: each was tried with a location that returns $uri.
func TestNormalise(t *testing.T) {
	for _, tt := range []struct {
		raw       string
		merge     bool
		want      string
		malformed bool
	}{
		{raw: "/mcp", want: "/mcp"},
		{raw: "/mcp?x=/v1#y", want: "/mcp"},
		{raw: "/mcp#/v1", want: "/mcp"},
		{raw: "/%6dcp", want: "/mcp"},
		{raw: "/mcp/../v1", want: "/v1"},
		{raw: "/mcp/%2e%2e/v1", want: "/v1"},
		{raw: "/mcp%2f..%2fv1", want: "/v1"},
		{raw: "/mcp/.", want: "/mcp/"},
		{raw: "/mcp/./x", want: "/mcp/x"},
		{raw: "/vnc/..", want: "/"},
		{raw: "//mcp", merge: true, want: "/mcp"},
		{raw: "//mcp", want: "//mcp"},
		{raw: "/mcp//", merge: true, want: "/mcp/"},
		{raw: "/mcp%20", want: "/mcp "},
		{raw: "/%2f", want: "//"},
		{raw: "/%2f", merge: true, want: "/"},
		{raw: "/a//../b", want: "/a/b"},
		{raw: "/a//../b", merge: true, want: "/b"},
		{raw: "/a/..//", want: "//"},
		{raw: "/a/..//", merge: true, want: "/"},
		{raw: "/a/b/../../..", malformed: true},
		{raw: "/..", malformed: true},
		{raw: "/%00", malformed: true},
		{raw: "/%zz", malformed: true},
		{raw: "/%6", malformed: true},
		{raw: "mcp", malformed: true},
	} {
		got, ok := Normalise(tt.raw, tt.merge)
		if ok == tt.malformed || ok && got != tt.want {
			t.Errorf("%s, merged %v: %q, %v; want %q", tt.raw, tt.merge, got, ok, tt.want)
		}
	}
}
