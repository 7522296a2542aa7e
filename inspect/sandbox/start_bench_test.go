//go:build linux

package sandbox

import "testing"

// BenchmarkRun measures a whole run of a program that ends at once, its layers being unpacked already: from Start to all
// cleaned up.
func BenchmarkRun(b *testing.B) {
	needRunc(b)
	img := guestImage(b)
	r := Runner{Runtime: Runc, CacheDir: cache(b)}
	for b.Loop() {
		sb, err := r.Start(b.Context(), img, settings("exit", "0"))
		if err != nil {
			b.Fatal(err)
		}
		if st, err := sb.Wait(b.Context()); err != nil || st.ExitCode != 0 {
			b.Fatal(st, err)
		}
	}
}
