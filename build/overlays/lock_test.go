package overlays

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/internal/need"
)

var update = flag.Bool("update", false, "write npm/<version>/payload.json anew from what npm gives")

// TestCommittedLocks: each lock installs exactly the files that its payload.json lists. It runs npm only where the
// user's cache hasn't the payload.
func TestCommittedLocks(t *testing.T) {
	for version, integrity := range map[string]string{nodeVersion: nodeSum, nativeVersion: nativeSum} {
		t.Run(version, func(t *testing.T) {
			if *update {
				updateManifest(t, version)
			}
			l, err := findLock(version, integrity)
			if err != nil {
				t.Fatal(err)
			}
			if l.integrity != integrity {
				t.Errorf("lock has integrity %s", l.integrity)
			}
			if l.manifest.Version != version || l.manifest.Integrity != integrity || l.manifest.Native != isNative(version) {
				t.Errorf("payload.json says %s, %s, native %v", l.manifest.Version, l.manifest.Integrity, l.manifest.Native)
			}
			if strings.Contains(string(l.lock), `"resolved"`) || strings.Contains(string(l.lock), "://registry") {
				t.Error("package-lock.json names a registry")
			}
			p := fetched(t, version, integrity)
			if p.Digest != l.manifest.digest() {
				t.Errorf("fetched %s, payload.json is %s", p.Digest, l.manifest.digest())
			}
		})
	}
}

func updateManifest(t *testing.T, version string) {
	t.Helper()
	need.Program(t, "npm")
	l, err := findLock(version, "")
	if err != nil {
		t.Fatal(err)
	}
	tmp := t.TempDir()
	stage := filepath.Join(tmp, "stage")
	must(t, l.install(context.Background(), filepath.Join(tmp, "npm"), stage, Options{}))
	m, err := describe(stage, l.integrity)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join("npm", version, manifestName), m.encode(), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Skip("written; run again without -update, the old one is compiled in here")
}

func TestKnown(t *testing.T) {
	if got := strings.Join(Known(), " "); got != nodeVersion+" "+nativeVersion {
		t.Errorf("Known() = %s", got)
	}
}

func TestLockForRefuses(t *testing.T) {
	other := "sha512-" + strings.Repeat("A", 86) + "=="
	cases := map[string]struct {
		version, integrity string
		is                 error
		says               string
	}{
		"no lock, has dependencies": {"0.9.4", other, ErrUnknownVersion, "0.8.10 and 0.41.2"},
		"last with dependencies":    {"0.19.0", other, ErrUnknownVersion, "--payload DIR"},
		"other integrity":           {nodeVersion, other, ErrIntegrity, nodeSum},
		"a tag":                     {"latest", other, nil, "plain version"},
		"a range":                   {"^0.41.2", other, nil, "plain version"},
		"a path":                    {"file:../evil", other, nil, "plain version"},
		"an alias":                  {"npm:evil@1.0.0", other, nil, "plain version"},
		"up":                        {"../0.8.10", other, nil, "plain version"},
		"sha1":                      {nativeVersion, "sha1-2jmj7l5rSw0yVb/vlWAYkK/YBwk=", nil, "sha512-"},
		"two hashes":                {nativeVersion, nativeSum + " " + other, nil, "sha512-"},
		"no integrity":              {nodeVersion, "", ErrIntegrity, nodeSum},
		"native without integrity":  {"0.40.0", "", ErrUnknownVersion, "write its integrity"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := Fetch(context.Background(), c.version, c.integrity, Options{CacheDir: t.TempDir(), Npm: "no-such-npm"})
			if err == nil || !strings.Contains(err.Error(), c.says) || c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("error %v, want one that is %v and says %q", err, c.is, c.says)
			}
		})
	}
}

func TestIsNative(t *testing.T) {
	for version, want := range map[string]bool{"0.8.10": false, "0.19.0": false, "0.20.0": true, "0.41.2": true, "1.0.0": true} {
		if isNative(version) != want {
			t.Errorf("isNative(%s) = %v", version, !want)
		}
	}
}

func TestKeepRules(t *testing.T) {
	if _, err := parseKeep([]byte("a\n[")); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("bad pattern: error %v", err)
	}
	l, err := findLock(nodeVersion, "")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		"bin/agent-browser-linux-x64":                               true,
		"bin/agent-browser-darwin-x64":                              false,
		"bin/agent-browser.js":                                      false,
		"dist/daemon.js":                                            true,
		"dist/daemon.d.ts":                                          false,
		"dist/daemon.js.map":                                        false,
		"scripts/postinstall.js":                                    false,
		"skills/agent-browser/SKILL.md":                             false,
		"node_modules/playwright-core/lib/server/index.js":          true,
		"node_modules/playwright-core/lib/vite/recorder/x.js":       false,
		"node_modules/playwright-core/lib/cli/program.js":           false,
		"node_modules/playwright-core/bin/install.sh":               false,
		"node_modules/playwright-core/types/types.d.ts":             false,
		"node_modules/playwright-core/LICENSE":                      true,
		"node_modules/ws/lib/websocket.js":                          true,
		"node_modules/zod/lib/locales/en.js":                        false,
		"node_modules/.bin/agent-browser":                           false,
		"node_modules/.package-lock.json":                           false,
		"node_modules/other/lib/index.js":                           false,
		"node_modules/ws/node_modules/evil/package.json":            false,
		"node_modules/playwright-core/lib/server/chromium/icon.png": false,
	} {
		if l.keep.keeps(name) != want {
			t.Errorf("keeps(%s) = %v", name, !want)
		}
	}
}
