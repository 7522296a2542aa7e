package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/internal/ocitest"
)

// TestReadmeCommand runs the first command of the README as a new user does, in an empty directory.
func TestReadmeCommand(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	command := regexp.MustCompile(`(?m)^    go run ./cmd/slimctl (.+)$`).FindSubmatch(readme)
	if command == nil {
		t.Fatal("the README doesn't begin with a command")
	}
	t.Chdir(t.TempDir())
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), strings.Fields(string(command[1])), &stdout, &stderr); code != 0 {
		t.Fatalf("slimctl %s: exit %d\n%s", command[1], code, &stderr)
	}
	layouts, err := filepath.Glob("*")
	if err != nil || len(layouts) != 1 {
		t.Fatalf("it made %v, %v", layouts, err)
	}
	if n := len(ocitest.Layout(t, layouts[0])); n != 2 {
		t.Errorf("%s holds %d images, want one for each of two platforms", layouts[0], n)
	}
}
