package tree_test

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/sandbox/rootfs"
	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/internal/ocitest"
	"github.com/slimctl/slimctl/internal/standin"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		need.Missing(t, "files get their owners, which needs root")
	}
}

// onDisk tells of every path below root, the root left out, what inTree tells of a tree.
func onDisk(t *testing.T, root string) map[string]any {
	t.Helper()
	out := map[string]any{}
	names := map[uint64]string{} // the first name of an inode
	err := filepath.WalkDir(root, func(p string, _ fs.DirEntry, err error) error {
		if p == root || err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		var st unix.Stat_t
		switch err := unix.Lstat(p, &st); {
		case errors.Is(err, fs.ErrNotExist):
			return nil // overlayfs lists a whiteout of nothing
		case err != nil:
			return err
		}
		at := strings.TrimPrefix(p, root)
		line := fmt.Sprintf("%04o %d:%d", st.Mode&0o7777, st.Uid, st.Gid)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			content, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			sum := sha256.Sum256(content)
			if names[st.Ino] == "" {
				names[st.Ino] = at
			}
			line += fmt.Sprintf(" file %d sha256:%s as %s", st.Size, hex.EncodeToString(sum[:]), names[st.Ino])
		case unix.S_IFDIR:
			line += " dir"
		case unix.S_IFLNK:
			to, err := os.Readlink(p)
			if err != nil {
				return err
			}
			line = fmt.Sprintf("%d:%d symlink %s", st.Uid, st.Gid, to)
		case unix.S_IFCHR, unix.S_IFBLK:
			kind := image.TypeChar
			if st.Mode&unix.S_IFMT == unix.S_IFBLK {
				kind = image.TypeBlock
			}
			line += fmt.Sprintf(" %s %d,%d", kind, unix.Major(st.Rdev), unix.Minor(st.Rdev))
		case unix.S_IFIFO:
			line += " fifo"
		}
		out[at] = line + xattrsOf(p)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func xattrsOf(p string) (out string) {
	list := make([]byte, 4096)
	n, err := unix.Llistxattr(p, list)
	if err != nil {
		return ""
	}
	names := strings.Split(strings.TrimRight(string(list[:n]), "\x00"), "\x00")
	slices.Sort(names)
	for _, name := range names {
		value := make([]byte, 4096)
		if n, err := unix.Lgetxattr(p, name, value); err == nil && (strings.HasPrefix(name, "user.") || name == "security.capability") {
			out += fmt.Sprintf(" %s=%q", name, value[:n])
		}
	}
	return out
}

func inTree(t *tree.Tree) map[string]any {
	out := map[string]any{}
	inodes := map[string]*tree.Entry{}
	for e := range t.Walk("/") {
		if e.Type == image.TypeFile {
			inodes[e.Path] = e
		}
	}
	names := map[string]string{}
	for e := range t.Walk("/") {
		if e.Path == "/" {
			continue
		}
		file := e
		if e.Type == image.TypeLink { // has the owner, mode and attributes of its file
			file = inodes[e.Link]
		}
		line := fmt.Sprintf("%04o %d:%d", file.Mode, file.UID, file.GID)
		switch e.Type {
		case image.TypeFile, image.TypeLink:
			if names[file.Path] == "" {
				names[file.Path] = e.Path
			}
			line += fmt.Sprintf(" file %d %s as %s", e.Size, e.Digest, names[file.Path])
		case image.TypeSymlink:
			line = fmt.Sprintf("%d:%d symlink %s", e.UID, e.GID, e.Link)
		case image.TypeChar, image.TypeBlock:
			line += fmt.Sprintf(" %s %d,%d", e.Type, e.Device.Major, e.Device.Minor)
		default:
			line += " " + string(e.Type)
		}
		for _, k := range slices.Sorted(maps.Keys(file.Xattrs)) {
			line += fmt.Sprintf(" %s=%q", k, file.Xattrs[k])
		}
		out[e.Path] = line
	}
	return out
}

// nasty is an image with what archives can hold: its lower layers are made by GNU tar of files on disk, one for each form of
// sparse files, its upper ones take away and replace.
func nasty(t *testing.T) v1.Image {
	t.Helper()
	program := need.Program(t, "tar")
	dir := t.TempDir()
	in := func(p string) string { return filepath.Join(dir, p) }
	for _, d := range []string{"etc", "usr/bin", "data/deep", strings.Repeat("long/", 60), "gone/deep", "opaque/sub", "becomes-file"} {
		must(os.MkdirAll(in(d), 0o755))
	}
	write := func(p, content string, mode uint32) {
		must(os.WriteFile(in(p), []byte(content), 0o600))
		must(os.Chown(in(p), 1000, 1001))
		must(unix.Chmod(in(p), mode))
	}
	write("etc/a.conf", "a = b\n", 0o640)
	write("usr/bin/setuid", "#!/bin/sh\n", 0o6755)
	write("data/a name with spaces\nand a line", "x", 0o644)
	write("data/ünïcödé", "y", 0o644)
	write(strings.Repeat("long/", 60)+strings.Repeat("n", 200), "z", 0o600)
	write("data/with-attributes", "w", 0o644)
	must(unix.Setxattr(in("data/with-attributes"), "user.note", []byte("a\nb=c\xff"), 0))
	must(unix.Setxattr(in("data/with-attributes"), "security.capability", []byte("\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 0))
	must(os.Link(in("data/with-attributes"), in("data/b-link")))
	must(os.Link(in("etc/a.conf"), in("data/deep/config")))
	must(os.Link(in("etc/a.conf"), in("usr/bin/config")))
	must(os.Symlink("../../etc/a.conf", in("data/deep/up")))
	must(os.Symlink("/nowhere", in("dangling")))
	must(unix.Mkfifo(in("data/pipe"), 0o620))
	must(unix.Mknod(in("data/device"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	must(unix.Mknod(in("data/block"), unix.S_IFBLK|0o660, int(unix.Mkdev(259, 300))))
	for _, p := range []string{"gone/x", "gone/deep/y", "opaque/x", "opaque/sub/y", "becomes-file/x", "becomes-dir", "loses-its-name"} {
		write(p, p, 0o644)
	}
	must(os.Link(in("loses-its-name"), in("keeps-it")))
	must(os.Link(in("loses-its-name"), in("keeps-it-too")))
	var layers []v1.Layer
	pack := func(args ...string) {
		raw, err := exec.CommandContext(t.Context(), program, append(args, "-C", dir, "--xattrs", "--xattrs-include=*", "--numeric-owner", "-c", ".")...).Output()
		if err != nil {
			t.Fatal(err)
		}
		layers = append(layers, plainLayer(raw))
	}
	pack("--format=posix")
	must(os.RemoveAll(dir))
	for i, format := range []string{"gnu", "posix --sparse-version=0.0", "posix --sparse-version=0.1", "posix --sparse-version=1.0"} {
		must(os.MkdirAll(in("sparse"), 0o755))
		for name, chunks := range map[string][]int64{"begin": {0}, "end": {1 << 20}, "many": {4096, 65536, 200_000, 300_000, 500_000, 700_000, 900_000, 950_000}, "none": nil} {
			f, err := os.Create(in(fmt.Sprintf("sparse/%s-%d", name, i)))
			must(err)
			for _, at := range chunks {
				must2(f.WriteAt([]byte(fmt.Sprintf("%s at %d", name, at)), at))
			}
			must(f.Truncate(1<<20 + 4096))
			must(f.Close())
		}
		pack(append([]string{"--sparse"}, strings.Fields("--format="+format)...)...)
		must(os.RemoveAll(dir))
	}
	whiteout := func(name string) item { return regular(name, "") }
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: "amd64", RootFS: v1.RootFS{Type: "layers"}})
	must(err)
	img, err = mutate.AppendLayers(img, append(layers,
		plainLayer(archive(whiteout(".wh.gone"), whiteout("opaque/.wh..wh..opq"), directory("opaque"), regular("opaque/new", "n"),
			regular("becomes-file", "f"), directory("becomes-dir"), regular("becomes-dir/in", "i"), whiteout(".wh.loses-its-name"))),
		plainLayer(archive(directory("gone"), regular("gone/back", "b"), regular("twice", "1"), regular("twice", "2"),
			linked(tar.TypeLink, "usr/bin/again", "twice"), pax("attributed", "SCHILY.xattr.user.x", "y"))),
	)...)
	must(err)
	return img
}

// TestAgreesWithUmoci unpacks images with umoci and compares what lies on the disk, entry by entry.
func TestAgreesWithUmoci(t *testing.T) {
	needRoot(t)
	program := need.Program(t, "umoci")
	base := filepath.Join(t.TempDir(), "base")
	if _, err := standin.Write(t.Context(), base, standin.Options{Line: "B", Platforms: []string{"linux/amd64"}}); err != nil {
		t.Fatal(err)
	}
	for name, img := range map[string]v1.Image{"stand-in": ocitest.Layout(t, base)["linux/amd64"], "nasty": nasty(t)} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			l, err := layout.Write(dir, empty.Index)
			must(err)
			img := mutate.ConfigMediaType(mutate.MediaType(img, types.OCIManifestSchema1), types.OCIConfigJSON)
			must(l.AppendImage(img, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": "x"})))
			bundle := filepath.Join(t.TempDir(), "bundle")
			if out, err := exec.CommandContext(t.Context(), program, "unpack", "--image", dir+":x", bundle).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			im, err := tree.Cache{}.Open(t.Context(), img, tree.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := ocitest.Diff(onDisk(t, filepath.Join(bundle, "rootfs")), inTree(im.Tree)); diff != "" {
				t.Errorf("want what umoci unpacks:\n%s", diff)
			}
		})
	}
}

// TestAgreesWithTar extracts with GNU tar the layers that it made: it reads sparse files by code of its own.
func TestAgreesWithTar(t *testing.T) {
	needRoot(t)
	program := need.Program(t, "tar")
	layers, err := nasty(t).Layers()
	must(err)
	for i, l := range layers[:5] {
		dir := t.TempDir()
		r, err := l.Uncompressed()
		must(err)
		extract := exec.CommandContext(t.Context(), program, "-C", dir, "--xattrs", "--xattrs-include=*", "--same-owner", "--numeric-owner", "-xp")
		extract.Stdin = r
		if out, err := extract.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if diff := ocitest.Diff(onDisk(t, dir), inTree(treeOf(t, l))); diff != "" {
			t.Errorf("layer %d: want what tar extracts:\n%s", i, diff)
		}
	}
}

// TestAgreesWithKernel lays the image's layers over one another by overlayfs, as slimctl runs them: the same images, and random
// ones. What one of both refuses is not compared.
func TestAgreesWithKernel(t *testing.T) {
	needRoot(t)
	compare := func(img v1.Image) bool {
		t.Helper()
		im, err := tree.Cache{}.Open(t.Context(), img, tree.Options{})
		if err != nil {
			return false
		}
		layers, err := rootfs.Cache{Dir: t.TempDir()}.Layers(t.Context(), img, image.NoProgress)
		if err != nil {
			return false
		}
		scratch := t.TempDir()
		defer func() { _ = unix.Unmount(filepath.Join(scratch, "rootfs"), unix.MNT_DETACH) }()
		dir, err := rootfs.Mount(layers, scratch)
		if err != nil {
			need.Missing(t, "no overlayfs: %v", err)
		}
		if diff := ocitest.Diff(onDisk(t, dir), inTree(im.Tree)); diff != "" {
			t.Errorf("want what the kernel shows:\n%s", diff)
			return false
		}
		return true
	}
	if !compare(nasty(t)) {
		t.Error("the nasty image was not compared")
	}
	random := rand.New(rand.NewPCG(1, 2))
	same := 0
	for range 150 {
		b := make([]byte, 20+random.IntN(60))
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		var layers []v1.Layer
		items := layersOf(b)
		for _, l := range items {
			var named []item
			for _, i := range l {
				if path.Base(i.Name) == ".wh..wh..opq" { // the runner wants it so: it takes the mode of such a directory from the layer
					named = append(named, directory(path.Dir(i.Name)))
				}
				named = append(named, i)
			}
			layers = append(layers, plainLayer(archive(named...)))
		}
		if compare(newImage(t, layers...)) {
			same++
		}
		if t.Failed() {
			t.Fatalf("%v", items)
		}
	}
	if same < 20 {
		t.Errorf("only %d random images were compared", same)
	}
}
