package verify_test

import (
	"slices"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/expect"
	"github.com/slimctl/slimctl/inspect/mcp"
	"github.com/slimctl/slimctl/inspect/nginx"
	"github.com/slimctl/slimctl/inspect/packages"
	"github.com/slimctl/slimctl/inspect/privilege"
	"github.com/slimctl/slimctl/inspect/start"
	"github.com/slimctl/slimctl/inspect/supervisord"
	"github.com/slimctl/slimctl/inspect/verify"
)

// fixture is a small closed image with its expectations. Its surface is written by hand: a test changes what it is about.
type fixture struct {
	base, laid []image.File
	above      [][]image.File // layers on top of both
	config     v1.ConfigFile
	surface    inspect.Surface
	want       expect.Expect
	// annotations are those of the manifest.
	annotations map[string]string
	// prepare is told of the opened image, and of the one that it is compared with, last of all.
	prepare func(img, made *inspect.Image)
	// sameTree accepts other layers.
	sameTree bool
	// fromDocker has the image kept by Docker.
	fromDocker bool
}

const (
	conf       = "/opt/gem/supervisord.conf"
	nginxConf  = "/opt/gem/nginx.conf"
	hubConf    = "/opt/gem/mcp-hub.json"
	shell      = "/usr/local/bin/browser-shell"
	baseDigest = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

// program is the beginning of an ELF file: 0x3e is amd64, 0xb7 arm64.
func program(machine byte) []byte {
	return append([]byte{0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, machine, 0}, make([]byte, 44)...)
}

func text(p, s string) image.File { return image.Bytes(p, 0o644, []byte(s)) }

func owned(f image.File, uid, gid int) image.File {
	f.UID, f.GID = uid, gid
	return f
}

func withMode(f image.File, mode int64) image.File {
	f.Mode = mode
	return f
}

// good is a fixture that nothing is found in.
func good() *fixture {
	place := func(p string, line int) tree.Place { return tree.Place{Path: p, Line: line} }
	f := &fixture{
		base: []image.File{
			image.Dir("/opt", 0o755), image.Dir("/opt/gem", 0o755), image.Dir("/opt/novnc", 0o755), image.Dir("/tmp", 0o1777), image.Dir("/usr", 0o755), image.Dir("/usr/bin", 0o755),
			image.Dir("/usr/sbin", 0o755), image.Dir("/usr/local", 0o755), image.Dir("/usr/local/bin", 0o755), image.Dir("/bin", 0o755),
			image.Bytes("/usr/bin/Xvnc", 0o755, program(0x3e)), image.Bytes("/usr/bin/node", 0o755, program(0x3e)), image.Bytes("/usr/sbin/nginx", 0o755, program(0x3e)),
			image.Bytes("/usr/local/bin/browser", 0o755, program(0x3e)), text("/opt/novnc/index.html", "<html>"),
		},
		laid: []image.File{
			image.Bytes(shell, 0o755, program(0x3e)), image.Bytes("/opt/agent-browser/bin/agent-browser-linux-x64", 0o755, program(0x3e)),
			text("/opt/agent-browser/dist/daemon.js", "daemon"), text("/opt/agent-browser/node_modules/ws/index.js", "ws"),
			image.Symlink("/usr/local/bin/agent-browser", "/opt/agent-browser/bin/agent-browser-linux-x64"),
			text(conf, "[supervisord]"), text(nginxConf, "http {}"), text(hubConf, "{}"), text("/etc/agent-browser/policy.json", "{}"),
			owned(image.Dir("/home/gem", 0o700), 1000, 1000),
		},
	}
	f.config.Config.Entrypoint = []string{shell, "init"}
	f.config.Architecture, f.config.OS = "amd64", "linux"
	gate := nginx.Target{Kind: nginx.Proxy, Value: "http://gate/auth", Addresses: []string{"unix:/run/gate.sock"}}
	f.surface = inspect.Surface{
		Config: inspect.Config{
			Entrypoint: []string{shell, "init"}, WorkingDir: "/", Env: map[string]string{"PATH": "/usr/bin:/bin", "TZ": "Asia/Singapore", "WAIT_PORTS": ""},
			ExposedPorts: []string{"8080/tcp"}, Healthcheck: []string{"CMD", shell, "health"}, Labels: map[string]string{"title": "slim"},
		},
		Start: start.Report{Clean: true, Command: []string{shell, "init"}, Supervisord: conf, Switches: []start.Switch{{Name: "JWT_PUBLIC_KEY", Kind: start.Auth}, {Name: "SANDBOX_API_KEY", Kind: start.Auth}, {Name: "SLIM_ALLOW_ANONYMOUS", Kind: start.Auth}, {Name: "TZ", Kind: start.Other}}},
		Programs: []supervisord.Program{
			{Name: "browser", Kind: "program", Command: "/usr/local/bin/browser --proxy-server=http://127.0.0.1:8118 --proxy-bypass-list=<-loopback>", User: "gem", Autostart: "true", Place: place(conf, 30)},
			{Name: "nginx", Kind: "program", Command: "/usr/sbin/nginx -c %(ENV_SLIM_NGINX_CONF)s", Autostart: "true", Variables: []string{"SLIM_NGINX_CONF"}, Environment: map[string]string{"PATH": "/usr/sbin:/usr/bin"}, Place: place(conf, 40)},
		},
		MCP: mcp.Report{Configs: []mcp.Config{{Path: hubConf, Servers: []mcp.Server{{Name: "browser_shell", Type: "stdio", Command: shell, Args: []string{"mcp"}, Tools: []string{"browser-shell"}, Place: place(hubConf, 3)}}}}},
		Nginx: []nginx.Config{{
			Path: nginxConf, Files: []string{nginxConf},
			Maps: []nginx.Map{{Source: "$request_uri", Variable: "$asked_path", Values: map[string]string{"~^(?<before>[^?]*)": "$before"}, Place: place(nginxConf, 2)}},
			Servers: []nginx.Server{{
				Names: []string{"_"}, Place: place(nginxConf, 5),
				Listen: []nginx.Listen{{Value: "8080", Address: "*", Port: 8080, Default: true, Place: place(nginxConf, 6)}},
				Locations: []nginx.Location{
					{Modifier: "=", Pattern: "/mcp", Auth: "/_auth", Target: nginx.Target{Kind: nginx.Proxy, Value: "http://mcp/mcp", Addresses: []string{"unix:/run/hub.sock"}}, Place: place(nginxConf, 10)},
					{Pattern: "/vnc/", Auth: "/_auth", Target: nginx.Target{Kind: nginx.Static, Value: "/opt/novnc/"}, Place: place(nginxConf, 20), Locations: []nginx.Location{
						{Modifier: "~", Pattern: `^/vnc/[^.].*\.(?:js|css)\z`, Target: nginx.Target{Kind: nginx.Static, Value: "/opt/novnc/"}, Place: place(nginxConf, 22)},
					}},
					{Pattern: "/", Target: nginx.Target{Kind: nginx.Return, Status: 403}, Place: place(nginxConf, 30)},
					{Modifier: "=", Pattern: "/_auth", Internal: true, Target: gate, Place: place(nginxConf, 34)},
				},
			}},
		}},
		Listeners: []inspect.Listener{
			{Address: "*", Port: 8080, By: "nginx", Place: place(nginxConf, 6)}, {Address: "127.0.0.1", Port: 9222, Loopback: true, By: "browser", Place: place(conf, 31)},
		},
		Privilege: privilege.Report{
			Users:  []privilege.User{{Name: "root", Shell: "/usr/sbin/nologin", Password: "locked", Place: place("/etc/passwd", 1)}, {Name: "gem", UID: 1000, GID: 1000, Shell: "/usr/sbin/nologin", Password: "locked"}},
			Groups: []privilege.Group{{Name: "root"}, {Name: "sudo", GID: 27}, {Name: "gem", GID: 1000}},
		},
	}
	f.surface.Supervisord = &supervisord.Config{Path: conf, Files: []string{conf}, Programs: f.surface.Programs, Sockets: []supervisord.Socket{{Address: "/run/supervisor/sock", Mode: "0700", Place: place(conf, 8)}}}
	f.want = expect.Expect{
		Profile: "l0", Platform: "linux/amd64",
		Programs: []string{"browser", "nginx"}, Routes: []string{"/mcp", "/vnc/"}, MCPServers: []string{"browser_shell"}, Tools: []string{"browser-shell"},
		Listeners: []string{"*:8080", "127.0.0.1:9222"}, Upstreams: []string{"unix:/run/hub.sock", "unix:/run/gate.sock"}, Switches: []string{"SANDBOX_API_KEY", "JWT_PUBLIC_KEY", "SLIM_ALLOW_ANONYMOUS", "TZ"},
		Env:     map[string]string{"PATH": "/usr/bin:/bin", "WAIT_PORTS": ""},
		Removed: map[string]string{"/opt/gem/run.sh": "l0.yaml:2:2"}, Laid: map[string]string{},
	}
	for _, laid := range f.laid {
		f.want.Laid[laid.Path] = "l0.yaml:3:3"
	}
	f.annotations = map[string]string{"org.opencontainers.image.base.digest": baseDigest, "org.opencontainers.image.base.name": "example.org/base:1"}
	return f
}

func layerOf(t testing.TB, files []image.File) v1.Layer {
	t.Helper()
	slices.SortFunc(files, func(a, b image.File) int { return cmpPath(a.Path, b.Path) })
	l, err := image.NewLayer(files)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func cmpPath(a, b string) int {
	if a < b {
		return -1
	}
	return 1
}

// image makes the image.
func (f *fixture) image(t testing.TB) v1.Image {
	t.Helper()
	layers := []v1.Layer{layerOf(t, f.base), layerOf(t, f.laid)}
	for _, files := range f.above {
		layers = append(layers, layerOf(t, files))
	}
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		t.Fatal(err)
	}
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config := f.config
	config.RootFS = c.RootFS
	if img, err = mutate.ConfigFile(img, &config); err != nil {
		t.Fatal(err)
	}
	img = mutate.ConfigMediaType(mutate.MediaType(img, types.OCIManifestSchema1), types.OCIConfigJSON)
	return mutate.Annotations(img, f.annotations).(v1.Image)
}

func (f *fixture) open(t testing.TB) *inspect.Image {
	t.Helper()
	img := f.image(t)
	manifest, err := img.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := img.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	files, err := tree.Cache{}.Open(t.Context(), img, tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	db, err := packages.Read(t.Context(), files)
	if err != nil {
		t.Fatal(err)
	}
	surface := f.surface
	return &inspect.Image{
		RawConfig: raw, RawManifest: manifest,
		Reference: "example.org/slim:1", Platform: v1.Platform{OS: f.config.OS, Architecture: f.config.Architecture}, Annotations: f.annotations,
		Files: files, Packages: db, Surface: &surface,
	}
}

// input makes what Check takes. The image is compared with the good one.
func (f *fixture) input(t testing.TB) verify.Input {
	t.Helper()
	read, made := f.open(t), good().of(f.config.Architecture).open(t)
	if f.want.Base == nil {
		f.want.Base = []string{read.Files.Layers[0].DiffID.String()}
	}
	if f.prepare != nil {
		f.prepare(read, made)
	}
	name := "linux/" + read.Platform.Architecture
	return verify.Input{
		Images: []*inspect.Image{read}, Expect: map[string]*expect.Expect{name: &f.want}, FromDocker: f.fromDocker,
		Want: &verify.Want{Images: map[string]*inspect.Image{name: made}, SameTree: f.sameTree},
	}
}

// of is the fixture for another architecture.
func (f *fixture) of(architecture string) *fixture {
	f.config.Architecture = architecture
	return f
}

func check(t testing.TB, in verify.Input) *verify.Report {
	t.Helper()
	r, err := verify.Check(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// ruleIDs are those that something was found by.
func ruleIDs(r *verify.Report) []string {
	var out []string
	for _, f := range r.Findings {
		if !slices.Contains(out, f.Rule) {
			out = append(out, f.Rule)
		}
	}
	return out
}
