package e2e

import (
	"encoding/json"
	"testing"

	"github.com/slimctl/slimctl/image"
)

// TestPages boots the closed image once, and has it open pages that ask and attack.
func TestPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ca, certificate := authority(t, "site.example", "other.example")
	policy, err := json.Marshal(map[string]any{"CACertificates": [][]byte{ca}})
	if err != nil {
		t.Fatal(err)
	}
	b := boot(t, w, withFiles(t, buildL0(t, "standin-live:B"),
		image.Bytes("/etc/browser/policies/managed/zz-e2e.json", 0o644, policy),
		image.Bytes("/etc/agent-browser/browser-shell.policy.json", 0o644, impatient(t))), nil)
	b.healthy(t)
	b.closed(t)
	w.answerNames(t)
	t.Run("obey a person", func(t *testing.T) { testSchemes(t, b) })
	t.Run("share", func(t *testing.T) { testShare(t, b) })
	t.Run("start no program", func(t *testing.T) { testStarters(t, b) })
	t.Run("ask for nothing", func(t *testing.T) { testInterfaces(t, b, certificate) })
	t.Run("ask for a password", func(t *testing.T) { testLogin(t, b) })
}
