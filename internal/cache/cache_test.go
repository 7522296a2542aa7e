package cache

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gofrs/flock"
)

var (
	hex  = strings.Repeat("ab", 32)
	now  = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	old  = now.Add(-1000 * time.Hour)
	kept = now.Add(-time.Hour)
)

// write makes files in dir, all of them last used at a time.
func write(t *testing.T, dir string, used time.Time, names ...string) {
	t.Helper()
	for _, name := range names {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("0123456789"), 0o600); err != nil {
			t.Fatal(err)
		}
		for p := file; p != dir; p = filepath.Dir(p) {
			if err := os.Chtimes(p, used, used); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// everyRoom has one entry of every room.
var everyRoom = []string{
	"payload/" + hex + "/payload.json", "payload/" + hex + ".tgz", "server/amd64-" + hex, "layers/v2-3/" + hex + "-" + hex + ".tar.gz", "stripped/v1/" + hex + ".json", "stripped/v2/" + hex + ".pins",
	"index/v7/sha256-" + hex + ".idx", "contents/v7/sha256-" + hex + ".idx", "verified/sha256-" + hex + ".json",
	"unpacked/sha256/" + hex + "/layer.json", "standin-live-b-0123456789abcdef/index.json", "standin-debian-0123456789abcdef/layer.json",
	"buildkitd-123/buildkitd.lock",
}

// foreign is what a cache directory may hold that slimctl's builds didn't put there: somebody's own directory given as
// --cache-dir must outlive every command.
var foreign = []string{"notes.txt", "server/index.html", "payload/README", "unpacked/photo.jpg", "tools/buildkitd", "standin-x/file", "index/v7/mine.idx", "0123456789abcdef0123456789abcdef"}

func left(t *testing.T, dir string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !strings.HasSuffix(p, ".lock") {
			rel, _ := filepath.Rel(dir, p)
			out = append(out, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// prune prunes and returns what is left, but for locks and the mark.
func prune(t *testing.T, dir string, now time.Time) []string {
	t.Helper()
	if err := Prune(dir, now); err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(left(t, dir), func(p string) bool { return p == mark || strings.HasPrefix(p, "runs/") })
}

func TestPruneRemovesOnlyUnusedEntries(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, old, append(slices.Clone(everyRoom), foreign...)...)
	used := "payload/" + strings.Repeat("cd", 32) + "/payload.json"
	write(t, dir, kept, used)
	want := slices.Sorted(slices.Values(append(slices.Clone(foreign), used)))
	if got := prune(t, dir, now); !slices.Equal(got, want) {
		t.Errorf("left are %q, want %q", got, want)
	}
	write(t, dir, old, everyRoom...)
	if got := prune(t, dir, now.Add(time.Hour)); !slices.Contains(got, everyRoom[0]) {
		t.Errorf("an hour later it looked again: left are %q", got)
	}
	if got := prune(t, dir, now.Add(25*time.Hour)); !slices.Equal(got, want) {
		t.Errorf("a day later left are %q, want %q", got, want)
	}
	if _, err := os.Stat(filepath.Join(dir, "none")); Prune(filepath.Join(dir, "none"), now) == nil || err == nil {
		t.Error("pruning made a directory that isn't there")
	}
}

func TestPruneKeepsWhatIsRead(t *testing.T) {
	dir := t.TempDir()
	name := "index/v7/sha256-" + hex + ".idx"
	write(t, dir, old, name)
	if err := os.Chtimes(filepath.Join(dir, name), kept, old); err != nil { // written long ago, read lately
		t.Fatal(err)
	}
	if got := prune(t, dir, now); !slices.Equal(got, []string{name}) {
		t.Error("an entry that a build read lately was removed")
	}
}

// TestPruneKeepsWhatContainersUse: a container may run for months on layers that it read at its start.
func TestPruneKeepsWhatContainersUse(t *testing.T) {
	layer := "unpacked/sha256/" + hex + "/layer.json"
	for name, lock := range map[string]string{"starting": "runs/.lock", "running": "runs/20300101t000000-0a0b0c0d/lock"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, old, layer, lock)
			l := flock.New(filepath.Join(dir, lock))
			if ok, err := l.TryLock(); !ok || err != nil {
				t.Fatal(ok, err)
			}
			defer l.Unlock()
			if got := prune(t, dir, now); !slices.Equal(got, []string{layer}) {
				t.Errorf("left are %q", got)
			}
		})
	}
}

// TestPruneStaysInTheCache: who can write to the cache directory must not have slimctl, perhaps as root, remove other files.
func TestPruneStaysInTheCache(t *testing.T) {
	outside := t.TempDir()
	write(t, outside, old, everyRoom...)
	before := left(t, outside)
	dir := t.TempDir()
	write(t, dir, old, "verified/sha256-"+hex+".json", "unpacked/sha256/"+hex+"/layer.json")
	for name, target := range map[string]string{
		"payload": filepath.Join(outside, "payload"), "index": filepath.Join(outside, "index"),
		"standin-live-b-0123456789abcdef":             filepath.Join(outside, "standin-live-b-0123456789abcdef"),
		"unpacked/sha256/" + hex + "/up":              outside,
		"unpacked/sha256/" + strings.Repeat("cd", 32): outside,
		"server": "../" + filepath.Base(outside) + "/server",
	} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	_ = Prune(dir, now.Add(1000*time.Hour)) // a link that leads out is an error
	if after := left(t, outside); !slices.Equal(before, after) {
		t.Errorf("outside the cache are %q now, were %q", after, before)
	}
	if _, err := os.Lstat(filepath.Join(dir, "payload")); err != nil {
		t.Error("a link in the cache directory was removed")
	}
	if _, err := os.Stat(filepath.Join(dir, "verified/sha256-"+hex+".json")); err == nil {
		t.Error("the cache's own entry stays")
	}
}
