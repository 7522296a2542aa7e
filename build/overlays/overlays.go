// Package overlays makes the trees of files that come from outside the profile: the payload, which is agent-browser's
// npm package reduced to what runs, and our browser-shell binary.
//
// A payload is pinned by the integrity in the profile, by a compiled-in lock, and by a compiled-in list of every file.
// A native version without the latter two is checked against its tarball. npm runs without scripts, so no code of the
// package is executed on this machine.
package overlays

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Errors that callers distinguish, wrapped with the file or version.
var (
	// ErrIntegrity reports content that differs from the pinned one.
	ErrIntegrity = errors.New("integrity mismatch")
	// ErrNoTool reports that npm or go is not on PATH.
	ErrNoTool = errors.New("not found on PATH")
	// ErrUnknownVersion reports an agent-browser version with dependencies that this slimctl has no lock for.
	ErrUnknownVersion = errors.New("no lock for this version")
)

// Options configures Fetch and Server. The zero value is ready for use.
type Options struct {
	// CacheDir holds payloads between runs; empty means slimctl below os.UserCacheDir.
	CacheDir string
	// Log writes a line of progress or a warning, without a newline; nil discards it.
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

// makeRoom returns the named directory of the cache and creates it if it doesn't exist.
func (o Options) makeRoom(name string) (string, error) {
	dir := o.CacheDir
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("no cache directory: %w; name one with --cache-dir DIR", err)
		}
		dir = filepath.Join(user, "slimctl")
	}
	dir, err := filepath.Abs(filepath.Join(dir, name))
	if err != nil {
		return "", err
	}
	return dir, os.MkdirAll(dir, 0o700)
}
