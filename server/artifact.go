package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/server/policy"
)

// maxFiles limits the number of artifacts of one run.
const maxFiles = 1000

// evidenceName is the name of the file that lists a run's artifacts.
const evidenceName = "evidence.json"

// artifacts is the output directory of one run: screenshots and PDFs in a directory per session, and evidence.json. It
// remains when the run ends.
type artifacts struct {
	dir  string
	root *os.Root // of dir: follows no link out of it

	mu       sync.Mutex
	evidence evidence
	bytes    int64
}

// evidence is the content of evidence.json.
type evidence struct {
	RunID   string     `json:"run_id"`
	Started time.Time  `json:"started"`
	Files   []artifact `json:"files"`
}

type artifact struct {
	Path    string    `json:"path"` // relative to the directory of evidence.json
	SHA256  string    `json:"sha256"`
	Size    int64     `json:"size"`
	Type    string    `json:"type"` // from the content, not the name
	Created time.Time `json:"created"`
}

// openArtifacts creates the directory of a run.
func openArtifacts(parent, runID string) (*artifacts, error) {
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return nil, fmt.Errorf("artifacts directory: %w", err)
	}
	dir := filepath.Join(parent, runID)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("artifacts directory: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("artifacts directory: %w", err)
	}
	return &artifacts{dir: dir, root: root, evidence: evidence{RunID: runID, Started: time.Now().UTC(), Files: []artifact{}}}, nil
}

// close closes the directory and removes it if it is empty.
func (a *artifacts) close() {
	a.root.Close()
	entries, err := os.ReadDir(a.dir)
	if err == nil && len(entries) == 0 {
		_ = os.Remove(a.dir)
	}
}

// removeEmpty removes a session's directory if it is empty.
func (a *artifacts) removeEmpty(session string) { _ = a.root.Remove(session) }

// prepareFile creates the directory for a file and removes a file of that name: agent-browser must find no link to
// follow.
func (a *artifacts) prepareFile(name string) error {
	if err := a.root.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return fmt.Errorf("the file cannot be saved: %w", err)
	}
	if err := a.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the file cannot be saved: %w", err)
	}
	return nil
}

// keepFile reads the file tmp, gives it its final name and lists it. The type of its content must begin with want,
// which is anImage or aPDF.
func (a *artifacts) keepFile(tmp, name, want string, most int64) ([]byte, string, error) {
	info, err := a.root.Lstat(tmp)
	if err != nil || !info.Mode().IsRegular() {
		return nil, "", errors.New("agent-browser reported success but wrote no file")
	}
	f, err := a.root.Open(tmp)
	if err != nil {
		return nil, "", fmt.Errorf("the file cannot be read: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(b)) > most {
		err = fmt.Errorf("larger than %d bytes", most)
	}
	if err != nil {
		return nil, "", fmt.Errorf("the file cannot be read: %w", err)
	}
	kind := http.DetectContentType(b)
	if !strings.HasPrefix(kind, want) {
		return nil, "", fmt.Errorf("the file that agent-browser wrote is not %s", map[string]string{anImage: "an image", aPDF: "a PDF"}[want])
	}
	if err := a.root.Rename(tmp, name); err != nil {
		return nil, "", fmt.Errorf("the file cannot be saved: %w", err)
	}
	sum := sha256.Sum256(b)
	return b, kind, a.addEvidence(artifact{Path: name, SHA256: hex.EncodeToString(sum[:]), Size: int64(len(b)), Type: kind, Created: time.Now().UTC()})
}

// addEvidence adds a file to evidence.json. A name that is used again replaces the earlier entry.
func (a *artifacts) addEvidence(file artifact) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.evidence.Files = slices.DeleteFunc(a.evidence.Files, func(f artifact) bool {
		if f.Path == file.Path {
			a.bytes -= f.Size
		}
		return f.Path == file.Path
	})
	a.bytes += file.Size
	a.evidence.Files = append(a.evidence.Files, file)
	return a.writeEvidence()
}

func (a *artifacts) writeEvidence() error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	if err := enc.Encode(a.evidence); err != nil {
		return err
	}
	const tmp = "." + evidenceName
	if err := a.root.WriteFile(tmp, b.Bytes(), 0o600); err != nil {
		return fmt.Errorf("the list of artifacts cannot be written: %w", err)
	}
	if err := a.root.Rename(tmp, evidenceName); err != nil {
		return fmt.Errorf("the list of artifacts cannot be written: %w", err)
	}
	return nil
}

// The accepted types of an artifact's content, as http.DetectContentType returns them.
const (
	anImage = "image/"
	aPDF    = "application/pdf"
)

// removeFailed removes the file of a failed command.
func (a *artifacts) removeFailed(tmp string) { _ = a.root.Remove(tmp) }

// isFull reports whether the run has reached its limit of files or bytes.
func (a *artifacts) isFull(most int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.bytes >= most || len(a.evidence.Files) >= maxFiles
}

// keep lists the file that a screenshot or a pdf wrote, and adds an image to the result.
type keep struct {
	policy    *policy.Policy
	artifacts *artifacts
}

func (k keep) OnBefore(_ context.Context, c Call) (Call, Decision) {
	if artifactEnding[c.Command.Name] == "" {
		return c, Decision{}
	}
	if k.artifacts.isFull(k.policy.Limits.ArtifactBytes) {
		return c, deny(&policy.Refusal{
			Code: policy.BudgetExceeded, Rule: "artifacts.full",
			Message: "there is no room for more files in this run; use snapshot to read the page",
		})
	}
	return c, Decision{}
}

func (k keep) OnAfter(_ context.Context, c Call, r Result) Result {
	if c.file == "" || !r.ran {
		return r
	}
	defer k.artifacts.removeFailed(fileTmp(c))
	if r.ExitCode != 0 || r.raw == nil {
		return r
	}
	want := anImage
	if c.Command.Name == "pdf" {
		want = aPDF
	}
	b, kind, err := k.artifacts.keepFile(fileTmp(c), fileName(c), want, maxArtifact)
	if err != nil {
		r.ExitCode, r.Stdout, r.Stderr = exitProtocol, "", err.Error()+"\n"+r.Stderr
		return r
	}
	r.Stdout = withField(r.Stdout, "path", filepath.Join(k.artifacts.dir, fileName(c)))
	switch conf := k.policy.Screenshot; {
	case want != anImage || !conf.ReturnImage:
	case len(b) > conf.MaxImageBytes:
		r.Stderr = "the image is too large to return; it is kept at the path\n" + r.Stderr
	default:
		r.Image = &mcp.ImageContent{Data: b, MIMEType: kind}
	}
	return r.withEvent("MCP_FILE_WRITE")
}

// maxArtifact limits the size of one file, in bytes.
const maxArtifact = 64 << 20
