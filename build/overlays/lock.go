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

// locks holds per version package.json, package-lock.json, payload.json (every file of the pruned tree) and, where the
// version isn't native, keep.txt (what pruning leaves).
//
//go:embed npm
var locks embed.FS

var (
	// Only plain versions: npm would take "file:", "git+ssh:" or "npm:other@1" as well.
	versionForm   = regexp.MustCompile(`^(0|[1-9]\d{0,5})\.(0|[1-9]\d{0,5})\.(0|[1-9]\d{0,5})(-[0-9A-Za-z.-]{1,40})?$`)
	integrityForm = regexp.MustCompile(`^sha512-[A-Za-z0-9+/]{85}[AQgw]==$`)
)

// lock is all that says what Fetch must end with.
type lock struct {
	version, integrity string
	pkg, lock          []byte
	keep               keepRules
	keepText           []byte
	// manifest lists what the payload must hold: compiled in, or for a version without a committed lock read from its
	// tarball by loadTarball, with the content.
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
	slices.SortFunc(out, func(a, b string) int { return slices.Compare(numbers(a), numbers(b)) })
	return out
}

// numbers splits a version that versionForm accepted.
func numbers(version string) []int {
	core, _, _ := strings.Cut(version, "-")
	var out []int
	for part := range strings.SplitSeq(core, ".") {
		n, _ := strconv.Atoi(part)
		out = append(out, n)
	}
	return out
}

// isNative: 0.20.0 is the first without dist/ and without dependencies.
func isNative(version string) bool {
	return slices.Compare(numbers(version), []int{0, 20, 0}) >= 0
}

// lockFor gives the committed lock of a version, or for a native one without it a lock of version and integrity alone. An empty
// integrity asks for the committed one.
func lockFor(version, integrity string) (*lock, error) {
	if !versionForm.MatchString(version) {
		return nil, fmt.Errorf("agent-browser version %q: want a plain version such as 0.8.10", version)
	}
	if integrity != "" && !integrityForm.MatchString(integrity) {
		return nil, fmt.Errorf("agent-browser %s: integrity %q: want npm's, sha512- and 88 characters of base64", version, integrity)
	}
	if slices.Contains(Known(), version) {
		return committed(version)
	}
	if !isNative(version) {
		return nil, fmt.Errorf("agent-browser %s: %w: it has dependencies, and this slimctl has locks for %s only; "+
			"choose one of these or a native version (0.20.0 or later), or give a prepared directory with --payload DIR",
			version, ErrUnknownVersion, strings.Join(Known(), " and "))
	}
	if integrity == "" {
		return nil, fmt.Errorf("agent-browser %s: %w: its integrity must be given", version, ErrUnknownVersion)
	}
	return uncommitted(version, integrity)
}

func committed(version string) (*lock, error) {
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

// lockedIntegrity reads the integrity of agent-browser in a package-lock.json.
func lockedIntegrity(data []byte) (string, error) {
	// npm's package-lock.json, version 3. The committed ones have no "resolved": npm then asks the registry that the
	// user configured.
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

// uncommitted is the lock of a native version, which has no dependencies: its integrity is all there is to pin.
func uncommitted(version, integrity string) (*lock, error) {
	text, err := locks.ReadFile(keepFile(version))
	if err != nil {
		return nil, err
	}
	keep, err := parseKeep(text)
	return &lock{version: version, integrity: integrity, keep: keep, keepText: text}, err
}

// layout is raised when the tree that Fetch writes changes for a reason that the lock and keep.txt don't show.
const layout = "1"

// key names the payload in the cache.
func (l *lock) key() string {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(layout), []byte(l.version), []byte(l.integrity), l.pkg, l.lock, l.keepText} {
		fmt.Fprintf(h, "%d\n%s", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil))
}
