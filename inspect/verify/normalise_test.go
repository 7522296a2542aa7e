package verify

import "testing"

// FuzzSafe: nothing that a terminal acts on is left, whatever an image says.
func FuzzSafe(f *testing.F) {
	f.Add("\x1b[2J\u009b\u202e\xff")
	f.Fuzz(func(t *testing.T, s string) {
		for _, r := range safe(s) {
			if r != ' ' && (r < 0x20 || r >= 0x7f && r < 0xa0 || r == 0x202e || r == 0x2066) {
				t.Errorf("%q: %q", s, safe(s))
			}
		}
	})
}
