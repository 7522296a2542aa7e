package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLogs: an image without tail and ls shows its programs' logs all the same, and nothing else.
func TestLogs(t *testing.T) {
	dir := t.TempDir()
	logs := filepath.Join(dir, "logs")
	if err := os.Mkdir(logs, 0o755); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", maxLog) + "the end\n"
	for name, text := range map[string]string{"logs/browser.log": "hello\n", "logs/nginx.log": long, "logs/other": "", "secret.log": "secret"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../secret.log", filepath.Join(logs, "link.log")); err != nil {
		t.Fatal(err)
	}
	for program, want := range map[string]string{
		"":          "browser\nlink\nnginx\n",
		"browser":   "hello\n",
		"nginx":     long[len(long)-maxLog:],
		"none":      "error: no program",
		"link":      "error: ",
		"../secret": "error: ",
	} {
		var out strings.Builder
		if err := printLog(logs, program, &out); err != nil {
			out.WriteString("error: " + err.Error())
		}
		if got := out.String(); got != want && !(strings.HasPrefix(want, "error: ") && strings.HasPrefix(got, want)) {
			t.Errorf("%q: %.200q", program, got)
		}
	}
}
