package tree_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// block is one header as it is written, with its content.
func block(kind byte, name, content string) []byte {
	b := make([]byte, 512)
	copy(b, name)
	copy(b[100:], "0000644\x000000000\x000000000\x00")
	copy(b[124:], fmt.Sprintf("%011o\x00%011o\x00        ", len(content), 0))
	b[156] = kind
	copy(b[257:], "ustar\x0000")
	return append(summed(b), padded(content)...)
}

func summed(b []byte) []byte {
	copy(b[148:], "        ")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return b
}

func padded(content string) []byte {
	return append([]byte(content), make([]byte, (512-len(content)%512)%512)...)
}

// records is a PAX header.
func records(kind byte, pairs ...string) []byte {
	var out string
	for i := 0; i < len(pairs); i += 2 {
		r := " " + pairs[i] + "=" + pairs[i+1] + "\n"
		n := len(r)
		for n != len(r)+len(strconv.Itoa(n)) {
			n = len(r) + len(strconv.Itoa(n))
		}
		out += strconv.Itoa(n) + r
	}
	return block(kind, "pax", out)
}

var ends = make([]byte, 1024)

// What archive/tar reads in one way and another program in another is told; what all read alike is not.
func TestOddArchives(t *testing.T) {
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	a := block('0', "a", "x")
	open := regular("d/", "")
	open.Typeflag, open.Mode = tar.TypeDir, 0o777
	owner := regular("big", "x")
	owner.Uid, owner.Uname = 1<<30, strings.Repeat("é", 20)
	v7 := block('0', "v7", "x")
	clear(v7[257:265])
	summed(v7[:512])
	sized := block('5', "d/", "")
	copy(sized[124:], "00000001000")
	summed(sized)
	long := strings.Repeat("long/", 40) + "name"
	gnu := regular(long, "x")
	gnu.Format = tar.FormatGNU
	for name, c := range map[string]struct {
		raw  []byte
		want []string // "PATH part of the text"
	}{
		"a plain one":              {archive(directory("d/"), regular("d/a", "x"), linked(tar.TypeLink, "b", "d/a"), regular("d/.wh.x", ""), regular(long, "x"), pax("c", "SCHILY.xattr.user.a", "b"), owner), nil},
		"GNU tar's":                {archive(gnu), nil},
		"zeros behind it":          {join(a, ends, ends, ends), nil},
		"a comment of git":         {join(records('g', "comment", "1234"), a, ends), nil},
		"a directory twice":        {archive(directory("d/"), regular("d/a", "x"), directory("d/")), nil},
		"a directory twice, other": {archive(directory("d/"), open), []string{"/d with other rights"}},
		"the root twice":           {archive(directory("./"), item{tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o777}, ""}), []string{"/ with other rights"}},
		"a file twice":             {archive(regular("a", "old"), regular("./a", "new")), []string{"/a twice"}},
		"a directory, then a file": {archive(regular("a/b", "x"), regular("a", "x")), []string{"/a twice"}},
		"a file, then a directory": {archive(regular("a", "x"), directory("a/")), []string{"/a twice"}},
		"below a symlink":          {archive(directory("d/"), linked(tar.TypeSymlink, "s", "d"), regular("s/a", "x")), []string{"/s/a below a symlink"}},
		"removed late":             {archive(regular("a", "x"), regular(".wh.a", "")), []string{"/a takes it away"}},
		"removed first":            {archive(regular(".wh.a", ""), regular("a", "x")), nil},
		"a new directory":          {archive(regular(".wh.d", ""), directory("d/"), regular("d/a", "x")), []string{"/d brings it"}},
		"one without an entry":     {archive(regular(".wh.d", ""), regular("d/a", "x")), []string{"/d brings it"}},
		"one of whiteouts":         {archive(regular(".wh.d", ""), regular("d/.wh.a", "")), []string{"/d brings it"}},
		"an opaque one":            {archive(regular(".wh.d", ""), directory("d/"), regular("d/.wh..wh..opq", ""), regular("d/a", "x")), nil},
		"beside a longer name":     {archive(regular(".wh.d", ""), regular("d-e/a", "x")), nil},
		"an opaque root":           {archive(regular(".wh..wh..opq", ""), regular("a", "x")), []string{"/ hides all lower layers"}},
		"a global path":            {join(records('g', "path", "b", "uid", "1"), a, ends), []string{`/ sets "path"`, `/ sets "uid"`}},
		"before a global":          {join(records('x', "path", "b"), records('g', "comment", "c"), a, ends), []string{"/ before a global one"}},
		"two of PAX":               {join(records('x', "path", "b"), records('x', "mtime", "1"), a, ends), []string{`/a "xx"`}},
		"PAX and GNU":              {join(block('L', "././@LongLink", "c\x00"), records('x', "path", "b"), a, ends), []string{`/c "Lx"`}},
		"two of GNU":               {join(block('L', "././@LongLink", "c\x00"), block('L', "././@LongLink", "b\x00"), a, ends), []string{`/b "LL"`}},
		"no path":                  {join(records('x', "path", ""), a, ends), []string{`/a "path" to ""`}},
		"a small size":             {join(records('x', "size", "1"), a, ends), []string{`/a "size" to "1"`}},
		"a small owner":            {join(records('x', "uid", "0"), a, ends), []string{`/a "uid" to "0"`}},
		"a mode":                   {join(records('x', "SCHILY.mode", "04755"), a, ends), []string{`/a "SCHILY.mode"`}},
		"another's attributes":     {join(records('x', "LIBARCHIVE.xattr.security.capability", "AA=="), a, ends), []string{`/a "LIBARCHIVE`}},
		"a name of GNU sparse":     {join(records('x', "GNU.sparse.name", "b"), a, ends), []string{`/a "GNU.sparse.name"`}},
		"not ASCII":                {join(block('0', "é.pem", "x"), ends), nil},
		"before ustar":             {join(v7, ends), nil},
		"dots":                     {archive(regular("d/../a", "x")), []string{"/a .. in it"}},
		"a file as a directory":    {join(block('0', "a/", "x"), ends), []string{"/a directory's name"}},
		"content of a directory":   {join(sized, a, ends), []string{"/d 512 bytes"}},
		"behind the end":           {join(a, ends, block('0', "b", "evil"), ends), []string{"/ behind the archive's end"}},
		"no end, as umoci writes":  {a, nil},
		"one block at the end":     {join(a, ends[:512]), nil},
		"content of a whiteout":    {join(block('0', ".wh.b", strings.Repeat("x", 2000)), a, ends), nil},
	} {
		t.Run(name, func(t *testing.T) {
			cache := tree.Cache{Dir: t.TempDir()}
			for range 2 { // of the layer, and of the cache
				im, err := cache.Open(t.Context(), newImage(t, plainLayer(c.raw)), tree.Options{})
				if err != nil {
					t.Fatal(err)
				}
				l := im.Layers[0]
				same := len(l.Odd) == len(c.want) && l.Compression == "none"
				for i := 0; same && i < len(c.want); i++ {
					p, part, _ := strings.Cut(c.want[i], " ")
					same = l.Odd[i].Path == p && strings.Contains(l.Odd[i].Text, part)
				}
				if !same {
					t.Errorf("got  %+v, compression %s\nwant %q", l.Odd, l.Compression, c.want)
				}
			}
		})
	}
}

