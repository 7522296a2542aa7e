package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// TestNamesInErrors: names that somebody else gave reach the terminal neither raw nor as lines of their own.
func TestNamesInErrors(t *testing.T) {
	const evil = "x\x1b]0;owned\a\u009b31m\u202e\nslimctl: hint: run this"
	dir := t.TempDir()
	named, foreign := filepath.Join(dir, "named"), filepath.Join(dir, "foreign")
	for _, l := range []struct {
		dir    string
		config v1.ConfigFile
	}{{named, v1.ConfigFile{OS: "linux", Architecture: "amd64"}}, {foreign, v1.ConfigFile{OS: "linux", Architecture: evil}}} {
		img, err := mutate.ConfigFile(empty.Image, &l.config)
		if err != nil {
			t.Fatal(err)
		}
		at, err := layout.Write(l.dir, empty.Index)
		if err == nil {
			err = at.AppendImage(img, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": evil}),
				layout.WithPlatform(v1.Platform{OS: "linux", Architecture: "amd64"}))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	profile := filepath.Join(dir, "\u009b31m\u202e.yaml")
	if err := os.WriteFile(profile, []byte("name: x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"names of images": {"inspect", "oci:" + named + ":none"},
		"a directory":     {"inspect", "oci:" + filepath.Join(dir, evil)},
		"an architecture": {"inspect", "oci:" + foreign, "--platform", "linux/amd64"},
		"a file, in JSON": {"profile", "validate", profile, "--format", "json"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr strings.Builder
			code := run(t.Context(), args, &stdout, &stderr)
			shown := stdout.String() + stderr.String()
			i := strings.IndexFunc(shown, func(r rune) bool { return unicode.IsControl(r) && r != '\n' || unicode.Is(unicode.Bidi_Control, r) })
			if code == exitOK || i >= 0 || !utf8.ValidString(shown) || strings.Contains(shown, "\nslimctl: hint: run this") {
				t.Errorf("exit status %d: %q", code, shown)
			}
			t.Log(shown)
		})
	}
}
