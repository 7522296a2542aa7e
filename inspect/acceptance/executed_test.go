package acceptance

import (
	"slices"
	"testing"

	"github.com/slimctl/slimctl/inspect/sandbox"
)

// TestStrangers guards run-executed: what line B's stand-in executes is expected, and what a page or a hook would start is not.
func TestStrangers(t *testing.T) {
	const chromium = "/usr/lib/chromium/chromium"
	for _, c := range []struct {
		by, file string
		want     bool // a stranger
	}{
		{"/", "/usr/local/bin/browser-shell", false}, // runc
		{"/memfd:runc_cloned:/proc/self/exe (deleted)", "/usr/bin/find", false},
		{"/usr/local/bin/browser-shell", "/usr/local/bin/supervisord", false},
		{"/usr/local/bin/browser-shell", "/usr/bin/python3.11", false},
		{"/usr/bin/python3.11", "/usr/local/bin/browser-shell", false},
		{"/usr/bin/python3.11", "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", false},
		{"/usr/local/bin/browser-shell", chromium, false},
		{"/usr/local/bin/browser-shell", "/opt/browser/chrome", false},
		{"/usr/local/bin/browser-shell", "/usr/bin/Xtigervnc", false},
		{chromium, chromium, false},
		{chromium, "/usr/lib/chromium/chrome_crashpad_handler", false},
		{"/usr/bin/Xtigervnc", "/usr/bin/dash", false},
		{"/usr/bin/dash", "/usr/bin/xkbcomp", false},
		{"/opt/agent-browser/bin/agent-browser-linux-x64", "/opt/fnm/node-versions/v22.22.2/installation/bin/node", false},

		{chromium, "/usr/bin/xdg-open", true},
		{chromium, "/usr/bin/dash", true},
		{"/usr/bin/dash", "/usr/bin/xdg-open", true},
		{"/usr/bin/dash", "/usr/bin/curl", true},
		{"/usr/bin/chromium", "/usr/bin/curl", true}, // they lie beside each other, with a thousand others
		{"/usr/sbin/nginx", "/usr/bin/dash", true},
		{"/usr/bin/openbox", chromium, true},
		{"/usr/local/bin/browser-shell", "/usr/bin/xdg-email", true},
		{"/usr/bin/node", "/usr/bin/dash", true},
		{"/memfd:x (deleted)", "/usr/bin/dash", true},
	} {
		e := sandbox.Executed{By: c.by, File: c.file, Times: 1}
		if got := slices.Contains(Strangers([]sandbox.Executed{e}), e); got != c.want {
			t.Errorf("%s, by %s: a stranger is %v", c.file, c.by, got)
		}
	}
}
