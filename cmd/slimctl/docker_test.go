package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/internal/dockerd"
)

// TestImageInDocker: what `build --load` gives Docker is an image for every command, though Docker keeps neither its digest nor
// its annotations.
func TestImageInDocker(t *testing.T) {
	t.Setenv("DOCKER_HOST", dockerd.Host(t))
	dir := t.TempDir()
	if err := warmCache(filepath.Join(dir, "slimctl")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_CACHE_HOME", dir)
	const ref = "docker-daemon:slim/in-docker:1"
	must := func(args ...string) (string, string) {
		t.Helper()
		code, stdout, stderr := slimctl(t.Context(), args...)
		if code != exitOK {
			t.Fatalf("slimctl %q: exit code %d\n%s%s", args, code, stdout, stderr)
		}
		return stdout, stderr
	}
	build := []string{"build", "--base", "standin:B", "--platform", "linux/amd64", "--load", "--tag", "slim/in-docker:1"}
	verify := []string{"verify", "--base", "standin:B", "--platform", "linux/amd64", "--same", "tree", ref}
	must(build...)
	if out, _ := must(verify...); !strings.Contains(out, "passed: proven") {
		t.Error(out)
	}
	must(append(build, "--set", "config.env.TZ=Antarctica/Troll")...)
	if code, out, stderr := slimctl(t.Context(), verify...); code != exitGate || !strings.Contains(out, "Antarctica/Troll") {
		t.Errorf("another image of that name: exit code %d\n%s%s", code, out, stderr)
	}
	// What the cache has of one image is another's.
	saved, err := filepath.Glob(filepath.Join(dir, "slimctl", "docker", "*.tar"))
	if err != nil || len(saved) != 2 {
		t.Fatal(saved, err)
	}
	for i := range saved { // they change their places
		if err := os.Rename(saved[i], fmt.Sprint(saved[1-i], ".other")); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range saved {
		if err := os.Rename(file+".other", file); err != nil {
			t.Fatal(err)
		}
	}
	if code, out, stderr := slimctl(t.Context(), verify...); code != exitError || !strings.Contains(stderr, "remove it") {
		t.Errorf("a cache with another image: exit code %d\n%s%s", code, out, stderr)
	}
	code, _, stderr := slimctl(t.Context(), "inspect", "docker-daemon:slim/nowhere:1")
	if code != exitNotFound || !strings.Contains(stderr, "No such image") {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
}
