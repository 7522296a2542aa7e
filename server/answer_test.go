package server

import (
	"strings"
	"testing"
)

// TestNormalise: only a success with data yields stdout and exit code 0.
func TestNormalise(t *testing.T) {
	tests := []struct {
		name, stdout, stderr string
		exit                 int
		want                 int
		data, words          string // exact stdout; part of stderr
	}{
		{"success", `{"success":true,"data":{"b":1, "a":"<é>"},"error":null}` + "\n", "", 0, 0, "{\"b\":1,\"a\":\"<é>\"}\n", ""},
		{"large number kept", `{"success":true,"data":{"n":12345678901234567890}}`, "", 0, 0, "{\"n\":12345678901234567890}\n", ""},
		{"null data", `{"success":true,"data":null}`, "", 0, 0, "null\n", ""},
		{"warning", `{"success":true,"data":{}}`, "careful\n", 0, 0, "{}\n", "careful"},
		{"failure", `{"success":false,"data":null,"error":"no such element"}`, "", 1, 1, "", "no such element\n"},
		{"failure with exit 0", `{"success":false,"error":"x"}`, "", 0, 1, "", "x"},
		{"failure with data", `{"success":false,"data":{"secret":1},"error":"x"}`, "", 1, 1, "", "x"},
		{"failure without a reason", `{"success":false}`, "", 1, 1, "", "without a reason"},
		{"success with exit 3", `{"success":true,"data":{"secret":1}}`, "", 3, 3, "", "exited with 3"},
		{"no data", `{"success":true}`, "", 0, 70, "", "without data"},
		{"nothing", "", "", 0, 70, "", "printed nothing"},
		{"nothing, with a reason", "", "bad config", 1, 1, "", "bad config"},
		{"help text", "Usage: agent-browser", "", 0, 70, "", "not one JSON object"},
		{"cut", `{"success":true,"data":{"a":`, "", 0, 70, "", "not one JSON object"},
		{"unescaped", "{\"success\":false,\"error\":\"a \"b\"\"}", "", 1, 1, "", "not one JSON object"},
		{"two objects", `{"success":true,"data":1}{"success":true,"data":2}`, "", 0, 70, "", "not one JSON object"},
		{"success twice", `{"success":false,"success":true,"data":1}`, "", 0, 70, "", "not one JSON object"},
		{"success in another case", `{"Success":true,"data":1}`, "", 0, 70, "", "did not say"},
		{"success as a word", `{"success":"true","data":1}`, "", 0, 70, "", "did not say"},
		{"array", `[1]`, "", 0, 70, "", "not one JSON object"},
		{"bad UTF-8", "{\"success\":true,\"data\":\"\xff\"}", "", 0, 0, "\"\ufffd\"\n", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := normalise("s", runResult{stdout: []byte(tt.stdout), stderr: []byte(tt.stderr), exitCode: tt.exit})
			if got.ExitCode != tt.want || got.Stdout != tt.data || !strings.Contains(got.Stderr, tt.words) || tt.words == "" && got.Stderr != "" {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestStderrIsCut(t *testing.T) {
	got := normalise("s", runResult{stdout: []byte(`{"success":false,"error":"` + strings.Repeat("é", maxStderr) + `"}`), exitCode: 1})
	if len(got.Stderr) > maxStderr+100 || !strings.Contains(got.Stderr, "bytes cut]") {
		t.Errorf("stderr has %d bytes", len(got.Stderr))
	}
}

// TestFrozenKeys: the four keys, in this order, nothing escaped for HTML.
func TestFrozenKeys(t *testing.T) {
	got := string(Result{SessionID: "s", ExitCode: 1, Stdout: "<a>\n", Stderr: "&"}.encode())
	if want := `{"session_id":"s","exit_code":1,"stdout":"<a>\n","stderr":"&"}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