// However many there are, some dozens are kept.
func TestOddIsBounded(t *testing.T) {
	var items []item
	for range 200 {
		items = append(items, regular("a", "x"), regular(strings.Repeat("b", 90), "x"))
	}
	im, err := tree.Cache{}.Open(t.Context(), newImage(t, plainLayer(archive(items...))), tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if odd := im.Layers[0].Odd; len(odd) != 48 || !strings.Contains(odd[47].Text, "more of that") {
		t.Errorf("%d: %+v", len(odd), odd[len(odd)-1])
	}
}

// What a build lays has nothing of it.
func TestOwnLayersAreNotOdd(t *testing.T) {
	im, err := tree.FromFiles(t.Context(), nil,
		image.Dir("/d", 0o755), image.Bytes("/d/"+strings.Repeat("n", 200), 0o644, []byte("x")), image.Symlink("/s", "/"+strings.Repeat("t", 200)), image.Whiteout("/gone"))
	if err != nil {
		t.Fatal(err)
	}
	if l := im.Layers[0]; len(l.Odd) > 0 || l.Compression != "gzip" || slices.IndexFunc(l.Entries, func(e tree.Entry) bool { return e.Path == "/s" }) < 0 {
		t.Errorf("%+v, %s", l.Odd, l.Compression)
	}
}
