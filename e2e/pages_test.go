package e2e

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/inspect/sandbox"
	"github.com/slimctl/slimctl/internal/need"
)

// TestPages boots the closed image once, and has it open pages that ask and attack.
func TestPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	private, public := signer(t)
	ca, certificate := authority(t, "site.example", "other.example")
	policy, err := json.Marshal(map[string]any{"CACertificates": [][]byte{ca}})
	if err != nil {
		t.Fatal(err)
	}
	b := boot(t, w, withFiles(t, buildL0(t, "standin-live:B"),
		image.Bytes("/etc/browser/policies/managed/zz-e2e.json", 0o644, policy),
		image.Bytes("/etc/agent-browser/browser-shell.policy.json", 0o644, impatient(t))), func(s *sandbox.Settings) { s.Env["JWT_PUBLIC_KEY"] = public })
	b.healthy(t)
	b.closed(t)
	w.answerNames(t)
	end := time.Now().Add(time.Minute).Truncate(time.Second)
	ended := openStream(t, w, private, end)
	t.Run("obey a person", func(t *testing.T) { testSchemes(t, b) })
	t.Run("share", func(t *testing.T) { testShare(t, b) })
	t.Run("save nothing", func(t *testing.T) { testDownloads(t, b) })
	t.Run("start no program", func(t *testing.T) { testStarters(t, b) })
	t.Run("ask for nothing", func(t *testing.T) { testInterfaces(t, b, certificate) })
	t.Run("ask for a password", func(t *testing.T) { testLogin(t, b) })
	select {
	case at := <-ended:
		if at.Before(end) {
			t.Errorf("the stream ended %s before its token", end.Sub(at))
		}
	case <-time.After(max(0, time.Until(end)) + need.Patience): // what came before may have taken longer than the token lives
		t.Error("the stream of a token that has ended goes on")
	}
}
