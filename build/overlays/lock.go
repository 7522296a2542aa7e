package overlays

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const packageName = "agent-browser"

// locks holds, by version, package.json, package-lock.json, payload.json (every file of the pruned tree) and, for
// versions before 0.20.0, keep.txt (the rules of pruning).
//
//go:embed npm
var locks embed.FS

var (
	// versionForm admits plain versions only: npm would also accept "file:", "git+ssh:" or "npm:other@1".
	versionForm   = regexp.MustCompile(`^(0|[1-9]\d{0,5})\.(0|[1-9]\d{0,5})\.(0|[1-9]\d{0,5})(-[0-9A-Za-z.-]{1,40})?$`)
	integrityForm = regexp.MustCompile(`^sha512-[A-Za-z0-9+/]{85}[AQgw]==$`)
)

// lock pins the result of Fetch.
type lock struct {
	version, integrity string
	pkg, lock          []byte
	keep               keepRules
	keepText           []byte
	// manifest lists every file of the payload. It is compiled in, or, for a version without a committed lock,
	// loadTarball reads it and the content from the tarball.
	manifest *manifest
	content  map[string][]byte
}

// Known lists the agent-browser versions that slimctl has a lock for, oldest first.
func Known() []string {
	entries, err := locks.ReadDir("npm")
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	slices.SortFunc(out, func(a, b string) int { return slices.Compare(splitVersion(a), splitVersion(b)) })
	return out
}

// splitVersion returns the numbers of a version that versionForm matches.
func splitVersion(version string) []int {
	core, _, _ := strings.Cut(version, "-")
	var out []int
	for part := range strings.SplitSeq(core, ".") {
		n, _ := strconv.Atoi(part)
		out = append(out, n)
	}
	return out
}

// isNative reports whether a version has neither dist/ nor dependencies: 0.20.0 is the first.
func isNative(version string) bool {
	return slices.Compare(splitVersion(version), []int{0, 20, 0}) >= 0
}

// findLock returns the committed lock of a version. A native version without one gets a lock of version and integrity
// alone. If integrity is empty, only a committed lock will do.
func findLock(version, integrity string) (*lock, error) {
	if !versionForm.MatchString(version) {
		return nil, fmt.Errorf("agent-browser version %q: write a plain version such as 0.8.10", version)
	}
	if integrity != "" && !integrityForm.MatchString(integrity) {
		return nil, fmt.Errorf("agent-browser %s: integrity %q: write npm's integrity, sha512- and 88 characters of base64", version, integrity)
	}
	if slices.Contains(Known(), version) {
		return readLock(version)
	}
	if !isNative(version) {
		return nil, fmt.Errorf("agent-browser %s: %w: it has dependencies, and this slimctl has locks for %s only; "+
			"choose one of these or a native version (0.20.0 or later), or give a prepared directory with --payload DIR",
			version, ErrUnknownVersion, strings.Join(Known(), " and "))
	}
	if integrity == "" {
		return nil, fmt.Errorf("agent-browser %s: %w: write its integrity in the profile, as `slimctl payload update` does", version, ErrUnknownVersion)
	}
	return newLock(version, integrity)
}

func readLock(version string) (*lock, error) {
	l := &lock{version: version}
	dir := path.Join("npm", version)
	var err error
	read := func(name string) []byte {
		data, readErr := locks.ReadFile(name)
		if err == nil {
			err = readErr
		}
		return data
	}
	l.pkg, l.lock = read(path.Join(dir, "package.json")), read(path.Join(dir, "package-lock.json"))
	l.keepText = read(keepFile(version))
	if err != nil {
		return nil, err
	}
	if l.keep, err = parseKeep(l.keepText); err != nil {
		return nil, fmt.Errorf("%s: %w", keepFile(version), err)
	}
	if l.integrity, err = lockedIntegrity(l.lock); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	m, err := parseManifest(read(path.Join(dir, manifestName)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	l.manifest = &m
	return l, nil
}

func keepFile(version string) string {
	if isNative(version) {
		return "npm/native.keep.txt"
	}
	return path.Join("npm", version, "keep.txt")
}

// lockedIntegrity returns agent-browser's integrity from a package-lock.json.
func lockedIntegrity(data []byte) (string, error) {
	// The format is npm's package-lock.json, version 3. The committed ones have no "resolved", so npm asks the registry
	// in the user's configuration.
	var l struct {
		Packages map[string]struct {
			Integrity string `json:"integrity"`
		} `json:"packages"`
	}
	if err := json.Unmarshal(data, &l); err != nil {
		return "", fmt.Errorf("package-lock.json: %w", err)
	}
	return l.Packages["node_modules/"+packageName].Integrity, nil
}

// newLock returns the lock of a native version from its integrity alone, since it has no dependencies.
func newLock(version, integrity string) (*lock, error) {
	text, err := locks.ReadFile(keepFile(version))
	if err != nil {
		return nil, err
	}
	keep, err := parseKeep(text)
	return &lock{version: version, integrity: integrity, keep: keep, keepText: text}, err
}

// layout is the version of the tree that Fetch writes. Raise it for a change that neither the lock nor keep.txt shows.
const layout = "1"

// key returns the payload's name in the cache.
func (l *lock) key() string {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(layout), []byte(l.version), []byte(l.integrity), l.pkg, l.lock, l.keepText} {
		fmt.Fprintf(h, "%d\n%s", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil))
}
