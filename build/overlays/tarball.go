package overlays

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// A native version without a committed lock has no compiled-in list of files. Its tarball takes the place of one: it is
// kept in the cache and held against the profile's integrity at every use, so that nothing else in the cache is trusted.

// maxTarball and maxKept bound what a tarball may be, and what is kept of it unpacked, in bytes: 0.41.2 has 54 and 35 MB.
const (
	maxTarball = 512 << 20
	maxKept    = 512 << 20
)

// loadTarball fills l.manifest and l.content from the tarball, which comes from the cache or by npm.
func (l *lock) loadTarball(ctx context.Context, room string, o Options) error {
	file := filepath.Join(room, l.key()+".tgz")
	data, err := readTarball(file)
	if err == nil {
		err = l.checkTarball(data)
	}
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			o.log("cached tarball not used: %s: %v", file, err)
		}
		if data, err = l.pack(ctx, room, file, o); err != nil {
			return err
		}
	}
	return l.unpack(data)
}

// readTarball reads a regular file of a size that can be a tarball's.
func readTarball(file string) ([]byte, error) {
	info, err := os.Lstat(file)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxTarball {
		return nil, fmt.Errorf("%s: %s, %d bytes: not a tarball of agent-browser", file, info.Mode().Type(), info.Size())
	}
	return os.ReadFile(file)
}

func (l *lock) checkTarball(data []byte) error {
	sum := sha512.Sum512(data)
	if got := "sha512-" + base64.StdEncoding.EncodeToString(sum[:]); got != l.integrity {
		return fmt.Errorf("agent-browser %s: %w: the tarball of %d bytes has %s, the profile has %s",
			l.version, ErrIntegrity, len(data), got, l.integrity)
	}
	return nil
}

// pack gets the tarball by npm and, if it is the pinned one, puts it at file.
func (l *lock) pack(ctx context.Context, room, file string, o Options) ([]byte, error) {
	sweep(room)
	tmp, err := os.MkdirTemp(room, tempPrefix)
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	o.log("fetching agent-browser %s by npm", l.version)
	args := []string{
		"pack", packageName + "@" + l.version, "--ignore-scripts", "--pack-destination=" + tmp, "--dry-run=false",
		"--global=false", "--json=false", "--location=project", "--loglevel=error", "--progress=false",
		"--update-notifier=false", "--workspaces=false",
	}
	if err := run(ctx, tmp, npmEnv(os.Environ()), nil, o.npm(), args...); err != nil {
		return nil, l.explain(err)
	}
	found, err := filepath.Glob(filepath.Join(tmp, "*.tgz"))
	if err != nil {
		return nil, err
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("agent-browser %s: npm pack left %d tarballs, want one", l.version, len(found))
	}
	data, err := readTarball(found[0])
	if err != nil {
		return nil, err
	}
	if err := l.checkTarball(data); err != nil {
		return nil, err
	}
	return data, os.Rename(found[0], file)
}

// unpack reads from the tarball what the rules keep.
func (l *lock) unpack(data []byte) error {
	content, err := kept(data, l.keep)
	if err != nil {
		return fmt.Errorf("agent-browser %s: tarball: %w", l.version, err)
	}
	var pkg packageJSON
	if err := json.Unmarshal(content["package.json"], &pkg); err != nil {
		return fmt.Errorf("agent-browser %s: tarball: package.json: %w", l.version, err)
	}
	if pkg.Name != packageName || pkg.Version != l.version {
		return fmt.Errorf("agent-browser %s: %w: the tarball holds %q, version %q", l.version, ErrIntegrity, pkg.Name, pkg.Version)
	}
	if len(pkg.Dependencies) > 0 {
		return fmt.Errorf("agent-browser %s: %w: it has dependencies; give a prepared directory with --payload DIR",
			l.version, ErrUnknownVersion)
	}
	m := manifest{Version: l.version, Integrity: l.integrity, Native: true}
	for name, text := range content {
		sum := sha256.Sum256(text)
		m.Files = append(m.Files, manifestFile{
			Path: name, Mode: modeOf(name), Size: int64(len(text)), SHA256: hex.EncodeToString(sum[:]),
		})
	}
	slices.SortFunc(m.Files, func(a, b manifestFile) int { return strings.Compare(a.Path, b.Path) })
	l.manifest, l.content = &m, content
	return nil
}

// kept gives the content of an npm tarball's files that the rules keep, by their path without the first element, as npm
// unpacks them.
func kept(data []byte, rules keepRules) (map[string][]byte, error) {
	unzipped, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	left := int64(maxKept)
	for archive := tar.NewReader(unzipped); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		_, name, _ := strings.Cut(path.Clean(h.Name), "/")
		if !rules.keeps(name) {
			continue
		}
		if _, twice := out[name]; twice || h.Typeflag != tar.TypeReg {
			return nil, fmt.Errorf("%s: twice there, or not a regular file", h.Name)
		}
		if left -= h.Size; left < 0 {
			return nil, fmt.Errorf("%s: more than %d bytes to unpack", h.Name, maxKept)
		}
		if out[name], err = io.ReadAll(archive); err != nil {
			return nil, err
		}
	}
}

// write puts the unpacked content below stage.
func (l *lock) write(stage string) error {
	for name, text := range l.content {
		to := filepath.Join(stage, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(to, text, os.FileMode(modeOf(name))); err != nil {
			return err
		}
	}
	return nil
}
