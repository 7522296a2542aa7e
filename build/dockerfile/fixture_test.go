package dockerfile

import (
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/image"
)

var epoch = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

var amd64, arm64 = v1.Platform{OS: "linux", Architecture: "amd64"}, v1.Platform{OS: "linux", Architecture: "arm64"}

// owned gives f another owner and mode.
func owned(f image.File, mode int64, uid, gid int) image.File {
	f.Mode, f.UID, f.GID = mode, uid, gid
	return f
}

// baseDirs are the directories of the base with what a layer that is added must not change.
func baseDirs() map[string]image.Entry {
	out := map[string]image.Entry{}
	for _, f := range []image.File{
		image.Dir("/dev", 0o755), image.Dir("/proc", 0o555), image.Dir("/sys", 0o555), // mount points of every RUN
		image.Dir("/bin", 0o755), image.Dir("/etc", 0o755), image.Dir("/root", 0o700), image.Dir("/tmp", 0o1777),
		image.Dir("/srv", 0o755), owned(image.Dir("/srv/app", 0), 0o750, 1000, 1000),
		owned(image.Dir("/srv/app/keep", 0), 0o2770, 1000, 2000), image.Dir("/usr", 0o755), image.Dir("/usr/lib", 0o755),
		image.Dir("/var", 0o755), image.Dir("/opt", 0o711), image.Dir("/opt/gone", 0o755),
	} {
		f.ModTime = epoch.Add(-time.Hour)
		out[f.Path] = f.Entry
	}
	return out
}

