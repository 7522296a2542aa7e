package overlays

import (
	"crypto/sha256"
	"encoding/hex"
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
)

// manifestName is the name of the file that lists a payload's other files.
const manifestName = "payload.json"

// manifest describes a payload completely. It doesn't list itself.
type manifest struct {
	Version string `json:"version"`
	// Integrity is npm's integrity of the agent-browser package.
	Integrity string         `json:"integrity,omitempty"`
	Native    bool           `json:"native"`
	Files     []manifestFile `json:"files"`
}

// manifestFile is one regular file; payloads have no other type.
type manifestFile struct {
	// Path is relative to the payload and slash-separated.
	Path   string `json:"path"`
	Mode   mode   `json:"mode"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// mode is a file mode, in octal in JSON.
type mode int64

func (m mode) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%04o", int64(m)), nil }

func (m *mode) UnmarshalText(b []byte) error {
	_, err := fmt.Sscanf(string(b), "%o", (*int64)(m))
	return err
}

// modeOf returns the mode of a payload's file, independent of npm's tarball and the disk: the binaries come as 0644.
func modeOf(name string) mode {
	if path.Dir(name) == "bin" {
		return 0o755
	}
	return 0o644
}

func parseManifest(data []byte) (manifest, error) {
	var m manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return m, fmt.Errorf("%s: %w", manifestName, err)
	}
	for _, f := range m.Files {
		if !fs.ValidPath(f.Path) || f.Mode != modeOf(f.Path) {
			return m, fmt.Errorf("%s: %q, mode %04o: not a payload's file", manifestName, f.Path, int64(f.Mode))
		}
	}
	return m, nil
}

func readManifest(dir string) (manifest, error) {
	data, err := os.ReadFile(filepath.Join(dir, manifestName))
	if err != nil {
		return manifest{}, err
	}
	m, err := parseManifest(data)
	if err != nil {
		return m, fmt.Errorf("%s: %w", dir, err)
	}
	return m, nil
}

// encode returns the content of payload.json. Equal manifests give equal bytes.
func (m manifest) encode() []byte {
	data, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		panic(err) // strings and numbers can always be encoded
	}
	return append(data, '\n')
}

func (m manifest) digest() string {
	sum := sha256.Sum256(m.encode())
	return "sha256:" + hex.EncodeToString(sum[:])
}

// listFiles returns the regular files below dir with their hashes, sorted by path. It fails on anything but files and
// directories.
func listFiles(dir string) ([]manifestFile, error) {
	var out []manifestFile
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if !d.Type().IsRegular() {
			return fmt.Errorf("%s: %s: a payload holds regular files only", p, d.Type())
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		name := filepath.ToSlash(rel)
		if name == manifestName {
			return nil
		}
		f, err := hashFile(p)
		if err != nil {
			return err
		}
		f.Path, f.Mode = name, modeOf(name)
		out = append(out, f)
		return nil
	})
	slices.SortFunc(out, func(a, b manifestFile) int { return strings.Compare(a.Path, b.Path) })
	return out, err
}

func hashFile(p string) (manifestFile, error) {
	f, err := os.Open(p)
	if err != nil {
		return manifestFile{}, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	return manifestFile{Size: n, SHA256: hex.EncodeToString(h.Sum(nil))}, err
}

// verify checks that dir holds exactly the files of m. The error names the first difference and wraps ErrIntegrity.
func (m manifest) verify(dir string) error {
	got, err := listFiles(dir)
	if err != nil {
		return err
	}
	have := map[string]manifestFile{}
	for _, f := range got {
		have[f.Path] = f
	}
	for _, want := range m.Files {
		f, ok := have[want.Path]
		switch {
		case !ok:
			return fmt.Errorf("%s: %w: missing", filepath.Join(dir, want.Path), ErrIntegrity)
		case f != want:
			return fmt.Errorf("%s: %w: sha256 %s, want %s", filepath.Join(dir, want.Path), ErrIntegrity, f.SHA256, want.SHA256)
		}
		delete(have, want.Path)
	}
	for _, f := range got {
		if _, extra := have[f.Path]; extra {
			return fmt.Errorf("%s: %w: not part of the payload", filepath.Join(dir, f.Path), ErrIntegrity)
		}
	}
	return nil
}

// openVerified opens the file below dir. The reader fails at the end if the content differs from the manifest, so a
// file changed after verify can't reach an image.
func (f manifestFile) openVerified(dir string) (io.ReadCloser, error) {
	file, err := os.Open(filepath.Join(dir, filepath.FromSlash(f.Path)))
	if err != nil {
		return nil, err
	}
	return &verifiedReader{file: file, want: f, hash: sha256.New()}, nil
}

type verifiedReader struct {
	file *os.File
	want manifestFile
	hash interface {
		io.Writer
		Sum([]byte) []byte
	}
	size int64
}

func (r *verifiedReader) Read(p []byte) (int, error) {
	n, err := r.file.Read(p)
	r.size += int64(n)
	_, _ = r.hash.Write(p[:n]) // writing to a hash never fails
	if r.size > r.want.Size || errors.Is(err, io.EOF) && hex.EncodeToString(r.hash.Sum(nil)) != r.want.SHA256 {
		return 0, fmt.Errorf("%s: %w: changed while in use", r.file.Name(), ErrIntegrity)
	}
	return n, err
}

func (r *verifiedReader) Close() error { return r.file.Close() }
