package output

import (
	"archive/tar"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slimctl/slimctl/image"
)

// TestArchiveSource derives from an oci-archive base, spoils it after it was verified, and cuts it.
func TestArchiveSource(t *testing.T) {
	dir := writeBase(t, testBase(t, 100_000), "1")
	local := open(t, "oci:"+dir, testOptions())
	base := filepath.Join(t.TempDir(), "base.tar")
	o := testOptions()
	o.CacheDir = t.TempDir()
	if err := (Spec{OCIArchive, base}).Write(context.Background(), derive(t, local, 10, 70), nil, local, o); err != nil {
		t.Fatal(err)
	}
	time.Sleep(150 * time.Millisecond)
	out := t.TempDir()
	for _, n := range []string{"first", "second"} { // the second time everything is known to be good
		src := open(t, "oci-archive:"+base, o)
		for _, kind := range []string{OCI, OCIArchive} {
			dest := filepath.Join(out, n+kind)
			b := derive(t, src, 10, 90)
			if err := (Spec{kind, dest}).Write(context.Background(), b, nil, src, o); err != nil {
				t.Fatal(err)
			}
			img, err := open(t, kind+":"+dest, testOptions()).Image(amd64) // no memory: all is read and hashed
			if err != nil {
				t.Fatal(err)
			}
			ls, err := img.Layers()
			if err != nil || len(ls) != layersEach+2 {
				t.Fatalf("%d layers, %v", len(ls), err)
			}
			for _, l := range ls {
				if _, err := readAll(t, l); err != nil {
					t.Errorf("%s: %v", dest, err)
				}
			}
		}
	}
	src := open(t, "oci-archive:"+base, o)
	d := baseLayer(t, src, 2)
	off := offset(t, base, blobName(d.Digest))
	flip(t, base, off+1000)
	for _, kind := range []string{OCI, OCIArchive} {
		err := (Spec{kind, filepath.Join(out, "x")}).Write(context.Background(), derive(t, src, 10, 90), nil, src, o)
		mustBeDigestError(t, err, d.Digest)
	}
	if got := files(t, out); len(got) != 4 {
		t.Errorf("left behind: %v", got)
	}
	if err := os.Truncate(base, off+1000); err != nil {
		t.Fatal(err)
	}
	if _, err := image.Open(context.Background(), "oci-archive:"+base, o); err == nil || !strings.Contains(err.Error(), "cut short") {
		t.Errorf("a cut archive: %v", err)
	}
}

// offset is where the content of a file of an archive starts.
func offset(t *testing.T, archive, name string) int64 {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if h.Name == name {
			off, err := f.Seek(0, io.SeekCurrent)
			if err != nil {
				t.Fatal(err)
			}
			return off
		}
	}
}

// TestSymlinkedBlob has a blob that is a symbolic link, as some builders lay them.
func TestSymlinkedBlob(t *testing.T) {
	dir := writeBase(t, testBase(t, 20_000), "1")
	d := baseLayer(t, open(t, "oci:"+dir, testOptions()), 1)
	blob := filepath.Join(dir, "blobs", "sha256", d.Digest.Hex)
	other := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.Rename(blob, other); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, blob); err != nil {
		t.Fatal(err)
	}
	src := open(t, "oci:"+dir, testOptions())
	out := filepath.Join(t.TempDir(), "x")
	if err := (Spec{OCI, out}).Write(context.Background(), derive(t, src, 10, 70), nil, src, testOptions()); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(filepath.Join(out, "blobs", "sha256", d.Digest.Hex))
	if err != nil || !info.Mode().IsRegular() {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	// A link to a file that is something else is found by its content.
	if err := os.WriteFile(other, make([]byte, d.Size), 0o600); err != nil {
		t.Fatal(err)
	}
	err = (Spec{OCI, out + "2"}).Write(context.Background(), derive(t, src, 10, 70), nil, src, testOptions())
	mustBeDigestError(t, err, d.Digest)
}