// newBase makes the base for one platform; rm is the program that RUN executes.
func newBase(t testing.TB, p v1.Platform, rm []byte, config v1.Config) v1.Image {
	t.Helper()
	files := []image.File{
		image.Bytes("/bin/rm", 0o755, rm),
		image.Bytes("/etc/passwd", 0o644, []byte("root:x:0:0::/root:/bin/sh\ngem:x:1000:1000::/srv/app:/bin/sh\n")),
		owned(image.Bytes("/srv/app/a", 0o644, []byte("a")), 0o640, 1000, 1000),
		owned(image.Bytes("/srv/app/keep/b", 0o644, []byte("b")), 0o640, 1000, 1000),
		image.Bytes("/tmp/x", 0o600, []byte("x")),
		image.Bytes("/opt/gone/deep", 0o644, []byte("gone")),
		image.Bytes("/opt/it's $HOME [x]*.txt", 0o644, []byte("gone too")),
		image.Bytes("/opt/-rf", 0o644, []byte("gone too")),
		image.Bytes("/opt/new\nline \\\"", 0o644, []byte("gone too")),
		image.Bytes("/opt/x.txt", 0o644, []byte("a glob would take it")),
		image.Bytes("/etc/both", 0o644, []byte("the base's")),
		image.Symlink("/etc/link", "passwd"),
		image.Bytes("/opt/dir-to-file/x", 0o644, []byte("below what becomes a file")),
		image.Symlink("/lib", "usr/lib"),
		image.Symlink("/var/run", "/run"),
		image.Bytes("/usr/lib/libx", 0o644, []byte("lib")),
	}
	for _, d := range baseDirs() {
		files = append(files, image.File{Entry: d})
	}
	layer, err := image.NewLayer(files)
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	img, err = mutate.ConfigFile(img, withConfig(t, img, p, config))
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func withConfig(t testing.TB, img v1.Image, p v1.Platform, config v1.Config) *v1.ConfigFile {
	t.Helper()
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Variant, file.Config = p.OS, p.Architecture, p.Variant, config
	file.Created = v1.Time{Time: epoch.Add(-time.Hour)}
	return file
}

var baseConfig = v1.Config{
	Env:          []string{"PATH=/usr/bin:/bin", "KEEP=1", "CHANGE=old"},
	Labels:       map[string]string{"from": "base"},
	User:         "gem",
	WorkingDir:   "/srv/app",
	ExposedPorts: map[string]struct{}{"8080/tcp": {}},
	Entrypoint:   []string{"/old"},
	Cmd:          []string{"--old"},
	Volumes:      map[string]struct{}{"/data": {}},
	StopSignal:   "SIGINT",
}

// capable has cap_net_bind_service as setcap(8) writes it.
var capable = func() image.File {
	f := image.Bytes("/usr/bin/capable", 0o755, []byte("binds port 80"))
	f.Xattrs = map[string]string{"security.capability": "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"}
	return f
}()

// newRecipe is a recipe with everything that is hard for a Dockerfile.
func newRecipe(base build.Base, p v1.Platform) *build.Recipe {
	remove := func(path, why string) build.Remove { return build.Remove{Path: path, Type: image.TypeFile, Why: why} }
	return &build.Recipe{
		Profile: "l0", Platform: p, Base: base, Epoch: epoch, Dirs: baseDirs(),
		Removals: []build.Remove{
			remove("/srv/app/a", "nothing may remain of app"),
			remove("/tmp/x", "left over"),
			remove("/opt/gone", "nothing may remain of app"),
			remove("/opt/it's $HOME [x]*.txt", "a hard name"),
			remove("/opt/-rf", "a hard name"),
			remove("/opt/new\nline \\\"", "a hard name\nRUN [\"/bin/evil\"]"),
		},
		Overlays: []build.Lay{
			{Name: "payload", Why: "the runtime", Files: []image.File{
				image.Dir("/usr/lib/agent", 0o755),
				image.Bytes("/usr/lib/agent/bin", 0o755, []byte("program for "+p.Architecture)),
				image.Bytes("/usr/lib/agent/readme", 0o644, []byte("the same for all")),
				image.Symlink("/usr/lib/agent/link", "readme"),
				image.Symlink("/bin/agent", "/usr/lib/agent/bin"),
				image.Symlink("/bin/passwd-link", "/etc/passwd"),
				image.Bytes("/usr/lib/agent/implied/file", 0o644, []byte("in a directory that nobody named")),
				image.Bytes("/usr/lib/agent/-rf $HOME [a]*?'\" \\ <<EOF é", 0o644, []byte("hard name")),
				image.Bytes("/usr/lib/agent/empty", 0o644, nil),
			}},
			{Name: "Confs & more", Why: "ours", Files: []image.File{
				image.Bytes("/etc/both", 0o600, []byte("ours")),
				image.Bytes("/etc/link", 0o644, []byte("no symlink any more")),
				image.Bytes("/opt/dir-to-file", 0o644, []byte("no directory any more")),
				image.Bytes("/opt/gone/again", 0o644, []byte("laid where a directory was removed")),
				image.Bytes("/srv/app/a", 0o644, []byte("laid where a file was removed")),
				{Entry: image.Entry{Path: "/run/fifo", Type: image.TypeFifo, Mode: 0o620}},
				capable,
				owned(image.Bytes("/srv/app/keep/mine", 0, []byte("mine")), 0o440, 1000, 2000),
				owned(image.Symlink("/srv/app/keep/sym", "../nowhere"), 0o777, 1000, 1000),
				owned(image.Dir("/srv/app/new", 0), 0o1770, 1000, 1000),
				image.Bytes("/root/.secret/policy", 0o600, []byte("{}")),
				image.Bytes("/tmp/ours", 0o644, []byte("t")),
				image.Bytes("/bin/su", 0o4755, []byte("setuid")),
				image.Bytes("/bin/first", 0o755, []byte("two names")),
				{Entry: image.Entry{Path: "/bin/second", Type: image.TypeLink, Link: "/bin/first", Mode: 0o755}},
			}},
		},
		Change: build.ConfigChange{
			Env: map[string]string{
				"CHANGE": "new", "DOLLAR": `$HOME ${PATH} \$x $$`, "QUOTES": `a "b" 'c' \ \\ d\`, "SPACES": "  two  spaces ",
				"HASH": "# no comment", "EMPTY": "", "TAB": "a\tb", "HEREDOC": "<<EOF", "BACKTICK": "`id` $(id)",
			},
			Labels: map[string]string{
				"org.example.$x \"y\"": `$HOME "q" \`, "from": "slimctl", "empty": "",
			},
			WorkingDir: "/srv/app/keep", User: "1000:1000", ExposedPorts: []string{"8080/tcp", "53/udp"},
			Entrypoint: []string{"/bin/agent", "$HOME", `a "b" \`, "new\nline"},
			Cmd:        []string{"run", "<<EOF"},
			Healthcheck: &v1.HealthConfig{
				Test:     []string{"CMD", "/bin/agent", "health $HOME", `"`},
				Interval: 90 * time.Second, Timeout: 1500 * time.Millisecond, StartPeriod: time.Minute, Retries: 3,
			},
		},
	}
}

// testBase is a base that no registry has, for tests that only render.
func testBase(t testing.TB, p v1.Platform, config v1.Config) build.Base {
	t.Helper()
	return build.Base{
		Reference: "registry.test/aio/sandbox:1.0", Line: "B", Image: newBase(t, p, []byte("rm"), config),
		Index: v1.Hash{Algorithm: "sha256", Hex: "1111111111111111111111111111111111111111111111111111111111111111"},
	}
}
