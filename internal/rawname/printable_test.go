package rawname

import "testing"

// FuzzLine: nothing that a terminal acts on is left, whatever an image says.
func FuzzLine(f *testing.F) {
	f.Add("\x1b[2J\u009b\u202e\xff")
	f.Fuzz(func(t *testing.T, s string) {
		for _, r := range Line(s) {
			if r != ' ' && (r < 0x20 || r >= 0x7f && r < 0xa0 || r == 0x202e || r == 0x2066) {
				t.Errorf("%q: %q", s, Line(s))
			}
		}
	})
}
