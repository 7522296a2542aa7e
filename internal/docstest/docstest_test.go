package docstest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// recorder is a testing.TB that notes a failure and goes on no further.
type recorder struct {
	testing.TB
	failure string
}

func (*recorder) Helper() {}

func (r *recorder) Fatal(args ...any) { r.Fatalf("%s", fmt.Sprint(args...)) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.failure = fmt.Sprintf(format, args...)
	panic(r)
}

func TestRun(t *testing.T) {
	for _, c := range []struct {
		name, page, failure string
	}{
		{name: "as it says", page: "```console\n$ echo one; echo two\none\ntwo\n```\n"},
		{name: "standard error too", page: "```console\n$ echo oops >&2\noops\n```\n"},
		{name: "any text", page: "```console\n$ echo sha256:abc of 3\nsha256:… of 3\n```\n"},
		{name: "any lines", page: "```console\n$ seq 9\n1\n…\n8\n9\n```\n"},
		{name: "no line", page: "```console\n$ seq 2\n1\n…\n2\n```\n"},
		{name: "continued", page: "```console\n$ echo \\\n    hello\nhello\n```\n"},
		{name: "columns", page: "```console\n$ printf 'a     b\\n'\na b\n```\n"},
		{name: "a file", page: "```yaml file=d/x.yaml\na: 1\n```\n```console\n$ cat d/x.yaml\na: 1\n```\n"},
		{name: "another registry", page: "```console\n$ echo push ghcr.io/you\npush ghcr.io/you\n$ test \"$(echo ghcr.io)\" = localhost:1\n```\n"},
		{name: "status", page: "```console\n$ echo no; (exit 3)\nno\n[exit 3]\n```\n"},
		{name: "variables last", page: "```console\n$ x=1\n```\nand\n```console\n$ echo $x\n1\n```\n"},
		{name: "in the background", page: "```console\n$ sleep 1000 &\n$ jobs -p | wc -l\n1\n```\n"},
		{name: "no newline at the end", page: "```console\n$ printf x\nx\n```\n"},
		{name: "in a comment", page: "<!--\n```console\n$ x=1\n```\n-->\n```console\n$ echo $x\n1\n```\n"},
		{name: "nothing said of the output", page: "```console\n$ echo anything\n```\n"},

		{name: "another line", page: "```console\n$ echo two\none\n```\n", failure: "page.md:2: the page doesn't say"},
		{name: "a line more", page: "```console\n$ echo one; echo two\none\n```\n", failure: "page.md:2"},
		{name: "a line less", page: "\n```console\n$ echo one\none\ntwo\n```\n", failure: "page.md:3"},
		{name: "another status", page: "```console\n$ (exit 4)\n```\n", failure: "exit status 4, want 0"},
		{name: "success where a failure is said", page: "```console\n$ true\n[exit 1]\n```\n", failure: "exit status 0, want 1"},
		{name: "in a pipe", page: "```console\n$ false | true\n```\n", failure: "exit status 1"},
		{name: "an open quotation mark", page: "```console\n$ echo 'one\n```\n", failure: "page.md:2: exit status 2"},
		{name: "the shell ends", page: "```console\n$ echo bye; exit 0\n```\n", failure: "page.md:2: the shell ended"},
		{name: "no command", page: "```yaml\na: 1\n```\n", failure: "no console block"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			page := filepath.Join(dir, "page.md")
			if err := os.WriteFile(page, []byte(c.page), 0o644); err != nil {
				t.Fatal(err)
			}
			r := &recorder{TB: t}
			func() {
				defer func() {
					if p := recover(); p != nil && p != any(r) {
						panic(p)
					}
				}()
				Run(r, page, Options{Dir: dir, Env: os.Environ(), Replace: []string{"ghcr.io", "localhost:1"}})
			}()
			if (c.failure == "") != (r.failure == "") || !strings.Contains(r.failure, c.failure) {
				t.Errorf("failed with %q, want %q", r.failure, c.failure)
			}
		})
	}
}
