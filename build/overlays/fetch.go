package overlays

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	tempPrefix = ".slimctl-tmp-"
	// staleAfter is the age from which a temporary directory can't belong to a running fetch.
	staleAfter = 24 * time.Hour
)

// Fetch returns the payload of an agent-browser version with the profile's integrity. It takes the payload from the
// cache and verifies every file, or fetches it by npm. A damaged payload in the cache is fetched again, with a line to
// Log.
func Fetch(ctx context.Context, version, integrity string, o Options) (*Payload, error) {
	l, err := findLock(version, integrity)
	if err != nil {
		return nil, err
	}
	if l.integrity != integrity {
		return nil, fmt.Errorf("agent-browser %s: %w: the profile has %q, but the lock in slimctl has %q",
			version, ErrIntegrity, integrity, l.integrity)
	}
	room, err := o.makeRoom("payload")
	if err != nil {
		return nil, err
	}
	if l.manifest == nil {
		if err := l.loadTarball(ctx, room, o); err != nil {
			return nil, err
		}
	}
	dir := filepath.Join(room, l.key())
	p, err := l.openCached(dir)
	switch {
	case err == nil:
		return p, nil
	case !errors.Is(err, fs.ErrNotExist):
		o.log("cached payload not used: %v", err)
	}
	return l.fetch(ctx, room, dir, o)
}

// openCached opens and verifies the payload in dir. It doesn't trust the list of files in dir. If there is no payload,
// the error is fs.ErrNotExist.
func (l *lock) openCached(dir string) (*Payload, error) {
	if _, err := readManifest(dir); err != nil {
		return nil, err
	}
	// A missing file is damage here; it must not count as a missing payload.
	if err := l.manifest.verify(dir); err != nil {
		return nil, hideNotExist{err}
	}
	return newPayload(dir, *l.manifest)
}

// hideNotExist wraps an error so that errors.Is(err, fs.ErrNotExist) is false.
type hideNotExist struct{ error }

// fetch makes the payload in a temporary directory in room and renames it to dir.
func (l *lock) fetch(ctx context.Context, room, dir string, o Options) (*Payload, error) {
	removeStale(room)
	tmp, err := os.MkdirTemp(room, tempPrefix)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	stage := filepath.Join(tmp, "payload")
	if l.content != nil {
		err = l.writeFiles(stage)
	} else {
		o.log("fetching agent-browser %s by npm", l.version)
		err = l.install(ctx, filepath.Join(tmp, "npm"), stage, o)
	}
	if err != nil {
		return nil, err
	}
	// On a full disk npm 11 succeeds with truncated files.
	if err := l.manifest.verify(stage); err != nil {
		return nil, fmt.Errorf("agent-browser %s has other content than slimctl expects (is the disk full?): %w", l.version, err)
	}
	if err := checkShape(stage, *l.manifest); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(stage, manifestName), l.manifest.encode(), 0o644); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if os.Rename(stage, dir) == nil {
		return newPayload(dir, *l.manifest)
	}
	// Another run may have just made the payload, which may be in use; or it is damaged.
	if p, err := l.openCached(dir); err == nil {
		return p, nil
	}
	if err := replaceDir(stage, dir, filepath.Join(tmp, "old")); err != nil {
		return nil, err
	}
	return newPayload(dir, *l.manifest)
}

// replaceDir renames dir to old and stage to dir.
func replaceDir(stage, dir, old string) error {
	if err := os.Rename(dir, old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Rename(stage, dir)
}

// removeStale removes temporary directories of interrupted runs. It ignores errors, since fetching works without it.
func removeStale(room string) {
	entries, err := os.ReadDir(room)
	if err != nil {
		return
	}
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && strings.HasPrefix(e.Name(), tempPrefix) && time.Since(info.ModTime()) > staleAfter {
			_ = os.RemoveAll(filepath.Join(room, e.Name()))
		}
	}
}
