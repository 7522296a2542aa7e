package main_test

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"
)

// Each tool process that idles keeps what its packages make at start: patterns
// with bounded repeats, compiled at once, cost 1.7 MB.
func TestStartAllocatesLittle(t *testing.T) {
	cmd := exec.Command(binary, "version")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	total := 0
	for _, m := range regexp.MustCompile(`(?m)^init github\.com/slimctl/.* (\d+) bytes, `).FindAllSubmatch(out, -1) {
		n, err := strconv.Atoi(string(m[1]))
		if err != nil {
			t.Fatal(err)
		}
		total += n
	}
	if total == 0 || total > 150_000 {
		t.Errorf("the packages of this module allocate %d bytes at start, want 1 to 150000\n%s", total, out)
	}
}
