// Package overlays makes the trees that a profile lays on the base: the payload, which is agent-browser as npm gives it
// cut down to what runs, and our own browser-shell binary.
//
// A payload is pinned by the profile's integrity, by a lock that is compiled in, and by a list of every file it may hold,
// compiled in as well; a native version without these is held against its tarball. npm is run without scripts: nothing of
// the package is executed on this machine.
package overlays

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Errors that a caller may want to tell apart; they come wrapped in one that says what and where.
var (
	// ErrIntegrity: content is not what was pinned.
	ErrIntegrity = errors.New("integrity mismatch")
	// ErrNoTool: npm or go is not on PATH.
	ErrNoTool = errors.New("not found on PATH")
	// ErrUnknownVersion: an agent-browser version that has dependencies and no lock in this slimctl.
	ErrUnknownVersion = errors.New("no lock for this version")
)

// Options are the surroundings of Fetch and Server. The zero value is ready for use.
type Options struct {
	// CacheDir holds payloads between runs; empty means slimctl below os.UserCacheDir.
	CacheDir string
	// Log takes lines of progress and warnings, without a newline; nil drops them.
	Log func(format string, args ...any)
	// Npm is the name or path of npm; empty means "npm".
	Npm string
}

func (o Options) log(format string, args ...any) {
	if o.Log != nil {
		o.Log(format, args...)
	}
}

func (o Options) npm() string {
	if o.Npm == "" {
		return "npm"
	}
	return o.Npm
}

// room gives the cache's directory of that name, made if need be.
func (o Options) room(name string) (string, error) {
	dir := o.CacheDir
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("no cache directory: %w", err)
		}
		dir = filepath.Join(user, "slimctl")
	}
	dir, err := filepath.Abs(filepath.Join(dir, name))
	if err != nil {
		return "", err
	}
	return dir, os.MkdirAll(dir, 0o700)
}
