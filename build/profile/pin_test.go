package profile

import (
	"strings"
	"testing"
)

// TestPin: only the two values change, whatever stands around them.
func TestPin(t *testing.T) {
	old, sum := "sha512-"+strings.Repeat("A", 86)+"==", "sha512-"+strings.Repeat("B", 86)+"=="
	tests := []struct{ name, in, want, fails string }{
		{
			"comments and blank lines stay",
			"# mine\nversion: 1\n\nname: mine # yes\npayload:\n  agentBrowser:\n    # pinned\n    version: 0.8.10 # the last\n\n    integrity: " + old + "\n\nextends: l0\n",
			"# mine\nversion: 1\n\nname: mine # yes\npayload:\n  agentBrowser:\n    # pinned\n    version: 0.41.2 # the last\n\n    integrity: " + sum + "\n\nextends: l0\n", "",
		},
		{
			"quoted, in flow form, on one line",
			"{version: 1, payload: {agentBrowser: {integrity: \"" + old + "\", version: '0.8.10'}}}",
			"{version: 1, payload: {agentBrowser: {integrity: " + sum + ", version: 0.41.2}}}", "",
		},
		{
			"in the other order",
			"{version: 1, payload: {agentBrowser: {version: '0.8.10', integrity: \"" + old + "\"}}}",
			"{version: 1, payload: {agentBrowser: {version: 0.41.2, integrity: " + sum + "}}}", "",
		},
		{
			"two lines in flow form",
			"version: 1\npayload: {agentBrowser: {version: '0.8.10',\n  integrity: \"" + old + "\"}}\n",
			"version: 1\npayload: {agentBrowser: {version: 0.41.2,\n  integrity: " + sum + "}}\n", "",
		},
		{
			"a profile that extends another gets its own",
			"version: 1\nname: mine\nextends: l0",
			"version: 1\nname: mine\nextends: l0\n\npayload:\n  agentBrowser:\n    version: 0.41.2\n    integrity: " + sum + "\n", "",
		},
		{"a part only", "version: 1\npayload:\n  agentBrowser:\n    version: 0.8.10\n", "", "mine.yaml:3:1: payload.agentBrowser: has no integrity"},
		{"an anchor", "payload:\n  agentBrowser:\n    version: &v 0.8.10\n    integrity: " + old + "\n", "", "mine.yaml:2:1"},
		{"a folded text", "payload:\n  agentBrowser:\n    version: >-\n      0.8.10\n    integrity: " + old + "\n", "", "mine.yaml:2:1"},
		{"flow form at the top without a payload", "{version: 1}\n", "", "mine.yaml"},
		{"an end mark", "version: 1\n...\n", "", "mine.yaml"},
		{"no mapping", "- 1\n", "", "mine.yaml:1:1"},
		{"no YAML", "a: [\n", "", "mine.yaml:1"},
		{"nothing", "", "", "mine.yaml:1:1"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := Pin("mine.yaml", []byte(test.in), "0.41.2", sum)
			if test.fails == "" && (err != nil || string(got) != test.want) {
				t.Errorf("%v\n%s\nwant\n%s", err, got, test.want)
			}
			if test.fails != "" && (err == nil || !strings.Contains(err.Error(), test.fails)) {
				t.Errorf("error %v, want one with %q", err, test.fails)
			}
		})
	}
}
