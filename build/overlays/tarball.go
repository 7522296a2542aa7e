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
	"unicode/utf8"
)

// The tarball of a native version without a committed lock replaces the compiled-in list of files. It stays in the
// cache and is checked against the profile's integrity at every use; nothing else in the cache is trusted.

// maxTarball and maxKept limit the size of a tarball and of its unpacked content, in bytes. 0.41.2 has 54 MB, and 35 MB
// of programs for Linux. Tests lower maxKept.
const maxTarball = 512 << 20

var maxKept = int64(1 << 30)

// loadTarball fills l.manifest and l.content from the tarball in the cache, or fetches it by npm.
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
		return l.pack(ctx, room, file, o)
	}
	return l.unpack(data)
}

// readTarball reads a regular file of at most maxTarball bytes.
func readTarball(file string) ([]byte, error) {
	info, err := os.Lstat(file)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxTarball {
		return nil, fmt.Errorf("%s: %s, %d bytes: it is not a tarball of agent-browser", file, info.Mode().Type(), info.Size())
	}
	return os.ReadFile(file)
}

func (l *lock) checkTarball(data []byte) error {
	sum := sha512.Sum512(data)
	if got := "sha512-" + base64.StdEncoding.EncodeToString(sum[:]); got != l.integrity {
		return fmt.Errorf("agent-browser %s: %w: the tarball (%d bytes) has %s, but the profile has %s",
			l.version, ErrIntegrity, len(data), got, l.integrity)
	}
	return nil
}

// pack fetches the tarball by npm, unpacks it if its integrity is right, and writes it to file.
func (l *lock) pack(ctx context.Context, room, file string, o Options) error {
	removeStale(room)
	tmp, err := os.MkdirTemp(room, tempPrefix)
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	o.log("fetching agent-browser %s by npm", l.version)
	args := []string{
		"pack", packageName + "@" + l.version, "--ignore-scripts", "--pack-destination=" + tmp, "--dry-run=false",
		"--global=false", "--json=false", "--location=project", "--loglevel=error", "--progress=false",
		"--update-notifier=false", "--workspaces=false",
	}
	if err := run(ctx, tmp, npmEnv(os.Environ()), nil, o.npm(), args...); err != nil {
		return l.explain(err)
	}
	found, err := filepath.Glob(filepath.Join(tmp, "*.tgz"))
	if err != nil {
		return err
	}
	if len(found) != 1 {
		return fmt.Errorf("agent-browser %s: npm pack wrote %d tarballs instead of one", l.version, len(found))
	}
	data, err := readTarball(found[0])
	if err != nil {
		return err
	}
	if err := l.checkTarball(data); err != nil {
		return err
	}
	if err := l.unpack(data); err != nil {
		return err
	}
	return os.Rename(found[0], file)
}

// unpack reads the files that the rules keep from the tarball.
func (l *lock) unpack(data []byte) error {
	content, err := readKept(data, l.keep)
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
	if err := checkBin(pkg.Bin); err != nil {
		return fmt.Errorf("agent-browser %s: tarball: package.json: bin: %w", l.version, err)
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

// checkBin refuses a package.json with programs that are not in the package. Its bin is a path, or an object of paths
// by name.
func checkBin(raw json.RawMessage) error {
	if len(raw) == 0 {
		return nil
	}
	var programs map[string]string
	if err := json.Unmarshal(raw, &programs); err != nil {
		var one string
		if json.Unmarshal(raw, &one) != nil {
			return errors.New("it is neither a path nor an object of paths")
		}
		programs = map[string]string{"": one}
	}
	for name, p := range programs {
		if !filepath.IsLocal(p) || strings.Contains(name, "/") {
			return fmt.Errorf("program %.200q is %.200q, which is not in the package", name, p)
		}
	}
	return nil
}

// checkMember refuses a member that no tarball of npm's has.
func checkMember(h *tar.Header) error {
	switch {
	case h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeDir:
		return fmt.Errorf("%.200q is not a regular file or a directory, but of tar's type %q", h.Name, h.Typeflag)
	case h.Mode&^0o777 != 0:
		return fmt.Errorf("%.200q has mode %o, with setuid, setgid or sticky", h.Name, h.Mode)
	case path.Clean(h.Name) != strings.TrimSuffix(h.Name, "/"), !filepath.IsLocal(h.Name), strings.ContainsFunc(h.Name, isUnusual),
		h.Typeflag == tar.TypeReg && !strings.Contains(h.Name, "/"):
		return fmt.Errorf("%.200q is not a path below the package", h.Name)
	}
	return nil
}

// isUnusual reports whether some system forbids c in file names.
func isUnusual(c rune) bool { return c < ' ' || c == 0x7f || c == '\\' || c == utf8.RuneError }

// readKept returns the files of an npm tarball that the rules keep, by path without the first element, as npm unpacks
// them. It refuses a tarball with a member that checkMember refuses.
func readKept(data []byte, rules keepRules) (map[string][]byte, error) {
	unzipped, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	left := maxKept
	seen := map[string]bool{}
	for archive := tar.NewReader(unzipped); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue
		}
		if err := checkMember(h); err != nil {
			return nil, err
		}
		if left -= h.Size; left < 0 {
			return nil, fmt.Errorf("%.200q: more than %d bytes to unpack", h.Name, maxKept)
		}
		_, name, _ := strings.Cut(path.Clean(h.Name), "/")
		if h.Typeflag == tar.TypeDir {
			continue
		}
		if seen[strings.ToLower(name)] {
			return nil, fmt.Errorf("%.200q occurs twice, or differs from another name in case only", h.Name)
		}
		seen[strings.ToLower(name)] = true
		if !rules.keeps(name) {
			continue
		}
		if out[name], err = io.ReadAll(archive); err != nil {
			return nil, err
		}
	}
}

// writeFiles writes the unpacked content below stage.
func (l *lock) writeFiles(stage string) error {
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
