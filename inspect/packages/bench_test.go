package packages

import (
	"fmt"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// large is an image like the base: 800 packages of dpkg, 300 of pip, 400 of npm, and 150,000 files.
func large(tb testing.TB) *tree.Image {
	tb.Helper()
	var files []image.File
	var status strings.Builder
	file := func(p string) { files = append(files, image.Bytes(p, 0o644, nil)) }
	for i := range 800 {
		name := fmt.Sprintf("package-%03d", i)
		fmt.Fprintf(&status, "Package: %s\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1.%d-1ubuntu2\nDescription: a\n%s\n",
			name, i, strings.Repeat(" what it is for, at some length, as Debian has it\n", 20))
		var list strings.Builder
		list.WriteString("/.\n/usr\n/usr/lib\n/usr/lib/x86_64-linux-gnu\n")
		for dir := range 10 {
			fmt.Fprintf(&list, "/usr/lib/x86_64-linux-gnu/%s/%02d\n", name, dir)
			for n := range 10 {
				p := fmt.Sprintf("/usr/lib/x86_64-linux-gnu/%s/%02d/file-%02d.so", name, dir, n)
				list.WriteString(p + "\n")
				file(p)
			}
		}
		files = append(files, image.Bytes(dpkgInfo+"/"+name+".list", 0o644, []byte(list.String())))
	}
	files = append(files, image.Bytes(dpkgStatus, 0o644, []byte(status.String())))
	const site = "/opt/python3.12/lib/python3.12/site-packages/"
	for i := range 300 {
		name := fmt.Sprintf("project%03d", i)
		var record strings.Builder
		for n := range 100 {
			p := fmt.Sprintf("%s/sub%d/module_%02d.py", name, n%7, n)
			record.WriteString(p + ",sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,1234\n")
			file(site + p)
		}
		dist := site + name + "-1.0.dist-info/"
		files = append(files, image.Bytes(dist+"RECORD", 0o644, []byte(record.String())),
			image.Bytes(dist+"METADATA", 0o644, []byte("Metadata-Version: 2.1\nName: "+name+"\nVersion: 1.0\n\n"+strings.Repeat("about it\n", 500))))
	}
	for i := range 400 {
		dir := fmt.Sprintf("/usr/lib/node_modules/top%d/node_modules/package-%03d/", i%20, i)
		files = append(files, image.Bytes(dir+"package.json", 0o644, fmt.Appendf(nil, `{"name": "package-%03d", "version": "1.0.%d", "x": %q}`, i, i, strings.Repeat("y", 2000))))
		for n := range 95 {
			file(fmt.Sprintf("%sdist/sub%d/file-%02d.js", dir, n%5, n))
		}
	}
	return open(tb, files...)
}

func BenchmarkRead(b *testing.B) {
	img := large(b)
	b.Logf("%d entries", img.Len())
	b.ReportAllocs()
	for b.Loop() {
		db, err := Read(b.Context(), img)
		if err != nil {
			b.Fatal(err)
		}
		if len(db.Packages) != 1500 || len(db.Notes) > 0 {
			b.Fatal(len(db.Packages), db.Notes)
		}
	}
}

func BenchmarkOwner(b *testing.B) {
	db, err := Read(b.Context(), large(b))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if db.Owner("/usr/lib/x86_64-linux-gnu/package-123/01/file-01.so") == nil ||
			db.Owner("/usr/lib/node_modules/top3/node_modules/package-003/dist/sub1/file-01.js") == nil ||
			db.Owner("/usr/local/bin/nobody") != nil {
			b.Fatal("wrong owner")
		}
	}
}
