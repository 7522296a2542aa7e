package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// shot is where one screenshot goes: agent-browser writes tmp, which only this
// user can reach, and keep moves it to its place under the artifacts.
type shot struct {
	st   *state
	tmp  string // relative to the base, like dest
	dest string
}

// newShot plans a screenshot; asked is the caller's bare file name or empty.
func (st *state) newShot(session, asked string) shot {
	stamp := time.Now().UTC().Format("20060102T150405.000000000")
	if asked == "" {
		asked = "screenshot-" + stamp + ".png"
	}
	run := filepath.Base(st.run)
	return shot{
		st:   st,
		tmp:  filepath.Join(run, "o", session+"-"+stamp+filepath.Ext(asked)),
		dest: filepath.Join("artifacts", session, asked),
	}
}

// path is the absolute path for agent-browser.
func (s shot) path() string { return filepath.Join(s.st.base, s.tmp) }

// discard removes what a failed run may have written.
func (s shot) discard() { _ = s.st.root.Remove(s.tmp) }

// keep moves the file to its place, puts that path into the data and gives the
// image to return; nil when it is larger than maxBytes or not an image.
func (s shot) keep(data string, maxBytes int) (string, *mcp.ImageContent, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal([]byte(data), &fields); err != nil || fields == nil {
		return "", nil, errors.New("agent-browser's answer to screenshot is not an object")
	}
	info, err := s.st.root.Lstat(s.tmp)
	if err != nil || !info.Mode().IsRegular() {
		return "", nil, errors.New("agent-browser reported a screenshot but wrote no file")
	}
	image, err := s.read(info.Size(), maxBytes)
	if err != nil {
		return "", nil, err
	}
	if err := s.st.root.MkdirAll(filepath.Dir(s.dest), 0o700); err != nil {
		return "", nil, fmt.Errorf("the screenshot cannot be kept: %w", err)
	}
	if err := s.st.root.Rename(s.tmp, s.dest); err != nil {
		return "", nil, fmt.Errorf("the screenshot cannot be kept: %w", err)
	}
	if fields["path"], err = json.Marshal(filepath.Join(s.st.base, s.dest)); err != nil {
		return "", nil, err
	}
	out, err := json.Marshal(fields)
	return string(out) + "\n", image, err
}

func (s shot) read(size int64, maxBytes int) (*mcp.ImageContent, error) {
	if size > int64(maxBytes) {
		return nil, nil
	}
	f, err := s.st.root.OpenFile(s.tmp, os.O_RDONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("the screenshot cannot be read: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, int64(maxBytes)))
	if err != nil {
		return nil, fmt.Errorf("the screenshot cannot be read: %w", err)
	}
	kind := http.DetectContentType(b)
	if !strings.HasPrefix(kind, "image/") {
		return nil, nil
	}
	return &mcp.ImageContent{Data: b, MIMEType: kind}, nil
}
