package elf

import (
	"bytes"
	"debug/elf"
	"io"
	"os"
	"path/filepath"
	"reflect"
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
			if again, err := Read(withoutSections{f}); err != nil || !reflect.DeepEqual(ours, again) {
				t.Errorf("%s without sections: %+v %v", p, again, err)
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

// withoutSections reads a file as if its sections had been stripped.
type withoutSections struct{ io.ReaderAt }

func (w withoutSections) ReadAt(b []byte, off int64) (int, error) {
	n, err := w.ReaderAt.ReadAt(b, off)
	for i := range b[:n] {
		at := off + int64(i)
		if at >= 0x28 && at < 0x30 || at >= 0x3a && at < 0x40 { // e_shoff, and what e_shentsize to e_shstrndx say
			b[i] = 0
		}
	}
	return n, err
}

// TestReadTooManyNames: one file of a hostile image doesn't fill the memory.
func TestReadTooManyNames(t *testing.T) {
	var needed []string
	for range 2000 {
		needed = append(needed, strings.Repeat("x", 100))
	}
	if f, err := Read(bytes.NewReader(elftest.Make(elftest.File{Needed: needed}))); err == nil || !strings.Contains(err.Error(), "more than 65536 bytes") {
		t.Errorf("%d names: %v", len(f.Needed), err)
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
