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

// The places of a payload in the image. The program is linked, not copied, because agent-browser up to 0.19 looks for
// its daemon beside its own resolved path, and then below the current directory (agent-browser v0.8.10,
// cli/src/connection.rs).
const (
	payloadRoot = "/opt/agent-browser"
	payloadLink = "/usr/local/bin/agent-browser"
)

// arches maps an image's architectures to npm's names and to ELF machines.
var arches = map[string]struct {
	binary  string
	machine elf.Machine
}{
	"amd64": {"bin/agent-browser-linux-x64", elf.EM_X86_64},
	"arm64": {"bin/agent-browser-linux-arm64", elf.EM_AARCH64},
}

// Payload is a verified directory with agent-browser for every architecture.
type Payload struct {
	// Version is agent-browser's version, such as "0.8.10".
	Version string
	// Integrity is npm's integrity of the package: "sha512-" and base64. For a directory given to Prepared it is the
	// directory's claim, which is checked if slimctl has a lock for the version.
	Integrity string
	// Native reports whether the version is 0.20.0 or later: a single file that needs no Node.
	Native bool
	// Digest is "sha256:" and the hex digest of the list of all files. Payloads with equal digests are identical.
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

// Prepared opens a directory that Export could have written: bin/agent-browser-linux-x64 and -arm64, package.json, and
// dist/ and node_modules/ unless the version is native. Licence files may lie beside them; anything else is an error.
// payload.json must list exactly these files. Callers must compare version and integrity with the profile's by Matches,
// since the content is otherwise trusted.
func Prepared(dir string) (*Payload, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	m, err := readManifest(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := packageVersion(dir); err != nil {
			return nil, err
		}
		err = fmt.Errorf("%s: %w: no integrity known (no %s)", dir, ErrIntegrity, manifestName)
	}
	if err != nil {
		return nil, err
	}
	if err := m.verify(dir); err != nil {
		return nil, fmt.Errorf("%w (%s lists it)", err, manifestName)
	}
	if err := m.checkClaim(dir); err != nil {
		return nil, err
	}
	return newPayload(dir, m)
}

// checkClaim refuses a directory that claims the integrity of a version with a lock but holds other files.
func (m manifest) checkClaim(dir string) error {
	version, err := packageVersion(dir)
	if err != nil {
		return err
	}
	if version != m.Version || m.Native != isNative(version) {
		return fmt.Errorf("%s: %w: %s says %s, package.json says %s", dir, ErrIntegrity, manifestName, m.Version, version)
	}
	for _, v := range Known() {
		l, err := findLock(v, "")
		if err != nil {
			return err
		}
		if l.integrity == m.Integrity && l.manifest.digest() != m.digest() {
			return fmt.Errorf("%s: %w: claims the integrity of agent-browser %s but holds other files", dir, ErrIntegrity, v)
		}
	}
	return nil
}

func packageVersion(dir string) (string, error) {
	p := filepath.Join(dir, "package.json")
	pkg, err := readPackage(p)
	if err != nil {
		return "", fmt.Errorf("%w (a payload directory is what `slimctl payload fetch -o DIR` writes)", err)
	}
	if pkg.Name != packageName || !versionForm.MatchString(pkg.Version) {
		return "", fmt.Errorf("%s: package %q, version %q, is not %s", p, pkg.Name, pkg.Version, packageName)
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

// checkShape refuses missing and unexpected files, and binaries for another machine.
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

// checkMachine refuses a file that isn't a Linux program for the machine want.
func checkMachine(p string, want elf.Machine) error {
	f, err := elf.Open(p)
	if err != nil {
		return fmt.Errorf("%s: not a Linux program: %w", p, err)
	}
	defer f.Close()
	if f.Machine != want || f.Class != elf.ELFCLASS64 || f.Type != elf.ET_EXEC && f.Type != elf.ET_DYN {
		return fmt.Errorf("%s: an ELF file of %s, %s, %s, not a 64-bit program for %s", p, f.Machine, f.Class, f.Type, want)
	}
	return nil
}

// Matches returns an error unless p has the version and integrity that the profile pins.
func (p *Payload) Matches(version, integrity string) error {
	switch {
	case p.Version != version:
		return fmt.Errorf("%s: %w: it holds agent-browser %s, but the profile pins %s", p.dir, ErrIntegrity, p.Version, version)
	case p.Integrity != integrity:
		return fmt.Errorf("%s: %w: it has %q, but the profile pins %s", p.dir, ErrIntegrity, p.Integrity, integrity)
	}
	return nil
}

// Files returns the payload's files for an image of the architecture ("amd64" or "arm64"), sorted by path, without
// parent directories, with zero times. Reading a file that changed since verification fails with ErrIntegrity.
func (p *Payload) Files(arch string) ([]image.File, error) {
	own, ok := arches[arch]
	if !ok {
		return nil, fmt.Errorf("architecture %q: agent-browser exists for amd64 and arm64 only", arch)
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

// Export writes p to dir atomically, in the form that Prepared opens. dir must be empty or not exist.
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
