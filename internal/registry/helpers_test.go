package registry

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"testing"
)

// modes runs a test with blobs in memory and on disk.
func modes(t *testing.T, f func(t *testing.T, o Options)) {
	t.Run("memory", func(t *testing.T) { f(t, Options{}) })
	t.Run("disk", func(t *testing.T) { f(t, Options{Dir: t.TempDir()}) })
}

func serve(t *testing.T, o Options) *Server {
	t.Helper()
	s, err := Serve(context.Background(), "", o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

func sum(b []byte) string {
	h := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(h[:])
}

type answer struct {
	status int
	header http.Header
	body   []byte
	err    error // while reading the body
}

func (a answer) code(t *testing.T) string {
	t.Helper()
	var e struct{ Errors []struct{ Code string } }
	if err := json.Unmarshal(a.body, &e); err != nil || len(e.Errors) != 1 {
		t.Fatalf("not an error answer: %d %s (%v)", a.status, a.body, err)
	}
	return e.Errors[0].Code
}

// do sends a raw request. The path is not cleaned; headers are pairs.
func (s *Server) do(t *testing.T, method, path string, body []byte, header ...string) answer {
	t.Helper()
	a, err := s.try(t, method, path, body, header...)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (s *Server) try(t *testing.T, method, path string, body []byte, header ...string) (answer, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.Host+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, b, err}, nil
}

// push uploads a blob.
func (s *Server) push(t *testing.T, repo string, blob []byte) string {
	t.Helper()
	a := s.do(t, "POST", "/v2/"+repo+"/blobs/uploads/?digest="+sum(blob), nil) // the digest counts for nothing
	if a = s.do(t, "PUT", a.header.Get("Location")+"?digest="+sum(blob), blob); a.status != http.StatusCreated {
		t.Fatalf("push: %d %s", a.status, a.body)
	}
	return sum(blob)
}
