//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// writePolicy writes a policy file whose budgets don't stop the benchmark.
func writePolicy(tmp, standin string, port, proxy int) (string, error) {
	b, err := json.Marshal(map[string]any{
		"version":       1,
		"state_dir":     filepath.Join(tmp, "state"),
		"audit":         map[string]any{"file": ""},
		"agent_browser": map[string]any{"path": standin, "cdp_port": port},
		"egress":        map[string]any{"proxy": fmt.Sprintf("127.0.0.1:%d", proxy)},
		"limits": map[string]any{
			"max_sessions": sessions, "max_calls": 2 * parallel, "session_queue": parallel,
			"rate_per_sec": 1000, "rate_burst": 10000, "session_calls": 1000000,
		},
	})
	if err != nil {
		return "", err
	}
	file := filepath.Join(tmp, "policy.json")
	return file, os.WriteFile(file, b, 0o600)
}

// freePort returns a port that nobody listens on.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
