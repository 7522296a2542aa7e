package verify

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// TestReach: a file of the base that was opened and isn't in the image is found, with its opener, and nothing else is.
func TestReach(t *testing.T) {
	base := []image.File{
		image.Dir("/usr", 0o755), image.Bytes("/usr/kept", 0o644, []byte("12")), image.Bytes("/usr/gone", 0o644, nil),
		image.Bytes("/usr/silent", 0o644, []byte("123456")), image.Dir("/usr/dir", 0o755), image.Bytes("/usr/ended", 0o644, nil),
	}
	files := map[string]*tree.Image{}
	for name, list := range map[string][]image.File{"base": base, "image": {base[0], base[1], base[3]}} {
		img, err := tree.FromFiles(t.Context(), nil, list...)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = img
	}
	opened := map[string]string{"/usr/kept": "/bin/a", "/usr/gone": "/bin/a", "/usr/ended": "", "/usr/dir": "/bin/a", "/tmp/made": "/bin/a"}
	var got []string
	for _, f := range Reach("linux/amd64", opened, files["base"], files["image"]) {
		got = append(got, f.Severity+" "+f.Subject+": "+f.Message)
	}
	want := []string{
		"error /usr/ended: /usr/ended is not in the image; with all of the base a program that had ended opened it",
		"error /usr/gone: /usr/gone is not in the image; with all of the base /bin/a opened it",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	use := &Use{Opened: Amount{1, 2}, All: Amount{2, 8}, Idle: []IdleFile{{"/usr/silent", 6}}}
	if d := cmp.Diff(use, UseOf(files["image"], opened)); d != "" {
		t.Error(d)
	}
}
