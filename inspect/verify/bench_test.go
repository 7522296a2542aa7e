package verify_test

import (
	"fmt"
	"testing"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/inspect/verify"
)

// BenchmarkCheck holds an image of 200,000 files, as the base has, against the profile.
func BenchmarkCheck(b *testing.B) {
	c := closeLine(b, "B")
	f := good()
	for i := range 200_000 {
		f.base = append(f.base, text(fmt.Sprintf("/opt/python3.12/lib/python3.12/site-packages/p%d/m%d.py", i/100, i), ""))
	}
	f.base = append(f.base, image.Dir("/opt/python3.12", 0o755))
	f.want.Removed, f.want.Laid = c.want["linux/amd64"].Removed, c.want["linux/amd64"].Laid
	in := f.input(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := verify.Check(b.Context(), in); err != nil {
			b.Fatal(err)
		}
	}
}
