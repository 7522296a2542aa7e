package lock_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/build/lock"
)

func TestReadRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                                "slim.lock:1:1",
		"{\n \"version\": x}":             "slim.lock:2:",
		`{"version": 1}`:                  "lock version 1",
		`{"version": 2, "colour": "red"}`: "colour",
		`{"version": 2, "platforms": {"a": null}}`: "platform a is empty",
		`{"version": "1"}`:                         "slim.lock:1:",
		"{\"version\": 2}\n{\"version\": 2}":       "slim.lock:2:", // two of them, after a merge
		"{\"version\": 2}\n>>>>>>> theirs":         "slim.lock:2:",
	} {
		file := filepath.Join(t.TempDir(), lock.Name)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := lock.Read(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error is %v, want one that says %s", text, err, want)
		}
	}
}
