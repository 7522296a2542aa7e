package upstream

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestHeaders: the values come from a file and the environment, and no error or log has them.
func TestHeaders(t *testing.T) {
	var good, bad atomic.Int64
	inner := echoServer()
	next := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return inner }, nil)
	_, address := far(t, "127.0.0.1:0", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer s3cret-file" || r.Header.Get("X-Key") != "s3cret-env" {
			bad.Add(1)
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		good.Add(1)
		next.ServeHTTP(w, r)
	}))
	file := filepath.Join(t.TempDir(), "token")
	t.Setenv("HEADER_TEST_KEY", "s3cret-env")
	s := New(Config{Name: "remote", URL: "http://" + address, Headers: map[string]Source{"Authorization": {File: file}, "X-Key": {Env: "HEADER_TEST_KEY"}}}, Options{})
	s.times = quick()
	cleanUp(t, s)
	s.Start()
	eventually(t, "the missing file is named", func() bool { return strings.Contains(s.Status().LastError, file) })
	if err := os.WriteFile(file, []byte("Bearer s3cret-file\nX: y"), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "two lines are no value", func() bool { return strings.Contains(s.Status().LastError, "no value of one line") })
	if err := os.WriteFile(file, []byte("Bearer s3cret-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := echo(t.Context(), up(t, s)); err != nil || good.Load() == 0 || bad.Load() > 0 {
		t.Errorf("%v, %d requests with the headers, %d without", err, good.Load(), bad.Load())
	}
	if strings.Contains(string(s.Log())+s.Status().LastError, "s3cret") {
		t.Errorf("a value is logged: %s", s.Log())
	}
}

// TestPath: a name is looked up in the directories that are listed, and there alone; they are the program's PATH.
func TestPath(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink(self(t), filepath.Join(dir, "uvx")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	lost := New(Config{Name: "lost", Command: "uvx", Path: []string{t.TempDir()}}, Options{})
	lost.times = quick()
	cleanUp(t, lost)
	lost.Start()
	eventually(t, "it says where it looked", func() bool {
		return strings.Contains(lost.Status().LastError, `command "uvx" is in no directory of path`)
	})
	t.Setenv("PATH", "/usr/bin:/bin")
	s := New(Config{Name: "found", Command: "uvx", Path: []string{t.TempDir(), dir}, Env: map[string]string{role: "env"}}, Options{})
	s.times = quick()
	cleanUp(t, s)
	if err := echo(t.Context(), up(t, s)); err != nil {
		t.Error(err)
	}
	eventually(t, "PATH is the list", func() bool { return strings.Contains(string(s.Log()), ":"+dir+`"`) })
}

// TestNoRestart: a server that is not to be restarted stays in error until somebody starts it.
func TestNoRestart(t *testing.T) {
	s := stub(t, "good", Options{})
	s.config.NoRestart = true
	session := up(t, s)
	_, _ = session.CallTool(t.Context(), &mcp.CallToolParams{Name: "die"})
	eventually(t, "it is in error", s.is(Error))
	if st := s.Status(); !st.NextRetry.IsZero() || st.Restarts != 0 {
		t.Errorf("got %+v", st)
	}
	if _, err := s.Session(); err == nil || strings.Contains(err.Error(), "next attempt") {
		t.Errorf("got %v", err)
	}
	if err := echo(t.Context(), up(t, s)); err != nil {
		t.Error(err)
	}
}
