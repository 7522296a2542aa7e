package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/internal/registry"
)

func get(t *testing.T, method, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

func TestRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stats := filepath.Join(t.TempDir(), "stats.json")
	pr, pw := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := run(ctx, []string{"-dir", t.TempDir(), "-stats-file", stats}, pw, io.Discard)
		pw.CloseWithError(err)
		done <- err
	}()
	host, err := bufio.NewReader(pr).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	base := "http://" + strings.TrimSpace(host)

	get(t, "GET", base+"/v2/")
	if _, body := get(t, "POST", base+"/_reset"); body != "" {
		t.Error(body)
	}
	get(t, "GET", base+"/v2/x/manifests/v1")
	_, body := get(t, "GET", base+"/_stats")
	var s registry.Stats
	if err := json.Unmarshal([]byte(body), &s); err != nil || s.Requests != 1 || s.ByKind["GET manifest"] != 1 {
		t.Errorf("%s: %v", body, err)
	}
	if _, body := get(t, "GET", base+"/_records"); !strings.Contains(body, `"/v2/x/manifests/v1"`) {
		t.Error(body)
	}
	for d, want := range map[string]int{"1ms": 200, "-1s": 400, "soon": 400} {
		if code, body := get(t, "POST", base+"/_latency?d="+d); code != want {
			t.Errorf("latency %s: %d %s", d, code, body)
		}
	}
	if code, _ := get(t, "GET", base+"/_reset"); code != http.StatusMethodNotAllowed {
		t.Errorf("reset by GET: %d", code)
	}
	if code, _ := get(t, "GET", base+"/v2/../x/manifests/v1"); code != http.StatusBadRequest {
		t.Errorf("the path was cleaned before the registry saw it: %d", code)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(stats)
	if err != nil || !strings.Contains(string(b), `"requests": 2`) {
		t.Errorf("%s %v", b, err)
	}
}

func TestRunRefuses(t *testing.T) {
	for want, args := range map[string][]string{
		"repo:tag=DIR": {"-load", "x"},
		"index.json":   {"-load", "x:v1=" + t.TempDir()},
		"listen":       {"-addr", "256.0.0.1:0"},
	} {
		if err := run(t.Context(), args, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", args, err)
		}
	}
}
