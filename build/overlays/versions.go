package overlays

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
)

// Version is an agent-browser version that this slimctl has a lock for, or that is in the cache.
type Version struct {
	Version   string `json:"version"`
	Integrity string `json:"integrity"`
	// Locked reports whether slimctl has a lock for it, with every file it may hold.
	Locked bool `json:"locked"`
	// Cached is the size in bytes of its files in the cache; 0 when it isn't there. It is what the cache says: Fetch
	// verifies it.
	Cached int64 `json:"cached"`
}

var cachedForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Versions lists the versions with a lock and those in the cache, oldest first.
func Versions(o Options) ([]Version, error) {
	var out []Version
	for _, v := range Known() {
		l, err := lockFor(v, "")
		if err != nil {
			return nil, err
		}
		out = append(out, Version{Version: v, Integrity: l.integrity, Locked: true})
	}
	room, err := o.room("payload")
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
	slices.SortStableFunc(out, func(a, b Version) int { return slices.Compare(numbers(a.Version), numbers(b.Version)) })
	return out, nil
}

// Integrity returns npm's integrity of a version: the lock's, or for a native version without one what the registry says
// that npm uses.
func Integrity(ctx context.Context, version string, o Options) (string, error) {
	if !versionForm.MatchString(version) || slices.Contains(Known(), version) || !isNative(version) {
		l, err := lockFor(version, "")
		if err != nil {
			return "", err
		}
		return l.integrity, nil
	}
	room, err := o.room("payload")
	if err != nil {
		return "", err
	}
	o.log("asking npm for the integrity of agent-browser %s", version)
	var answer bytes.Buffer
	l := lock{version: version}
	// An empty directory, so that no project's .npmrc counts.
	dir, err := os.MkdirTemp(room, tempPrefix)
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	err = run(ctx, dir, npmEnv(os.Environ()), &limited{&answer}, o.npm(), "view", packageName+"@"+version, "dist.integrity", "--json",
		"--global=false", "--location=project", "--loglevel=error", "--update-notifier=false", "--workspaces=false")
	if err != nil {
		return "", l.explain(err)
	}
	var integrity string
	if err := json.Unmarshal(answer.Bytes(), &integrity); err != nil || !integrityForm.MatchString(integrity) {
		return "", fmt.Errorf("agent-browser %s: npm answered %q: want an integrity, sha512- and 88 characters of base64",
			version, firstLines(answer.String()))
	}
	return integrity, nil
}

// limited keeps the first tailBytes of what a program prints.
type limited struct{ *bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	l.Buffer.Write(p[:min(len(p), max(0, tailBytes-l.Len()))])
	return len(p), nil
}
