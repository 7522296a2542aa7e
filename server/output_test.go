package server

import (
	"testing"

	"github.com/slimctl/slimctl/server/policy"
)

// TestTerminalOutput: a page's words, of a dialog or a title, don't control the terminal of the one who prints an answer.
func TestTerminalOutput(t *testing.T) {
	h := truncate{policy: policy.Default()}
	got := h.OnAfter(t.Context(), Call{}, Result{Stdout: "{\"title\":\"a\u009b2J\x7f é\"}\n", Stderr: "blocked: \"\x1b[2J\u009b2J\x00\tb\"\n"})
	if want := "{\"title\":\"a\\u009b2J\\u007f é\"}\n"; got.Stdout != want {
		t.Errorf("stdout %q, want %q", got.Stdout, want)
	}
	if want := "blocked: \"\ufffd[2J\ufffd2J\ufffd\tb\"\n"; got.Stderr != want {
		t.Errorf("stderr %q, want %q", got.Stderr, want)
	}
}
