package elf

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/image/elf/elftest"
)

// TestRead reads real programs, and holds what it finds against debug/elf, which goes by sections.
func TestRead(t *testing.T) {
	var found int
	for _, glob := range []string{"/usr/bin/*", "/usr/sbin/*", "/lib/x86_64-linux-gnu/*.so*", "/lib64/*"} {
		paths, err := filepath.Glob(glob)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range paths {
			f, err := os.Open(p)
			if err != nil {
				continue
			}
			defer f.Close()
			theirs, err := elf.NewFile(f)
			if err != nil || theirs.Class != elf.ELFCLASS64 {
				continue
			}
			ours, err := Read(f)
			if err != nil {
				t.Errorf("%s: %v", p, err)
				continue
			}
			found++
			needed, err := theirs.DynString(elf.DT_NEEDED)
			if err != nil {
				t.Fatal(err)
			}
			runPath, err := theirs.DynString(elf.DT_RUNPATH)
			if err != nil {
				t.Fatal(err)
			}
			var interp string
			if s := theirs.Section(".interp"); s != nil {
				data, err := s.Data()
				if err != nil {
					t.Fatal(err)
				}
				interp = strings.TrimRight(string(data), "\x00")
			}
			if ours.Machine != theirs.Machine || !slices.Equal(ours.Needed, needed) || ours.Interp != interp || strings.Join(ours.RunPath, ":") != strings.Join(runPath, ":") {
				t.Errorf("%s: got %+v; debug/elf has %v, %v, %q", p, ours, needed, runPath, interp)
			}
		}
	}
	if found < 5 {
		t.Errorf("%d programs were compared", found)
	}
}

// TestReadStripped: sections may be gone, and names lie where patchelf(1) puts them.
func TestReadStripped(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler: cc isn't there")
	}
	dir := t.TempDir()
	source, lib := filepath.Join(dir, "x.c"), filepath.Join(dir, "libx.so")
	if err := os.WriteFile(source, []byte("int x(void) { return 1; }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN/a:/b", "-o", lib, source, "-lm").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	data, err := os.ReadFile(lib)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 8 { // e_shoff
		data[0x28+i] = 0
	}
	data[0x3c], data[0x3e] = 0, 0
	f, err := Read(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(f.Needed, "libm.so.6") || !slices.Equal(append(f.RPath, f.RunPath...), []string{"$ORIGIN/a", "/b"}) {
		t.Errorf("got %+v", f)
	}
}

func FuzzRead(f *testing.F) {
	self, err := os.Open("/proc/self/exe")
	if err == nil {
		head := make([]byte, 4096)
		if _, err := self.Read(head); err == nil {
			f.Add(head)
		}
		self.Close()
	}
	f.Add([]byte("\x7fELF\x02\x01\x01"))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Read(bytes.NewReader(data))
		if err == nil && len(file.Needed) > len(data) {
			t.Errorf("%d names in %d bytes", len(file.Needed), len(data))
		}
	})
}

// TestMade: what elftest makes says what it was told.
func TestMade(t *testing.T) {
	want := elftest.File{Machine: elf.EM_AARCH64, Interp: "/lib/ld.so", Needed: []string{"a.so", "b.so"}, RPath: "/x", RunPath: "$ORIGIN:/y"}
	f, err := Read(bytes.NewReader(elftest.Make(want)))
	if err != nil {
		t.Fatal(err)
	}
	if f.Machine != want.Machine || f.Interp != want.Interp || !slices.Equal(f.Needed, want.Needed) || !slices.Equal(f.RPath, []string{"/x"}) || !slices.Equal(f.RunPath, []string{"$ORIGIN", "/y"}) {
		t.Errorf("got %+v", f)
	}
}
