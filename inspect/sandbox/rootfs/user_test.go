//go:build linux

package rootfs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAccount: whoever an image's USER names is who Docker would take.
func TestAccount(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"passwd": "root:x:0:0::/root:/bin/sh\n\n# x\nalice:x:1000:1000:,:/home/alice:/bin/sh\nbad:x:many:5::home\nhuge:x:99999999999:1::/:\nminus:x:7:-7::/:\n",
		"group":  "root:x:0:\nalice:x:1000:alice\nvideo:x:44:bob,alice\nminus:x:-44:\n",
	} {
		if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for spec, want := range map[string]string{
		"":            "0 0 [] /root",
		"alice":       "1000 1000 [44] /home/alice",
		"1000":        "1000 1000 [44] /home/alice",
		"alice:video": "1000 44 [] /home/alice",
		"alice:7":     "1000 7 [] /home/alice",
		"123:456":     "123 456 [] /",
		"bad":         "0 5 [] /",
		"eve":         `user "eve"`,
		"alice:eve":   `user "alice:eve"`,
		"huge":        ": id 99999999999 in its",
		"minus":       ": id -7 in its",
		"0:minus":     ": id -44 in its",
		"-1":          `user "-1"`,
		"4294967295":  `user "4294967295"`,
	} {
		u, home, err := Account(root, spec)
		if got := fmt.Sprintf("%d %d %v %s", u.UID, u.GID, u.AdditionalGids, home); err == nil && got != want || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %s, %v; want %s", spec, got, err, want)
		}
	}
	if u, home, err := Account(t.TempDir(), "5:6"); err != nil || u.UID != 5 || u.GID != 6 || home != "/" {
		t.Errorf("without files: %+v %q %v", u, home, err)
	}
}
