package overlays

import (
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image"
)

// Where a payload lies in the image. The link is a link and not a copy because agent-browser up to 0.19 looks for its
// daemon beside its own resolved path, and then below the current directory (agent-browser v0.8.10, cli/src/connection.rs).
const (
	payloadRoot = "/opt/agent-browser"
	payloadLink = "/usr/local/bin/agent-browser"
)

// arches maps the architectures of an image to npm's words and the ELF header's.
var arches = map[string]struct {
	binary  string
	machine elf.Machine
}{
	"amd64": {"bin/agent-browser-linux-x64", elf.EM_X86_64},
	"arm64": {"bin/agent-browser-linux-arm64", elf.EM_AARCH64},
}

// Payload is a verified directory that holds agent-browser for every architecture.
type Payload struct {
	// Version of agent-browser, such as "0.8.10".
	Version string
	// Integrity is npm's of the agent-browser package, "sha512-" and base64. For a directory given to Prepared it is
	// what the directory claims, and empty where it claims nothing; for a version that slimctl has a lock for, a claim
	// that doesn't hold is an error.
	Integrity string
	// Native: 0.20.0 or later, a single file that needs no Node.
	Native bool
	// Digest is "sha256:" and hex of the list of all files: two payloads of the same digest are the same, bit for bit.
	Digest string

	dir   string
	files []manifestFile
}

func newPayload(dir string, m manifest) (*Payload, error) {
	if err := checkShape(dir, m); err != nil {
		return nil, err
	}
	return &Payload{
		Version: m.Version, Integrity: m.Integrity, Native: m.Native, Digest: m.digest(), dir: dir, files: m.Files,
	}, nil
}

// Prepared opens a directory of the shape that Export writes: bin/agent-browser-linux-x64 and -arm64, package.json, and
// dist/ and node_modules/ unless the version is native; licence files may lie beside them, anything else is an error.
// payload.json, when there, must list exactly what is there. The content counts as the caller's own choice: compare
// Version and Integrity with the profile's by Matches.
func Prepared(dir string) (*Payload, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	m, err := readManifest(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if m, err = describe(dir, ""); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	default:
		if err := m.verify(dir); err != nil {
			return nil, fmt.Errorf("%w (%s lists it; without that file the directory is taken as it is)", err, manifestName)
		}
		if err := m.checkClaim(dir); err != nil {
			return nil, err
		}
	}
	return newPayload(dir, m)
}

// checkClaim refuses a directory that gives the integrity of a version we know and holds something else.
func (m manifest) checkClaim(dir string) error {
	version, err := packageVersion(dir)
	if err != nil {
		return err
	}
	if version != m.Version || m.Native != isNative(version) {
		return fmt.Errorf("%s: %w: %s says %s, package.json says %s", dir, ErrIntegrity, manifestName, m.Version, version)
	}
	for _, v := range Known() {
		l, err := lockFor(v, "")
		if err != nil {
			return err
		}
		if l.integrity == m.Integrity && l.manifest.digest() != m.digest() {
			return fmt.Errorf("%s: %w: claims the integrity of agent-browser %s but holds other files", dir, ErrIntegrity, v)
		}
	}
	return nil
}

// describe makes the manifest of what lies in dir.
func describe(dir, integrity string) (manifest, error) {
	version, err := packageVersion(dir)
	if err != nil {
		return manifest{}, err
	}
	files, err := scan(dir)
	return manifest{Version: version, Integrity: integrity, Native: isNative(version), Files: files}, err
}

func packageVersion(dir string) (string, error) {
	p := filepath.Join(dir, "package.json")
	pkg, err := readPackage(p)
	if err != nil {
		return "", fmt.Errorf("%w (a payload directory is what `slimctl payload fetch -o DIR` writes)", err)
	}
	if pkg.Name != packageName || !versionForm.MatchString(pkg.Version) {
		return "", fmt.Errorf("%s: package %q, version %q: not %s's", p, pkg.Name, pkg.Version, packageName)
	}
	return pkg.Version, nil
}

type packageJSON struct {
	Name         string            `json:"name"`
	Version      string            `json:"version"`
	Dependencies map[string]string `json:"dependencies"`
	Bin          json.RawMessage   `json:"bin"`
}

func readPackage(p string) (packageJSON, error) {
	var pkg packageJSON
	data, err := os.ReadFile(p)
	if err != nil {
		return pkg, err
	}
	if err := json.Unmarshal(data, &pkg); err != nil {
		return pkg, fmt.Errorf("%s: %w", p, err)
	}
	return pkg, nil
}

