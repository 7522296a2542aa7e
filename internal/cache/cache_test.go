package cache

import (
	"maps"
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

// every has one entry of every room.
var every = []string{
	"payload/" + hex + "/payload.json", "payload/" + hex + ".tgz", "server/amd64-" + hex, "layers/v2-3/" + hex + "-" + hex + ".tar.gz", "stripped/v1/" + hex + ".json", "stripped/v2/" + hex + ".pins",
	"index/v7/sha256-" + hex + ".idx", "contents/v7/sha256-" + hex + ".idx", "verified/sha256-" + hex + ".json",
	"unpacked/sha256/" + hex + "/layer.json", "standin-live-b-0123456789abcdef/index.json", "standin-debian-0123456789abcdef/layer.json",
	"buildkitd-123/buildkitd.lock",
}

// foreign is what a cache directory may hold that slimctl's builds didn't put there: somebody's own directory given as
// --cache-dir must outlive `cache prune --all`.
var foreign = []string{"notes.txt", "server/index.html", "payload/README", "unpacked/photo.jpg", "tools/buildkitd", "standin-x/file", "index/v7/mine.idx"}

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

func prune(t *testing.T, dir string, o Options) (removed int, kept []string) {
	t.Helper()
	o.Now = now
	got, err := Prune(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range got {
		removed += r.Entries
		kept = slices.AppendSeq(kept, maps.Keys(r.Kept))
	}
	return removed, kept
}

func TestPruneRemovesOnlyUnusedEntries(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, old, append(slices.Clone(every), foreign...)...)
	used := "payload/" + strings.Repeat("cd", 32) + "/payload.json"
	write(t, dir, kept, used)

	before := left(t, dir)
	if n, _ := prune(t, dir, Options{Unused: 720 * time.Hour, DryRun: true}); n != len(every) {
		t.Errorf("a dry run would remove %d entries, want %d", n, len(every))
	}
	if after := left(t, dir); !slices.Equal(before, after) {
		t.Fatalf("a dry run changed the cache: %q", after)
	}
	if n, k := prune(t, dir, Options{Unused: 720 * time.Hour}); n != len(every) || len(k) > 0 {
		t.Errorf("%d entries removed, want %d; kept %q", n, len(every), k)
	}
	want := slices.Sorted(slices.Values(append(slices.Clone(foreign), used)))
	if got := slices.Sorted(slices.Values(left(t, dir))); !slices.Equal(got, want) {
		t.Errorf("left are %q, want %q", got, want)
	}
	prune(t, dir, Options{})
	if got := slices.Sorted(slices.Values(left(t, dir))); !slices.Equal(got, slices.Sorted(slices.Values(foreign))) {
		t.Errorf("after all was pruned, left are %q, want %q", got, foreign)
	}
}

func TestPruneKeepsWhatIsRead(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "index/v7/sha256-"+hex+".idx")
	write(t, dir, old, "index/v7/sha256-"+hex+".idx")
	if err := os.Chtimes(file, kept, old); err != nil { // written long ago, read lately
		t.Fatal(err)
	}
	if n, _ := prune(t, dir, Options{Unused: 720 * time.Hour}); n != 0 {
		t.Error("an entry that a build read lately was removed")
	}
}

func TestPruneKeepsWhatAnotherProcessHolds(t *testing.T) {
	locked := map[string]string{
		"unpacked/sha256/" + hex + "/layer.json":          "runs/.lock", // a container is starting
		"standin-debian-0123456789abcdef/layer.json":      "standin-debian-0123456789abcdef.lock",
		"buildkitd-123/cache.db":                          "buildkitd-123/buildkitd.lock",
		"unpacked/sha256/" + hex + ".tmp/fs/file":         "unpacked/sha256/" + hex + ".lock",
		"payload/.slimctl-tmp-7/npm/package.json":         "",
		"unpacked/sha256/" + hex + "/fs/usr/bin/anything": "runs/20300101t000000-0a0b0c0d/lock", // a container runs
	}
	for file, lock := range locked {
		t.Run(strings.ReplaceAll(file, "/", "_"), func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, old, file)
			if lock == "" { // unfinished and young: it has no lock
				write(t, dir, kept, file)
			} else {
				write(t, dir, old, lock)
				l := flock.New(filepath.Join(dir, lock))
				if ok, err := l.TryLock(); !ok || err != nil {
					t.Fatal(ok, err)
				}
				defer l.Unlock()
			}
			n, k := prune(t, dir, Options{})
			if _, err := os.Stat(filepath.Join(dir, file)); err != nil || n != 0 {
				t.Errorf("what is in use was removed: %v", err)
			}
			if lock != "" && len(k) == 0 {
				t.Error("nobody is told that it was kept")
			}
		})
	}
}

// TestPruneStaysInTheCache: who can write to the cache directory must not have slimctl, perhaps as root, remove other files.
func TestPruneStaysInTheCache(t *testing.T) {
	outside := t.TempDir()
	write(t, outside, old, every...)
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
	if n, _ := prune(t, dir, Options{}); n != 2 {
		t.Errorf("%d entries removed, want the two that are the cache's own", n)
	}
	if after := left(t, outside); !slices.Equal(before, after) {
		t.Errorf("outside the cache are %q now, were %q", after, before)
	}
	if _, err := os.Lstat(filepath.Join(dir, "payload")); err != nil {
		t.Error("a link in the cache directory was removed")
	}
}

func TestUsage(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, old, every...)
	write(t, dir, old, "tools/a/b", "tools/c")
	got, err := Usage(dir)
	if err != nil {
		t.Fatal(err)
	}
	sizes := map[string][2]int64{}
	for _, r := range got {
		sizes[r.Name] = [2]int64{int64(r.Entries), r.Bytes}
	}
	for name, want := range map[string][2]int64{"payload": {2, 20}, "standin": {2, 20}, "index": {1, 10}, "other": {1, 20}} {
		if sizes[name] != want {
			t.Errorf("%s: %v entries and bytes, want %v", name, sizes[name], want)
		}
	}
	if none, err := Usage(filepath.Join(dir, "none")); err != nil || len(none) != len(rooms) {
		t.Errorf("of no cache: %v, %v", none, err)
	}
	if _, err := Prune("", Options{}); err == nil {
		t.Error("pruning no directory at all is no error")
	}
}
