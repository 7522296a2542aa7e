package main_test

import (
	"os/exec"
	"strings"
	"testing"
)

// TestCagedProgramEnds: the last line names the program that ended, once, and not supervisord.
func TestCagedProgramEnds(t *testing.T) {
	t.Parallel()
	for want, argv := range map[string][]string{
		"browser-shell: /bin/sh ended in its cage: exit status 3":      {"/bin/sh", "-c", "exit 3"},
		"browser-shell: /bin/sh ended in its cage: signal: terminated": {"/bin/sh", "-c", "kill $$"},
		"browser-shell: start /no/such: no such file or directory":     {"/no/such"},
	} {
		out, err := exec.Command(binary, append([]string{"start", "--cage", "windows"}, argv...)...).CombinedOutput()
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		if err == nil || lines[len(lines)-1] != want || strings.Count(string(out), "no such file") > 1 {
			t.Errorf("%q: %v, %s, want %s", argv, err, out, want)
		}
	}
}
