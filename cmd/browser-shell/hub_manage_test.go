package main_test

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// TestManagementPort: the management API answers on a loopback port when it is asked for, to whoever has the token.
func TestManagementPort(t *testing.T) {
	l := newLab(t)
	const token = "0123456789abcdef"
	file := l.write(t, "manage.token", token+"\n", 0o600)
	h := startHub(t, l, "--manage", "127.0.0.1:0", "--manage-token", file)
	url := "http://" + h.on["management port"] + "/v1/mcp/servers"
	for key, want := range map[string]int{"": 401, token + "x": 401, token: 200} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if key != "" {
			req.Header.Set("Authorization", "Bearer "+key)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("with %q: %d, want %d", key, res.StatusCode, want)
		}
	}
}

// TestBadManagementPort: what would open the port to others is refused before anything starts.
func TestBadManagementPort(t *testing.T) {
	l := newLab(t)
	l.hubConfig(t, "browser_shell")
	good := l.write(t, "good.token", "0123456789abcdef", 0o600)
	for name, tc := range map[string]struct{ address, file, says string }{
		"no token":    {"127.0.0.1:0", "", "--manage needs --manage-token"},
		"open file":   {"127.0.0.1:0", l.write(t, "open.token", "0123456789abcdef", 0o644), "chmod 600"},
		"short":       {"127.0.0.1:0", l.write(t, "short.token", "secret", 0o600), "at least 16"},
		"not there":   {"127.0.0.1:0", filepath.Join(l.dir, "none"), "no such file"},
		"any address": {"0.0.0.0:0", good, "loopback"},
	} {
		cmd := l.hubCommand(t, "--manage", tc.address, "--manage-token", tc.file)
		var said strings.Builder
		cmd.Stderr = &said
		if err := cmd.Run(); err == nil || !strings.Contains(said.String(), tc.says) || strings.Contains(said.String(), "serving") {
			t.Errorf("%s: %v: %s", name, err, said.String())
		}
	}
}
