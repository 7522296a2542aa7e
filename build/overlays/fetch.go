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
	// staleAfter is the age at which a temporary directory can't belong to a running fetch any more.
	staleAfter = 24 * time.Hour
)

// Fetch gives the payload of an agent-browser version whose integrity is the profile's: from the cache, verified in
// full, or else by npm. A cached payload that is not what it should be is fetched anew, and Log says so.
func Fetch(ctx context.Context, version, integrity string, o Options) (*Payload, error) {
	l, err := lockFor(version, integrity)
	if err != nil {
		return nil, err
	}
	if l.integrity != integrity {
		return nil, fmt.Errorf("agent-browser %s: %w: the profile has %q, the lock in slimctl has %q",
			version, ErrIntegrity, integrity, l.integrity)
	}
	room, err := o.room("payload")
	if err != nil {
		return nil, err
	}
	if l.manifest == nil {
		if err := l.loadTarball(ctx, room, o); err != nil {
			return nil, err
		}
	}
	dir := filepath.Join(room, l.key())
	p, err := l.cached(dir)
	switch {
	case err == nil:
		return p, nil
	case !errors.Is(err, fs.ErrNotExist):
		o.log("cached payload not used: %v", err)
	}
	return l.fetch(ctx, room, dir, o)
}

// cached opens dir; fs.ErrNotExist says that there is none. The list of files that dir holds itself counts for nothing.
func (l *lock) cached(dir string) (*Payload, error) {
	if _, err := readManifest(dir); err != nil {
		return nil, err
	}
	// A file that is missing is damage here, not absence.
	if err := l.manifest.verify(dir); err != nil {
		return nil, hideNotExist{err}
	}
	return newPayload(dir, *l.manifest)
}

// hideNotExist keeps an error from counting as fs.ErrNotExist.
type hideNotExist struct{ error }

// fetch makes the payload in a temporary directory beside dir and puts it in dir's place.
func (l *lock) fetch(ctx context.Context, room, dir string, o Options) (*Payload, error) {
	sweep(room)
	tmp, err := os.MkdirTemp(room, tempPrefix)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	stage := filepath.Join(tmp, "payload")
	if l.content != nil {
		err = l.write(stage)
	} else {
		o.log("fetching agent-browser %s by npm", l.version)
		err = l.install(ctx, filepath.Join(tmp, "npm"), stage, o)
	}
	if err != nil {
		return nil, err
	}
	// npm 11 ends well, with files cut short, on a full disk.
	if err := l.manifest.verify(stage); err != nil {
		return nil, fmt.Errorf("agent-browser %s is not what slimctl expects (is the disk full?): %w", l.version, err)
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
	// Something is there already: what another run has just put there, which may be in use, or a damaged payload.
	if p, err := l.cached(dir); err == nil {
		return p, nil
	}
	if err := replace(stage, dir, filepath.Join(tmp, "old")); err != nil {
		return nil, err
	}
	return newPayload(dir, *l.manifest)
}

// replace moves dir to old and stage to dir.
func replace(stage, dir, old string) error {
	if err := os.Rename(dir, old); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Rename(stage, dir)
}

// sweep removes what interrupted runs left; an error here is no reason to stop.
func sweep(room string) {
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