// checkShape looks for what must be there, refuses what must not, and reads the machine of each binary.
func checkShape(dir string, m manifest) error {
	for _, f := range m.Files {
		if !mayHold(f.Path, m.Native) {
			return fmt.Errorf("%s: not part of an agent-browser %s payload: remove it", filepath.Join(dir, f.Path), m.Version)
		}
	}
	needs := []string{"package.json"}
	if !m.Native {
		needs = append(needs, "dist/daemon.js")
		pkg, err := readPackage(filepath.Join(dir, "package.json"))
		if err != nil {
			return err
		}
		for name := range pkg.Dependencies {
			needs = append(needs, path.Join("node_modules", name, "package.json"))
		}
	}
	slices.Sort(needs)
	for _, name := range needs {
		if !slices.ContainsFunc(m.Files, func(f manifestFile) bool { return f.Path == name }) {
			return fmt.Errorf("%s: missing: agent-browser %s needs it", filepath.Join(dir, name), m.Version)
		}
	}
	for _, arch := range []string{"amd64", "arm64"} {
		if err := checkMachine(filepath.Join(dir, arches[arch].binary), arches[arch].machine); err != nil {
			return err
		}
	}
	return nil
}

func mayHold(name string, native bool) bool {
	top, _, nested := strings.Cut(name, "/")
	switch {
	case name == arches["amd64"].binary, name == arches["arm64"].binary:
		return true
	case nested:
		return !native && (top == "dist" || top == "node_modules")
	default:
		return name == "package.json" || strings.HasPrefix(name, "LICENSE") || strings.HasPrefix(name, "NOTICE")
	}
}

// checkMachine reads an ELF header.
func checkMachine(p string, want elf.Machine) error {
	f, err := elf.Open(p)
	if err != nil {
		return fmt.Errorf("%s: not a Linux program: %w", p, err)
	}
	defer f.Close()
	if f.Machine != want || f.Class != elf.ELFCLASS64 || f.Type != elf.ET_EXEC && f.Type != elf.ET_DYN {
		return fmt.Errorf("%s: an ELF file of %s, %s, %s: want a 64-bit program for %s", p, f.Machine, f.Class, f.Type, want)
	}
	return nil
}

// Matches reports, as an error that names both, whether p is another payload than the profile pins.
func (p *Payload) Matches(version, integrity string) error {
	switch {
	case p.Version != version:
		return fmt.Errorf("%s: %w: agent-browser %s, the profile wants %s", p.dir, ErrIntegrity, p.Version, version)
	case p.Integrity == "":
		return fmt.Errorf("%s: %w: no integrity known (no %s), the profile wants %s", p.dir, ErrIntegrity, manifestName, integrity)
	case p.Integrity != integrity:
		return fmt.Errorf("%s: %w: %s, the profile wants %s", p.dir, ErrIntegrity, p.Integrity, integrity)
	}
	return nil
}

// Files lists what is laid in an image of that architecture ("amd64" or "arm64"), in the order of the paths, without
// parent directories and with zero times. Reading a file that changed since it was verified ends with ErrIntegrity.
func (p *Payload) Files(arch string) ([]image.File, error) {
	own, ok := arches[arch]
	if !ok {
		return nil, fmt.Errorf("architecture %q: agent-browser comes for amd64 and arm64", arch)
	}
	var out []image.File
	for _, f := range p.files {
		if path.Dir(f.Path) == "bin" && f.Path != own.binary {
			continue
		}
		out = append(out, image.File{
			Entry: image.Entry{Path: path.Join(payloadRoot, f.Path), Type: image.TypeFile, Mode: int64(f.Mode), Size: f.Size},
			Open:  func() (io.ReadCloser, error) { return f.openVerified(p.dir) },
		})
	}
	out = append(out, image.Symlink(payloadLink, path.Join(payloadRoot, own.binary)))
	slices.SortFunc(out, func(a, b image.File) int { return strings.Compare(a.Path, b.Path) })
	return out, nil
}

// Export writes p to dir, whole or not at all, for Prepared on another machine. dir must be empty or not exist.
func (p *Payload) Export(dir string) error {
	return image.WriteDir(dir, func(tmp string) error {
		for _, f := range p.files {
			if err := p.copyTo(tmp, f); err != nil {
				return err
			}
		}
		m := manifest{Version: p.Version, Integrity: p.Integrity, Native: p.Native, Files: p.files}
		return os.WriteFile(filepath.Join(tmp, manifestName), m.encode(), 0o644)
	})
}

func (p *Payload) copyTo(dir string, f manifestFile) error {
	in, err := f.openVerified(p.dir)
	if err != nil {
		return err
	}
	defer in.Close()
	to := filepath.Join(dir, filepath.FromSlash(f.Path))
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, os.FileMode(f.Mode))
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
