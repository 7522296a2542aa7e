package privilege

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/internal/need"
)

// capData is a struct vfs_cap_data of linux/capability.h.
// capabilityXattr holds a file's capabilities.
const capabilityXattr = "security.capability"

func capData(magic uint32, permitted, inheritable uint64, rootID ...uint32) string {
	b := binary.LittleEndian.AppendUint32(nil, magic)
	for i := range 2 {
		b = binary.LittleEndian.AppendUint32(b, uint32(permitted>>(32*i)))
		b = binary.LittleEndian.AppendUint32(b, uint32(inheritable>>(32*i)))
	}
	for _, id := range rootID {
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	return string(b)
}

// TestCapabilitiesAsGetcap has what getcap 2.66 printed on Linux 6.18.
func TestCapabilitiesAsGetcap(t *testing.T) {
	const all = 1<<41 - 1
	for _, c := range []struct{ raw, want string }{
		{capData(2<<24|1, 1<<13, 0), "cap_net_raw=ep"},
		{capData(2<<24, 1<<13, 0), "cap_net_raw=p"},
		{capData(2<<24, 0, 1<<13), "cap_net_raw=i"},
		{capData(2<<24|1, 1|1<<13, 1<<13), "cap_net_raw=eip cap_chown+ep"},
		{capData(2<<24, 1|1<<13, 1|1<<5), "cap_chown=ip cap_kill+i cap_net_raw+p"},
		{capData(2<<24|1, all, 0), "=ep"},
		{capData(2<<24|1, all&^1, 0), "=ep cap_chown-ep"},
		{capData(2<<24, all&^(1<<5), all&^1), "=ip cap_kill-p cap_chown-i"},
		{capData(2<<24, all, 1), "=p cap_chown+i"},
		{capData(2<<24|1, 1<<50|1, 0), "cap_chown=ep 50+ep"},
		{capData(2<<24|1, 1<<42-1, 0), "=ep 41+ep"},
		{capData(2<<24, 0, 0), "="},
		{capData(3<<24|1, 1<<13, 0, 1000), "cap_net_raw=ep [rootid=1000]"},
		{capData(1<<24|1, 1<<13, 0)[:12], "cap_net_raw=ep"},
	} {
		if got, err := capabilities(c.raw); err != nil || got != c.want {
			t.Errorf("%x: %q, %v; want %q", c.raw, got, err, c.want)
		}
	}
	for _, raw := range []string{"", "\x00\x00\x02", capData(4<<24, 1, 1), capData(2<<24, 1, 1) + "x", capData(3<<24, 1, 1), capData(1<<24, 1, 1)} {
		if got, err := capabilities(raw); err == nil {
			t.Errorf("%x is %q", raw, got)
		}
	}
}

// TestCapabilitiesAgreeWithLibcap asks setcap and getcap on a real file.
func TestCapabilitiesAgreeWithLibcap(t *testing.T) {
	setcap, getcap := need.Program(t, "setcap"), need.Program(t, "getcap")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(setcap, "cap_net_raw=ep", file).CombinedOutput(); err != nil {
		need.Missing(t, "no right to give capabilities: %s", out)
	}
	sets := []string{"=ep", "all=p cap_chown-p", "cap_sys_admin,cap_bpf=eip", "cap_kill=ip cap_setuid+p"}
	for n := range capNames {
		sets = append(sets, fmt.Sprintf("cap_%s=ep", capNames[n]))
	}
	for _, set := range sets {
		if out, err := exec.Command(setcap, set, file).CombinedOutput(); err != nil {
			t.Fatalf("setcap %s: %v: %s", set, err, out)
		}
		raw := make([]byte, 64)
		n, err := syscall.Getxattr(file, capabilityXattr, raw)
		if err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(getcap, file).Output()
		if err != nil {
			t.Fatal(err)
		}
		want := strings.TrimSpace(strings.TrimPrefix(string(out), file))
		if got, err := capabilities(string(raw[:n])); err != nil || got != want {
			t.Errorf("%s: %q, %v; getcap says %q", set, got, err, want)
		}
	}
}

func withMode(f image.File, mode int64) image.File {
	f.Mode = mode
	return f
}

func TestRights(t *testing.T) {
	ping := image.Bytes("/bin/ping", 0o755, nil)
	ping.Xattrs = image.Xattrs{capabilityXattr: capData(2<<24|1, 1<<13, 0)}
	broken := image.Bytes("/bin/strange", 0o4755, nil)
	broken.Xattrs = image.Xattrs{capabilityXattr: "?"}
	img, err := tree.FromFiles(t.Context(), nil,
		ping, broken,
		image.Bytes("/bin/su", 0o4755, nil), image.Bytes("/bin/wall", 0o2755, nil), image.Bytes("/bin/both", 0o6757, nil),
		image.Bytes("/bin/plain", 0o755, nil),
		image.File{Entry: image.Entry{Path: "/bin/su-too", Type: image.TypeLink, Mode: 0o755, Link: "/bin/su"}},
		image.File{Entry: image.Entry{Path: "/bin/zz-ping", Type: image.TypeLink, Mode: 0o755, Link: "/bin/ping"}},
		image.Symlink("/link", "/bin/su"), image.Symlink("/wide-link", "/nowhere"),
		image.Dir("/tmp", 0o1777), image.Dir("/shared", 0o777), image.Dir("/var/mail", 0o2775),
		withMode(image.Bytes("/etc/shadow", 0, nil), 0o666),
		image.File{Entry: image.Entry{Path: "/dev/loop0", Type: image.TypeBlock, Mode: 0o666}},
		image.File{Entry: image.Entry{Path: "/dev/sda", Type: image.TypeBlock, Mode: 0o600}},
	)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Read(t.Context(), img)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range r.Files {
		got[f.Entry.Path] = strings.TrimSpace(strings.Join(f.Kinds, " ") + " " + f.Capabilities)
		if f.Place.Path != f.Entry.Path || f.Place.Layer == "" {
			t.Errorf("%s is at %+v", f.Entry.Path, f.Place)
		}
	}
	want := map[string]string{
		"/bin/ping": "capability cap_net_raw=ep", "/bin/zz-ping": "capability cap_net_raw=ep", "/bin/strange": "capability setuid ?",
		"/bin/su": "setuid", "/bin/su-too": "setuid", "/bin/wall": "setgid",
		"/bin/both": "setgid setuid world-writable", "/shared": "world-writable", "/etc/shadow": "world-writable",
		"/dev/loop0": "device world-writable", "/dev/sda": "device",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(r.Notes) != 1 || r.Notes[0].Place.Path != "/bin/strange" {
		t.Errorf("notes are %v", r.Notes)
	}
}

func TestRightsAreBounded(t *testing.T) {
	var files []image.Entry
	for i := range maxFiles + 10 {
		files = append(files, image.Entry{Path: fmt.Sprintf("/x/%06d", i), Type: image.TypeFile, Mode: 0o4755})
	}
	files = append(files, image.Entry{Path: "/etc/passwd", Type: image.TypeDir})
	merged, err := tree.Of(files...)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Read(t.Context(), &tree.Image{Tree: merged})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Files) != maxFiles || len(r.Notes) != 2 {
		t.Errorf("%d files, notes %v", len(r.Files), r.Notes)
	}
}
