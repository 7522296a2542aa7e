package overlays

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/slimctl/slimctl/internal/capture"
)

// Version is an agent-browser version with a lock in this slimctl, or in the cache.
type Version struct {
	Version   string `json:"version"`
	Integrity string `json:"integrity"`
	// Locked reports whether slimctl has a lock for it, with the list of its files.
	Locked bool `json:"locked"`
	// Cached is the size of its files in the cache, in bytes, or 0 if it isn't there. The size is the cache's claim;
	// Fetch verifies the content.
	Cached int64 `json:"cached"`
}

var cachedForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Versions lists the versions with a lock and those in the cache, oldest first.
func Versions(o Options) ([]Version, error) {
	var out []Version
	for _, v := range Known() {
		l, err := findLock(v, "")
		if err != nil {
			return nil, err
		}
		out = append(out, Version{Version: v, Integrity: l.integrity, Locked: true})
	}
	room, err := o.makeRoom("payload")
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(room)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !e.IsDir() || !cachedForm.MatchString(e.Name()) {
			continue
		}
		m, err := readManifest(filepath.Join(room, e.Name()))
		if err != nil || !versionForm.MatchString(m.Version) {
			o.log("%s is left out: %v", filepath.Join(room, e.Name()), errors.Join(err, fs.ErrInvalid))
			continue
		}
		var size int64
		for _, f := range m.Files {
			size += f.Size
		}
		i := slices.IndexFunc(out, func(v Version) bool { return v.Version == m.Version && v.Integrity == m.Integrity })
		if i < 0 {
			i, out = len(out), append(out, Version{Version: m.Version, Integrity: m.Integrity})
		}
		out[i].Cached = max(out[i].Cached, size)
	}
	slices.SortStableFunc(out, func(a, b Version) int { return slices.Compare(splitVersion(a.Version), splitVersion(b.Version)) })
	return out, nil
}

// Integrity returns npm's integrity of a version: from the lock, or for a native version without one from npm's
// registry.
func Integrity(ctx context.Context, version string, o Options) (string, error) {
	if !versionForm.MatchString(version) || slices.Contains(Known(), version) || !isNative(version) {
		l, err := findLock(version, "")
		if err != nil {
			return "", err
		}
		return l.integrity, nil
	}
	room, err := o.makeRoom("payload")
	if err != nil {
		return "", err
	}
	o.log("asking npm for the integrity of agent-browser %s", version)
	answer := capture.Head{Max: maxOutput}
	l := lock{version: version}
	// The directory is empty, so that no project's .npmrc applies.
	dir, err := os.MkdirTemp(room, tempPrefix)
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	err = run(ctx, dir, npmEnv(os.Environ()), &answer, o.npm(), "view", packageName+"@"+version, "dist.integrity", "--json",
		"--global=false", "--location=project", "--loglevel=error", "--update-notifier=false", "--workspaces=false")
	if err != nil {
		return "", l.explain(err)
	}
	var integrity string
	if err := json.Unmarshal(answer.Bytes(), &integrity); err != nil || !integrityForm.MatchString(integrity) {
		return "", fmt.Errorf("agent-browser %s: npm answered %q, not an integrity (sha512- and 88 characters of base64)",
			version, firstLines(string(answer.Bytes())))
	}
	return integrity, nil
}
