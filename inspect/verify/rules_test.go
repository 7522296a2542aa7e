package verify_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/mcp"
	"github.com/slimctl/slimctl/inspect/nginx"
	"github.com/slimctl/slimctl/inspect/privilege"
	"github.com/slimctl/slimctl/inspect/start"
	"github.com/slimctl/slimctl/inspect/supervisord"
	"github.com/slimctl/slimctl/inspect/verify"
)

func (f *fixture) server() *nginx.Server { return &f.surface.Nginx[0].Servers[0] }

func (f *fixture) addLocation(l nginx.Location) {
	l.Place = tree.Place{Path: nginxConf, Line: 50}
	f.server().Locations = append(f.server().Locations, l)
}

func (f *fixture) addServer(names []string, listen nginx.Listen, locations ...nginx.Location) {
	f.surface.Nginx[0].Servers = append(f.surface.Nginx[0].Servers, nginx.Server{Names: names, Listen: []nginx.Listen{listen}, Locations: locations, Place: tree.Place{Path: nginxConf, Line: 60}})
}

func (f *fixture) addProgram(p supervisord.Program) {
	if p.Kind == "" {
		p.Kind = "program"
	}
	p.Place = tree.Place{Path: conf, Line: 70}
	f.surface.Programs = append(f.surface.Programs, p)
}

func (f *fixture) addServerMCP(s mcp.Server) {
	s.Place = tree.Place{Path: hubConf, Line: 9}
	f.surface.MCP.Configs[0].Servers = append(f.surface.MCP.Configs[0].Servers, s)
}

func (f *fixture) addUser(u privilege.User) {
	f.surface.Privilege.Users = append(f.surface.Privilege.Users, u)
}

func (f *fixture) addAbove(files ...image.File) { f.above = append(f.above, files) }

func (f *fixture) privileged(p string, mode int64, kind string) {
	f.surface.Privilege.Files = append(f.surface.Privilege.Files, privilege.File{Kinds: []string{kind}, Entry: tree.Entry{Entry: image.Entry{Path: p, Type: image.TypeFile, Mode: mode}}, Place: tree.Place{Path: p}})
}

// python adds supervisord as a script for a Python of Debian's package, with or without its library.
func (f *fixture) python(library bool) {
	dirs := strings.Fields("/usr/lib /usr/lib/python3.11 /var /var/lib /var/lib/dpkg /var/lib/dpkg/info")
	for _, dir := range dirs {
		f.base = append(f.base, image.Dir(dir, 0o755))
	}
	f.base = append(f.base, image.Bytes("/usr/bin/supervisord", 0o755, []byte("#!/usr/bin/python3\n")), image.Symlink("/usr/bin/python3", "python3.11"),
		image.Bytes("/usr/bin/python3.11", 0o755, program(0x3e)), text("/var/lib/dpkg/status", "Package: libpython3.11-minimal\nStatus: install ok installed\nVersion: 1\nArchitecture: amd64\n\n"),
		text("/var/lib/dpkg/info/libpython3.11-minimal.list", "/.\n/usr/lib/python3.11/os.py\n"))
	if library {
		f.base = append(f.base, text("/usr/lib/python3.11/os.py", ""))
	}
}

// An interpreter with its library is found by nothing.
func TestInterpreterWithLibrary(t *testing.T) {
	f := good()
	f.python(true)
	if r := check(t, f.input(t)); slices.Contains(ruleIDs(r), "interpreter") {
		t.Error(describe(r))
	}
}

var proxied = nginx.Target{Kind: nginx.Proxy, Value: "http://127.0.0.1:8091/", Addresses: []string{"127.0.0.1:8091"}}

// manifest changes the manifest, and nothing else.
func manifest(change func(*v1.Manifest)) func(*fixture) {
	return func(f *fixture) {
		f.prepare = func(img, _ *inspect.Image) { changeManifest(img, change) }
	}
}

func changeManifest(img *inspect.Image, change func(*v1.Manifest)) {
	m, err := v1.ParseManifest(bytes.NewReader(img.RawManifest))
	if err != nil {
		panic(err)
	}
	change(m)
	if img.RawManifest, err = json.Marshal(m); err != nil {
		panic(err)
	}
}

// tree has another layers accepted.
func asTree(breakIt func(*fixture)) func(*fixture) {
	return func(f *fixture) {
		f.sameTree = true
		breakIt(f)
	}
}

func annotated(layer int, key, value string) func(*fixture) {
	return manifest(func(m *v1.Manifest) { m.Layers[layer].Annotations = map[string]string{key: value} })
}

// What means the same with other layers is no difference: the annotations that the base has on its own layers among it.
func TestSameTreePasses(t *testing.T) {
	for name, change := range map[string]func(*fixture){
		"the same":           func(*fixture) {},
		"in two layers":      func(f *fixture) { f.above, f.laid = [][]image.File{f.laid[5:]}, f.laid[:5] },
		"a file twice":       func(f *fixture) { f.addAbove(f.laid[0]) },
		"laid and removed":   func(f *fixture) { f.addAbove(text("/srv", "x")); f.addAbove(image.Whiteout("/srv")) },
		"with other times":   func(f *fixture) { f.laid[5].ModTime = time.Unix(1e9, 0) },
		"a described one":    func(f *fixture) { f.annotations["org.opencontainers.image.title"] = "slim" },
		"BuildKit's seconds": annotated(1, "buildkit/rewritten-timestamp", "1771000000"),
		"Docker's types": manifest(func(m *v1.Manifest) {
			m.MediaType, m.Config.MediaType = types.DockerManifestSchema2, types.DockerConfigJSON
			for i := range m.Layers {
				m.Layers[i].MediaType = types.DockerLayer
			}
		}),
		"pushed by Docker": manifest(func(m *v1.Manifest) {
			m.MediaType, m.Config.MediaType, m.Annotations = types.DockerManifestSchema2, types.DockerConfigJSON, nil
			for i := range m.Layers {
				m.Layers[i].MediaType = types.DockerLayer
			}
		}),
		"kept by Docker": func(f *fixture) { f.annotations, f.fromDocker = nil, true },
		"the base's annotation": func(f *fixture) {
			f.prepare = func(img, made *inspect.Image) {
				for _, i := range []*inspect.Image{img, made} {
					changeManifest(i, func(m *v1.Manifest) {
						m.Layers[0].Annotations = map[string]string{"containerd.io/snapshot/stargz/toc.digest": "sha256:1"}
					})
				}
				img.RawManifest = append(img.RawManifest, ' ')
			}
		},
	} {
		f := good()
		f.sameTree = true
		change(f)
		r := check(t, f.input(t))
		if len(r.Findings) > 0 || !r.Passed || r.Proven == "" {
			t.Errorf("%s: %s", name, describe(r))
		}
		if name == "the same" && r.Proven != verify.ByDigest || name == "a file twice" && r.Proven != verify.ByTree {
			t.Errorf("%s: proven by %q", name, r.Proven)
		}
		f.sameTree = false
		if r = check(t, f.input(t)); name != "the same" && (r.Passed || r.Proven != "" || len(r.Findings) == 0) {
			t.Errorf("%s: passes without --same tree", name)
		}
	}
}

// builtConfig is an image config that a build writes. User and directory are the base's.
const builtConfig = `{"architecture":"amd64","config":{"User":"gem","WorkingDir":"/home/gem","Env":["PATH=/usr/bin:/bin","BASE=1"],` +
	`"Entrypoint":["/usr/local/bin/browser-shell","init"],"ExposedPorts":{"8080/tcp":{}},"Volumes":{"/data":{}},"StopSignal":"SIGTERM",` +
	`"Shell":["/bin/sh","-c"],"Healthcheck":{"Test":["CMD","/usr/local/bin/browser-shell","health"],"Interval":10000000000},` +
	`"Labels":{"maker":"base","org.opencontainers.image.version":"1"}},"created":"2026-05-12T08:00:00Z","os":"linux",` +
	`"rootfs":{"type":"layers","diff_ids":["sha256:1"]},` +
	`"history":[{"created":"2026-05-12T08:00:00Z","created_by":"base"},{"created":"2026-05-12T08:00:00Z","created_by":"ours"}]}`

// built compares builtConfig with one part of it replaced with builtConfig.
func built(old, replacement string) func(*fixture) {
	if !strings.Contains(builtConfig, old) {
		panic(old)
	}
	return func(f *fixture) {
		f.prepare = func(img, made *inspect.Image) {
			made.RawConfig = []byte(builtConfig)
			img.RawConfig = []byte(strings.Replace(builtConfig, old, replacement, 1))
			for _, i := range []*inspect.Image{img, made} {
				changeManifest(i, func(m *v1.Manifest) {
					m.Config.Digest, m.Config.Size, _ = v1.SHA256(bytes.NewReader(i.RawConfig))
				})
			}
		}
	}
}

// What means the same as what a build writes is nothing to tell where other layers are accepted; by its digest it is
// another image.
func TestBuiltConfigPasses(t *testing.T) {
	for _, part := range [][2]string{
		{`"created":"2026-05-12T08:00:00Z"`, `"created":"1970-01-01T00:00:00Z"`},
		{`"sha256:1"`, `"sha256:1","sha256:2"`},
		{`"User"`, `"Cmd":null,"OnBuild":[],"NetworkDisabled":false,"Hostname":"","ArgsEscaped":true,"User"`},
		{`"os"`, `"os.features":[],"os"`},
		{`"PATH=/usr/bin:/bin","BASE=1"`, `"BASE=1","BLANK=","PATH=/usr/bin:/bin"`},
		{`image.version":"1"`, `image.version":"2"`},
		{`"maker"`, `"org.opencontainers.image.title":"slim","maker"`},
		{`"/data":{}`, `"\u002fdata" : {} `},
		{`"created_by":"base"`, `"created_by":"base","comment":"","empty_layer":false`},
		{`"created_by":"ours"`, `"created_by":"COPY"`},
	} {
		f := good()
		built(part[0], part[1])(f)
		if r := check(t, f.input(t)); r.Passed || len(r.Findings) == 0 {
			t.Errorf("%s passes by its digest", part[1])
		}
		f.sameTree = true
		for _, found := range check(t, f.input(t)).Findings {
			t.Errorf("%s: %s: %s", part[1], found.Rule, found.Message)
		}
	}
	f := good()
	built(`"os"`, `"os"`)(f)
	prepare := f.prepare
	f.prepare = func(img, made *inspect.Image) {
		prepare(img, made)
		made.RawConfig = []byte(`{"config":`)
		changeManifest(made, func(m *v1.Manifest) { m.Config.Size++; m.Config.Digest.Hex = strings.Repeat("0", 64) })
	}
	if _, err := verify.Check(t.Context(), f.input(t)); err == nil {
		t.Error("a broken expectation passes")
	}
}

// What looks like a secret isn't in a report, which goes into logs.
func TestBuiltConfigShowsNoSecret(t *testing.T) {
	token := "ghp_" + strings.Repeat("a", 36)
	for _, part := range [][2]string{
		{`"BASE=1"`, `"BASE=1","OPENAI_API_KEY=hunter2"`},
		{`"BASE=1"`, `"BASE=1","X=` + token + `"`},
		{`"BASE=1"`, `"BASE=https://user:hunter2@pypi.example"`},
		{`"maker":"base"`, `"maker":"` + token + `"`},
		{`"created_by":"ours"`, `"created_by":"ENV NPM_TOKEN=hunter2"`},
		{`"created_by":"ours"`, `"created_by":"RUN \"A_TOKEN=hunter2\" x"`},
		{`["/bin/sh","-c"]`, `["/bin/sh","` + token + `"]`},
	} {
		f := good()
		built(part[0], part[1])(f)
		r := check(t, f.input(t))
		if text := describe(r); len(r.Findings) == 0 || strings.Contains(text, "hunter2") || strings.Contains(text, token) {
			t.Errorf("%s:\n%s", part[1], text)
		}
	}
}

// broken are, by rule, images that break it. Each case must be found by its rule, and each rule has a case.
var broken = map[string]map[string]func(*fixture){
	"mcp-server": {
		"a second one": func(f *fixture) { f.addServerMCP(mcp.Server{Name: "evil", Type: "stdio", Command: shell}) },
		"none":         func(f *fixture) { f.surface.MCP.Configs[0].Servers = nil },
		"no file":      func(f *fixture) { f.surface.MCP.Configs = nil },
		"twice":        func(f *fixture) { f.addServerMCP(f.surface.MCP.Configs[0].Servers[0]) },
		"in the template": func(f *fixture) {
			f.surface.MCP.Configs = append(f.surface.MCP.Configs, mcp.Config{Path: hubConf + ".template", Template: true, Servers: []mcp.Server{{Name: "sandbox"}}})
		},
	},
	"mcp-command": {
		"another program": func(f *fixture) { f.surface.MCP.Configs[0].Servers[0].Command = "/usr/local/bin/browser" },
		"by PATH":         func(f *fixture) { f.surface.MCP.Configs[0].Servers[0].Command = "browser-shell" },
		"a shell":         func(f *fixture) { f.surface.MCP.Configs[0].Servers[0].Command = "/bin/sh" },
		"no program":      func(f *fixture) { f.surface.MCP.Configs[0].Servers[0].Command = conf },
		"an URL": func(f *fixture) {
			f.surface.MCP.Configs[0].Servers[0] = mcp.Server{Name: "browser_shell", Type: "streamable-http", URL: "http://evil.example/mcp", Tools: []string{"browser-shell"}}
		},
	},
	"mcp-tool": {
		"another": func(f *fixture) {
			f.surface.MCP.Configs[0].Servers[0].Tools = []string{"browser-shell", "sandbox_execute_bash"}
		},
		"none":      func(f *fixture) { f.surface.MCP.Configs[0].Servers[0].Tools = nil },
		"not known": func(f *fixture) { f.surface.MCP.Configs[0].Servers[0].Unknown = true },
	},
	"program": {
		"another":       func(f *fixture) { f.addProgram(supervisord.Program{Name: "jupyter", Command: "/usr/bin/jupyter"}) },
		"missing":       func(f *fixture) { f.surface.Programs = f.surface.Programs[:1] },
		"twice":         func(f *fixture) { f.addProgram(f.surface.Programs[1]) },
		"eventlistener": func(f *fixture) { f.surface.Programs[0].Kind = "eventlistener" },
	},
	"program-include": {
		"a glob":         func(f *fixture) { f.surface.Supervisord.Includes = []string{"/opt/gem/supervisord/*.conf"} },
		"a file by name": func(f *fixture) { f.surface.Supervisord.Files = []string{conf, "/opt/gem/supervisord/x.conf"} },
	},
	"program-socket": {
		"the group's": func(f *fixture) { f.surface.Supervisord.Sockets[0].Mode = "0770" },
		"everybody's": func(f *fixture) { f.surface.Supervisord.Sockets[0].Mode = "0o777" },
		"gem's":       func(f *fixture) { f.surface.Supervisord.Sockets[0].Owner = "gem:gem" },
	},
	"program-environment": {
		"of the container": func(f *fixture) { f.surface.Programs[0].Variables = []string{"BROWSER_EXTRA_ARGS"} },
	},
	"program-account": {
		"none":          func(f *fixture) { f.surface.Programs[0].User = "" },
		"root":          func(f *fixture) { f.surface.Programs[0].User = "root" },
		"supervisord's": func(f *fixture) { f.surface.Programs[0].User = "%(ENV_SLIM_SUPERVISOR_USER)s" },
	},
	"program-path": {
		"by PATH":    func(f *fixture) { f.surface.Programs[1].Command = "nginx" },
		"by a shell": func(f *fixture) { f.surface.Programs[1].Command = `/bin/bash -c "nginx"` },
		"by env":     func(f *fixture) { f.surface.Programs[1].Command = "/usr/bin/env nginx" },
		"no command": func(f *fixture) { f.surface.Programs[1].Command = "" },
		"gem's": func(f *fixture) {
			f.base = append(f.base, owned(image.Bytes("/opt/mine", 0o755, program(0x3e)), 1000, 1000))
			f.surface.Programs[1].Command = "/opt/mine"
		},
		"in gem's directory": func(f *fixture) { f.surface.Programs[1].Command = "/home/gem/nginx" },
		"gem's, by browser-shell": func(f *fixture) {
			f.surface.Programs[1].Command = `/usr/local/bin/browser-shell start --pidfile /run/nginx/pid /home/gem/nginx -g "daemon off;"`
		},
		"gem's, by browser-shell with a flag's value": func(f *fixture) {
			f.surface.Programs[1].Command = "/usr/local/bin/browser-shell start --display=99 -- /home/gem/nginx"
		},
		"a shell, by browser-shell": func(f *fixture) {
			f.surface.Programs[1].Command = "/usr/local/bin/browser-shell start --display 99 /bin/sh -c nginx"
		},
		"supervisord is gem's": func(f *fixture) {
			f.base = append(f.base, owned(image.Bytes("/usr/bin/supervisord", 0o755, program(0x3e)), 1000, 1000))
		},
		"by gem's link": func(f *fixture) {
			f.base = append(f.base, image.Symlink("/usr/bin/linked", "/home/gem/nginx"))
			f.surface.Programs[1].Command = "/usr/bin/linked"
		},
		"a link that is gem's": func(f *fixture) {
			f.base = append(f.base, image.Symlink("/home/gem/linked", "/usr/sbin/nginx"))
			f.surface.Programs[1].Command = "/home/gem/linked"
		},
		"by a directory's link that is gem's": func(f *fixture) {
			f.base = append(f.base, image.Symlink("/home/gem/sbin", "/usr/sbin"))
			f.surface.Programs[1].Command = "/home/gem/sbin/nginx"
		},
		"a link that is gem's in everybody's directory": func(f *fixture) {
			f.base = append(f.base, image.Dir("/all", 0o1777), owned(image.Symlink("/all/linked", "/usr/sbin/nginx"), 1000, 1000))
			f.surface.Programs[1].Command = "/all/linked"
		},
		"in gem's directory with the sticky bit": func(f *fixture) {
			f.base = append(f.base, owned(image.Dir("/all", 0o1755), 1000, 1000), image.Symlink("/all/linked", "/usr/sbin/nginx"))
			f.surface.Programs[1].Command = "/all/linked"
		},
		"through a link and back": func(f *fixture) {
			f.base = append(f.base, image.Symlink("/usr/bin/linked", "alias/../nginx"), image.Symlink("/usr/bin/alias", "/home/gem/below"),
				image.Dir("/home/gem/below", 0o755), image.Bytes("/usr/bin/nginx", 0o755, program(0x3e)), image.Bytes("/home/gem/nginx", 0o755, program(0x3e)))
			f.surface.Programs[1].Command = "/usr/bin/linked"
		},
		"a library": func(f *fixture) {
			f.base = append(f.base, image.Dir("/usr/lib", 0o755), owned(text("/usr/lib/libx.so.1", ""), 1000, 1000))
		},
		"a directory of libraries": func(f *fixture) { f.base = append(f.base, image.Dir("/usr/local/lib", 0o777)) },
		"a Python module": func(f *fixture) {
			f.base = append(f.base, image.Dir("/usr/lib", 0o755), image.Dir("/usr/lib/python3", 0o755), image.Dir("/usr/lib/python3/dist-packages", 0o755),
				owned(image.Dir("/usr/lib/python3/dist-packages/supervisor", 0o755), 1000, 1000))
		},
		"PATH":          func(f *fixture) { f.surface.Programs[1].Environment["PATH"] = "/home/gem/.local/bin:/usr/bin" },
		"relative PATH": func(f *fixture) { f.surface.Programs[1].Environment["PATH"] = "/usr/bin:" },
	},
	"program-loader": {
		"of an MCP server": func(f *fixture) { f.surface.MCP.Configs[0].Servers[0].Env = []string{"LD_PRELOAD"} },
		"LD_PRELOAD":       func(f *fixture) { f.surface.Programs[1].Environment["LD_PRELOAD"] = "/x.so" },
		"of supervisord":   func(f *fixture) { f.surface.Supervisord.Environment = map[string]string{"PATH": "/tmp"} },
		"PYTHONPATH":       func(f *fixture) { f.surface.Programs[1].Environment["PYTHONPATH"] = "/x" },
	},
	"supervisord": {
		"another file": func(f *fixture) { f.surface.Supervisord.Path = "/etc/supervisor/supervisord.conf" },
		"none":         func(f *fixture) { f.surface.Supervisord = nil },
	},
	"start-script": {
		"one": func(f *fixture) {
			f.surface.Start.Scripts = []start.Script{{Path: "/opt/gem/run.sh", By: "entrypoint"}}
		},
	},
	"start-environment": {
		"the container's": func(f *fixture) { f.surface.Start.Clean = false },
	},
	"switch": {
		"listed in vain": func(f *fixture) { f.want.Switches = append(f.want.Switches, "NOBODY_READS") },
		"another": func(f *fixture) {
			f.surface.Start.Switches = append(f.surface.Start.Switches, start.Switch{Name: "DISABLE_JUPYTER", Kind: start.Program})
		},
	},
	"switch-set": {
		"anonymous":      func(f *fixture) { f.surface.Config.Env["SLIM_ALLOW_ANONYMOUS"] = "true" },
		"somebody's key": func(f *fixture) { f.surface.Config.Env["JWT_PUBLIC_KEY"] = "LS0t" },
		"by the start": func(f *fixture) {
			f.surface.Start.Switches = append(f.surface.Start.Switches, start.Switch{Name: "X_AUTH", Kind: start.Auth, Set: true, Value: "off"})
		},
	},
	"env-loader": {
		"LD_PRELOAD":   func(f *fixture) { f.surface.Config.Env["LD_PRELOAD"] = "/usr/lib/x.so" },
		"NODE_OPTIONS": func(f *fixture) { f.surface.Config.Env["NODE_OPTIONS"] = "--require=/x.js" },
		"a function":   func(f *fixture) { f.surface.Config.Env["BASH_FUNC_ls%%"] = "() { evil; }" },
		"a proxy":      func(f *fixture) { f.surface.Config.Env["https_proxy"] = "http://evil:1" },
	},
	"nginx-longer-location": {
		"a prefix": func(f *fixture) { f.addLocation(nginx.Location{Pattern: "/v1", Auth: "/_auth", Target: proxied}) },
		"an exact one": func(f *fixture) {
			f.addLocation(nginx.Location{Modifier: "=", Pattern: "/v1/ping", Target: nginx.Target{Kind: nginx.Return, Status: 200}})
		},
		"an expression":     func(f *fixture) { f.addLocation(nginx.Location{Modifier: "~", Pattern: "^/actions$", Target: proxied}) },
		"of unknown effect": func(f *fixture) { f.addLocation(nginx.Location{Pattern: "/x"}) },
		"mcp as a prefix":   func(f *fixture) { f.server().Locations[0].Modifier = "" },
		"a named one":       func(f *fixture) { f.addLocation(nginx.Location{Modifier: "@", Pattern: "open", Target: proxied}) },
		"nested": func(f *fixture) {
			f.server().Locations[2].Locations = []nginx.Location{{Pattern: "/x", Target: proxied}}
		},
		"the server itself": func(f *fixture) { f.server().Direct = &nginx.Target{Kind: nginx.Rewrite, Value: "/mcp"} },
		"in some cases": func(f *fixture) {
			f.server().Locations[2].Cases = []nginx.Case{{When: "error_page 418 = @x", Target: nginx.Target{Kind: nginx.Rewrite, Value: "@x"}}}
		},
		"the server in some cases": func(f *fixture) {
			f.server().Cases = []nginx.Case{{When: "if ($arg_x)", Target: nginx.Target{Kind: nginx.Return, Status: 200}}}
		},
		"without a location": func(f *fixture) {
			f.server().Unmatched = &nginx.Location{Target: nginx.Target{Kind: nginx.Static, Value: "/usr/share/nginx/html"}}
		},
		"on loopback": func(f *fixture) {
			f.addServer(nil, nginx.Listen{Value: "127.0.0.1:8081", Address: "127.0.0.1", Port: 8081, Loopback: true}, nginx.Location{Pattern: "/v1", Target: proxied})
		},
	},
	"nginx-route-missing": {
		"refused": func(f *fixture) { f.server().Locations[0].Target = nginx.Target{Kind: nginx.Return, Status: 403} },
		"gone":    func(f *fixture) { f.server().Locations = f.server().Locations[1:] },
		"nginx":   func(f *fixture) { f.surface.Nginx = nil },
		"with one of two files": func(f *fixture) {
			f.surface.Nginx = append(f.surface.Nginx, nginx.Config{Path: nginxConf, Variant: "loopback", Servers: []nginx.Server{{}}})
		},
	},
	"nginx-no-auth": {
		"none":         func(f *fixture) { f.server().Locations[0].Auth = "" },
		"files":        func(f *fixture) { f.server().Locations[1].Auth = "" },
		"an open file": func(f *fixture) { f.server().Locations[1].Locations[0].Pattern = `^/vnc/.*` },
		"an internal one": func(f *fixture) {
			f.addLocation(nginx.Location{Modifier: "=", Pattern: "/inside", Internal: true, Target: proxied})
		},
		"a named one": func(f *fixture) {
			f.addLocation(nginx.Location{Modifier: "@", Pattern: "open", Internal: true, Target: proxied})
		},
	},
	"nginx-gate": {
		"answers itself": func(f *fixture) { f.server().Locations[3].Target = nginx.Target{Kind: nginx.Return, Status: 200} },
		"not there":      func(f *fixture) { f.server().Locations[0].Auth = "/_nobody" },
		"by the request": func(f *fixture) { f.server().Locations[0].Auth = "$http_x_auth" },
		"not internal":   func(f *fixture) { f.server().Locations[3].Internal = false },
		"in some cases": func(f *fixture) {
			f.server().Locations[3].Cases = []nginx.Case{{When: "error_page 401 = /_empty", Target: nginx.Target{Kind: nginx.Return, Status: 200}}}
		},
		"asks once more": func(f *fixture) { f.server().Locations[3].Auth = "/other" },
	},
	"nginx-upstream": {
		"listed in vain": func(f *fixture) { f.want.Upstreams = append(f.want.Upstreams, "127.0.0.1:1") },
		"by the host": func(f *fixture) {
			f.server().Locations[0].Target = nginx.Target{Kind: nginx.Proxy, Value: "http://$host", Chosen: []string{"$host"}}
		},
		"by a header": func(f *fixture) {
			f.addLocation(nginx.Location{Modifier: "@", Pattern: "aio", Target: nginx.Target{Kind: nginx.Proxy, Value: "http://127.0.0.1:$aio_proxy_port", Chosen: []string{"$http_x_aio_proxy_port"}}})
		},
		"by the query": func(f *fixture) { f.server().Locations[0].Target.Chosen = []string{"$arg_port"} },
		"a mystery":    func(f *fixture) { f.server().Locations[0].Target.Chosen = []string{"$mystery"} },
		"another port": func(f *fixture) { f.server().Locations[0].Target.Addresses = []string{"127.0.0.1:8091"} },
		"another host": func(f *fixture) { f.server().Locations[0].Target.Addresses = []string{"evil.example:443"} },
		"another gate": func(f *fixture) { f.server().Locations[3].Target.Addresses = []string{"10.0.0.1:80"} },
		"who knows":    func(f *fixture) { f.server().Locations[0].Target.Addresses = nil },
		"one of several": func(f *fixture) {
			f.server().Locations[0].Target.Addresses = []string{"unix:/run/hub.sock", "unix:/tmp/other.sock"}
		},
	},
	"nginx-static": {
		"everything": func(f *fixture) { f.server().Locations[1].Target.Value = "/" },
		"etc":        func(f *fixture) { f.server().Locations[1].Target.Value = "/etc/" },
		"by a link": func(f *fixture) {
			f.base = append(f.base, image.Symlink("/opt/pages", "/home/gem"))
			f.server().Locations[1].Target.Value = "/opt/pages/"
		},
		"by the request": func(f *fixture) { f.server().Locations[1].Target.Value = "/opt/$arg_dir/" },
	},
	"nginx-does-not-start": {
		"a note": func(f *fixture) {
			f.surface.Notes = []tree.Note{{Place: tree.Place{Path: nginxConf, Line: 7}, Text: `duplicate location "/"`}}
		},
		"no server": func(f *fixture) { f.surface.Nginx[0].Servers = nil },
	},
	"nginx-regex-order": {
		"answers": func(f *fixture) {
			f.addLocation(nginx.Location{Modifier: "~*", Pattern: "^/mcp$", Auth: "/_auth", Target: proxied})
		},
	},
	"nginx-auth-by-request-uri": {
		"by a condition": func(f *fixture) {
			f.server().Locations[0].Cases = []nginx.Case{{When: `if ($request_uri ~ "\.js$")`, Target: f.server().Locations[0].Target}}
		},
	},
	"nginx-stream": {
		"TCP": func(f *fixture) { f.server().Protocol = nginx.Stream },
	},
	"nginx-writable-include": {
		"gem's file": func(f *fixture) {
			f.laid = append(f.laid, owned(text("/opt/gem/nginx-proxy-map.conf", ""), 1000, 1000))
			f.surface.Nginx[0].Files = append(f.surface.Nginx[0].Files, "/opt/gem/nginx-proxy-map.conf")
		},
		"everybody's directory": func(f *fixture) {
			f.base = append(f.base, image.Dir("/opt/conf", 0o777))
			f.surface.Nginx[0].Files = append(f.surface.Nginx[0].Files, "/opt/conf/x.conf")
		},
		"in a temporary directory": func(f *fixture) { f.surface.Nginx[0].Files = append(f.surface.Nginx[0].Files, "/tmp/x.conf") },
	},
	"nginx-include-missing": {
		"all of a directory": func(f *fixture) {
			f.surface.Nginx[0].Includes = []nginx.Include{{Pattern: "/opt/gem/nginx/*.conf", Place: tree.Place{Path: nginxConf, Line: 3}}}
		},
		"not there":     func(f *fixture) { f.surface.Nginx[0].Includes = []nginx.Include{{Pattern: "/opt/gem/later.conf"}} },
		"not laid":      func(f *fixture) { f.surface.Nginx[0].Files = append(f.surface.Nginx[0].Files, "/etc/nginx/mime.types") },
		"the main file": func(f *fixture) { f.surface.Nginx[0].Path = "/etc/nginx/nginx.conf" },
	},
	"listener-unknown": {
		"listed in vain": func(f *fixture) { f.want.Listeners = append(f.want.Listeners, "*:9999") },
		"public": func(f *fixture) {
			f.surface.Listeners = append(f.surface.Listeners, inspect.Listener{Address: "*", Port: 8091, By: "python-server"})
		},
		"loopback": func(f *fixture) {
			f.surface.Listeners = append(f.surface.Listeners, inspect.Listener{Address: "127.0.0.1", Port: 8091, Loopback: true})
		},
		"IPv6": func(f *fixture) {
			f.surface.Listeners = append(f.surface.Listeners, inspect.Listener{Address: "[::]", Port: 8080})
		},
		"rebound": func(f *fixture) { f.surface.Listeners[1].Address = "0.0.0.0" },
		"a socket": func(f *fixture) {
			f.surface.Listeners = append(f.surface.Listeners, inspect.Listener{Address: "unix:/tmp/x.sock"})
		},
		"a placeholder": func(f *fixture) {
			f.surface.Listeners = append(f.surface.Listeners, inspect.Listener{Address: "${PUBLIC_LISTEN}", By: "nginx"})
		},
	},
	"privilege-file": {
		"listed in vain": func(f *fixture) { f.want.Privileged = []string{"/usr/bin/nothing"} },
		"setuid":         func(f *fixture) { f.privileged("/usr/bin/x", 0o4755, privilege.Setuid) },
		"setgid":         func(f *fixture) { f.privileged("/usr/bin/x", 0o2755, privilege.Setgid) },
		"capability":     func(f *fixture) { f.privileged("/usr/bin/x", 0o755, privilege.Capability) },
	},
	"privilege-writable": {
		"a file": func(f *fixture) { f.privileged("/etc/x", 0o666, privilege.WorldWritable) },
	},
	"privilege-device": {
		"a disk, though named": func(f *fixture) {
			f.want.Privileged = []string{"/dev/*"}
			f.privileged("/dev/sda", 0o600, privilege.Device)
		},
	},
	"privilege-sudo": {
		"gem":       func(f *fixture) { f.surface.Privilege.Sudo = []tree.Note{{Text: "gem ALL=(ALL) NOPASSWD:ALL"}} },
		"everybody": func(f *fixture) { f.surface.Privilege.Sudo = []tree.Note{{Text: "ALL ALL=(ALL) NOPASSWD:ALL"}} },
		"a member":  func(f *fixture) { f.surface.Privilege.Sudo = []tree.Note{{Text: "%gem\tALL=(ALL) ALL"}} },
		"root, with the program": func(f *fixture) {
			f.base = append(f.base, image.Bytes("/usr/bin/sudo", 0o4755, nil))
			f.surface.Privilege.Sudo = []tree.Note{{Text: "root ALL=(ALL) ALL"}}
		},
	},
	"account-login": {
		"a shell": func(f *fixture) {
			f.addUser(privilege.User{Name: "x", UID: 5, GID: 5, Shell: "/bin/bash", Password: "locked"})
		},
		"the default shell": func(f *fixture) { f.addUser(privilege.User{Name: "x", UID: 5, GID: 5, Password: "locked"}) },
		"a password": func(f *fixture) {
			f.addUser(privilege.User{Name: "x", UID: 5, GID: 5, Shell: "/usr/sbin/nologin", Password: "set"})
		},
		"an empty password": func(f *fixture) { f.surface.Privilege.Users[1].Password = "none" },
	},
	"account-root": {
		"by another name": func(f *fixture) {
			f.addUser(privilege.User{Name: "toor", Shell: "/usr/sbin/nologin", Password: "locked"})
		},
		"in root's group": func(f *fixture) { f.surface.Privilege.Users[1].GID = 0 },
		"in another group": func(f *fixture) {
			f.surface.Privilege.Groups = append(f.surface.Privilege.Groups, privilege.Group{Name: "disk", GID: 6, Members: []string{"gem"}})
		},
	},
	"secret-env": {
		"by its name":  func(f *fixture) { f.surface.Config.Env["OPENAI_API_KEY"] = "abc" },
		"by its shape": func(f *fixture) { f.surface.Config.Env["X"] = "ghp_" + strings.Repeat("a", 36) },
		"in an URL":    func(f *fixture) { f.surface.Config.Env["INDEX"] = "https://user:hunter2@pypi.example/simple" },
		"a switch":     func(f *fixture) { f.surface.Config.Env["SANDBOX_API_KEY"] = "baked" },
	},
	"secret-history": {
		"ENV":    func(f *fixture) { f.config.History = []v1.History{{CreatedBy: "ENV NPM_TOKEN=abcdef"}} },
		"an ARG": func(f *fixture) { f.config.History = []v1.History{{CreatedBy: `|1 GITHUB_TOKEN=abc /bin/sh -c true`}} },
		"a shape": func(f *fixture) {
			f.config.History = []v1.History{{CreatedBy: "RUN curl -H 'Authorization: Bearer ghp_" + strings.Repeat("a", 36) + "'"}}
		},
		"an empty layer's comment": func(f *fixture) { f.config.History = []v1.History{{EmptyLayer: true, Comment: "PASSWORD=hunter2"}} },
	},
	"start-entrypoint": {
		"the base's": func(f *fixture) { f.surface.Config.Entrypoint = []string{"/opt/gem/run.sh"} },
		"none":       func(f *fixture) { f.surface.Config.Entrypoint = nil },
		"no program": func(f *fixture) { f.surface.Config.Entrypoint = []string{conf} },
		"not laid":   func(f *fixture) { f.surface.Config.Entrypoint = []string{"/usr/bin/Xvnc"} },
	},
	"autoload": {
		"ld.so.preload":      func(f *fixture) { f.base = append(f.base, text("/etc/ld.so.preload", "/x.so")) },
		"ld.so.preload link": func(f *fixture) { f.base = append(f.base, image.Symlink("/etc/ld.so.preload", "/home/gem/x")) },
	},
	"file-directory": {
		"gem's":       func(f *fixture) { f.addAbove(owned(image.Dir("/opt/gem", 0o755), 1000, 1000)) },
		"everybody's": func(f *fixture) { f.addAbove(image.Dir("/etc/agent-browser", 0o777)) },
		"the group's": func(f *fixture) { f.addAbove(owned(image.Dir("/usr/local/bin", 0o775), 0, 1000)) },
	},
	"interpreter": {
		"no library": func(f *fixture) { f.python(false) },
		"no interpreter": func(f *fixture) {
			f.base = append(f.base, image.Bytes("/usr/bin/supervisord", 0o755, []byte("#!/usr/bin/python3\n")))
		},
	},
	"index": {
		"a key": func(*fixture) {}, // TestIndexes has the others
	},
	"manifest": {
		"written otherwise": func(f *fixture) {
			f.prepare = func(img, _ *inspect.Image) { img.RawManifest = append(img.RawManifest, ' ') }
		},
		"cut off":             func(f *fixture) { f.prepare = func(img, _ *inspect.Image) { img.RawManifest = img.RawManifest[1:] } },
		"half Docker's":       asTree(manifest(func(m *v1.Manifest) { m.MediaType = types.DockerManifestSchema2 })),
		"Docker's":            manifest(func(m *v1.Manifest) { m.MediaType = types.DockerManifestSchema2 }),
		"an empty config":     manifest(func(m *v1.Manifest) { m.Config.MediaType = "application/vnd.oci.empty.v1+json" }),
		"a config in itself":  manifest(func(m *v1.Manifest) { m.Config.Data = []byte("{}") }),
		"a config from afar":  manifest(func(m *v1.Manifest) { m.Config.URLs = []string{"https://evil.example"} }),
		"an artifact":         manifest(func(m *v1.Manifest) { m.ArtifactType = "application/x" }),
		"a subject":           manifest(func(m *v1.Manifest) { m.Subject = &v1.Descriptor{} }),
		"an unknown layer":    manifest(func(m *v1.Manifest) { m.Layers[1].MediaType = "application/x-evil" }),
		"a plain layer":       asTree(manifest(func(m *v1.Manifest) { m.Layers[1].MediaType = types.OCIUncompressedLayer })),
		"a foreign layer":     asTree(manifest(func(m *v1.Manifest) { m.Layers[1].MediaType = types.OCIRestrictedLayer })),
		"a layer in itself":   asTree(manifest(func(m *v1.Manifest) { m.Layers[1].Data = []byte("x") })),
		"a subject of a tree": asTree(manifest(func(m *v1.Manifest) { m.Subject = &v1.Descriptor{} })),
		"a layer from afar":   manifest(func(m *v1.Manifest) { m.Layers[1].URLs = []string{"https://evil.example/x"} }),
		"an index of ours":    annotated(1, "io.github.containers.zstd-chunked.manifest-position", "1:2:3:1"),
		"an index of a tree":  asTree(annotated(1, "io.github.containers.zstd-chunked.manifest-position", "1:2:3:1")),
		"more than seconds":   asTree(annotated(1, "buildkit/rewritten-timestamp", "1 run.oci.handler=x")),
		"a sign":              asTree(annotated(1, "buildkit/rewritten-timestamp", "+1")),
		"of the base's":       asTree(annotated(0, "containerd.io/snapshot/stargz/toc.digest", "sha256:1")),
		"BuildKit's":          annotated(1, "buildkit/rewritten-timestamp", "1"),
	},
	"annotation": {
		"a runtime":           func(f *fixture) { f.annotations["run.oci.handler"] = "krun" },
		"a runtime of a tree": asTree(func(f *fixture) { f.annotations["run.oci.handler"] = "krun" }),
		"another base":        func(f *fixture) { f.annotations["org.opencontainers.image.base.digest"] = "sha256:0" },
		"another of a tree":   asTree(func(f *fixture) { f.annotations["org.opencontainers.image.base.digest"] = "sha256:0" }),
		"none":                asTree(func(f *fixture) { f.annotations = nil }),
		"one of Docker's": asTree(func(f *fixture) {
			f.annotations, f.fromDocker = map[string]string{"a": "b"}, true
		}),
		"no base": asTree(func(f *fixture) { delete(f.annotations, "org.opencontainers.image.base.digest") }),
		"a title": func(f *fixture) { f.annotations["org.opencontainers.image.title"] = "slim" },
	},
	"config": {
		"a variable twice": asTree(func(f *fixture) { f.config.Config.Env = []string{"A=", "B=", "A="} }),
		"no variable":      asTree(func(f *fixture) { f.config.Config.Env = []string{"A"} }),
		"ONBUILD":          asTree(func(f *fixture) { f.config.Config.OnBuild = []string{"RUN evil"} }),

		"not the base's user":         built(`"User":"gem"`, `"User":"root"`),
		"without the base's user":     built(`"User":"gem",`, ``),
		"not the base's directory":    built(`"/home/gem"`, `"/"`),
		"not the base's variable":     built(`BASE=1`, `BASE=2`),
		"blank in place of a value":   asTree(built(`BASE=1`, `BASE=`)),
		"without the base's variable": built(`,"BASE=1"`, ``),
		"without it, of a tree":       asTree(built(`,"BASE=1"`, ``)),
		"one more variable":           built(`"BASE=1"`, `"BASE=1","MORE="`),
		"one more of a tree":          asTree(built(`"BASE=1"`, `"BASE=1","MORE=x"`)),
		"another order":               built(`"PATH=/usr/bin:/bin","BASE=1"`, `"BASE=1","PATH=/usr/bin:/bin"`),
		"not the base's volume":       built(`{"/data":{}}`, `{"/data":{},"/etc":{}}`),
		"not the base's stop signal":  built(`"SIGTERM"`, `"SIGKILL"`),
		"not the base's shell":        built(`["/bin/sh","-c"]`, `["/evil","-c"]`),
		"health check's times":        built(`"Interval":10000000000`, `"Interval":1`),
		"a key of the health check":   built(`"Interval":`, `"StartInterval":1,"Interval":`),
		"a key that no build writes":  built(`"StopSignal"`, `"MacAddress":"02:42:ac:11:00:02","StopSignal"`),
		"a key beside it":             built(`"os":"linux"`, `"os":"linux","author":"evil"`),
		"another kind of rootfs":      built(`"type":"layers"`, `"type":"evil"`),
		"another time":                built(`"created":"2026-05-12T08:00:00Z","os"`, `"created":"2026-05-12T08:00:01Z","os"`),
		"other layers":                built(`"sha256:1"`, `"sha256:2"`),
		"another variant":             built(`"os":"linux"`, `"os":"linux","variant":"v3"`),
		"another system":              built(`"os":"linux"`, `"os":"linux","os.version":"10.0"`),
		"a key twice":                 built(`"User":"gem"`, `"User":"root","User":"gem"`),
		"a key in another case":       built(`"User":"gem"`, `"User":"gem","user":""`),
		"a key of another alphabet":   built(`"User":"gem"`, `"User":"gem","U\u017fer":""`),
		"a key of all in two cases":   built(`"os":"linux"`, `"os":"linux","Config":{"User":"root"}`),
		"two configs":                 built(`"rootfs":`, `"config":{},"rootfs":`),
		"more behind it":              built(`"created_by":"ours"}]}`, `"created_by":"ours"}]}{"config":{}}`),
		"no object":                   built(`"config":{`, `"config":[],"Config":{`),
		"too deep":                    built(`"os":"linux"`, `"os":"linux","x":`+strings.Repeat(`{"x":`, 100_000)+"1"+strings.Repeat("}", 100_000)),
		"not the base's label":        built(`"maker":"base"`, `"maker":"evil"`),
		"neither's label":             asTree(built(`"maker":"base"`, `"maker":"base","traefik.enable":"true"`)),
		"an empty label":              asTree(built(`"maker":"base"`, `"maker":"base","empty":""`)),
		"a label of objects":          asTree(built(`"maker":"base"`, `"maker":{"a":["b"]}`)),
		"the base's label away":       built(`"maker":"base",`, ``),
		"a label that describes":      built(`image.version":"1"`, `image.version":"2"`),
	},
	"history": {
		"another step":      built(`"created_by":"base"`, `"created_by":"evil"`),
		"an empty layer":    built(`"created_by":"base"`, `"created_by":"base","empty_layer":true`),
		"one more":          built(`"created_by":"ours"}`, `"created_by":"ours"},{"created_by":"evil"}`),
		"none":              built(`,{"created":"2026-05-12T08:00:00Z","created_by":"ours"}`, ``),
		"of another author": built(`"created_by":"ours"`, `"created_by":"ours","author":"evil"`),
		"at another time":   built(`"created":"2026-05-12T08:00:00Z","created_by":"ours"`, `"created":"2026-05-12T08:00:01Z","created_by":"ours"`),
	},
	"base-layer": {
		"another": func(f *fixture) { f.base = f.base[1:] },
		"away":    func(f *fixture) { f.base, f.laid = f.laid, nil },
	},
	"layer": {
		"one more":     func(f *fixture) { f.addAbove(image.Bytes("/usr/sbin/nginx", 0o755, program(0x3e))) },
		"an empty one": func(f *fixture) { f.addAbove() },
		"one twice":    func(f *fixture) { f.addAbove(f.laid...) },
		"more in ours": func(f *fixture) { f.laid = append(f.laid, text("/usr/lib/libc.so.6", "evil")) },
		"other times":  func(f *fixture) { f.laid[5].ModTime = time.Unix(1e9, 0) },
	},
	"file": {
		"a program of the base":     func(f *fixture) { f.addAbove(image.Bytes("/usr/sbin/nginx", 0o755, program(0xb7))) },
		"a directory's mode":        func(f *fixture) { f.addAbove(image.Dir("/usr/bin", 0o777)) },
		"a new directory":           func(f *fixture) { f.addAbove(image.Dir("/srv/x", 0o755)) },
		"a removal":                 func(f *fixture) { f.addAbove(image.Whiteout("/usr/bin/Xvnc")) },
		"an opaque directory":       func(f *fixture) { f.addAbove(text("/usr/bin/.wh..wh..opq", "")) },
		"hidden":                    func(f *fixture) { f.addAbove(image.Whiteout(shell)) },
		"hidden with its directory": func(f *fixture) { f.addAbove(image.Whiteout("/opt/agent-browser")) },
		"not laid":                  func(f *fixture) { f.laid = f.laid[1:] },
		"its directory a link":      func(f *fixture) { f.addAbove(image.Symlink("/etc/agent-browser", "/tmp")) },
		"content":                   func(f *fixture) { f.laid[0] = image.Bytes(shell, 0o755, program(0xb7)) },
		"a symlink":                 func(f *fixture) { f.laid[0] = image.Symlink(shell, "/usr/local/bin/browser") },
		"a hard link": func(f *fixture) {
			f.addAbove(image.File{Entry: image.Entry{Path: conf, Type: image.TypeLink, Link: nginxConf}})
		},
		"link's end": func(f *fixture) { f.laid[4].Link = "/tmp/x" },
		"mode":       func(f *fixture) { f.laid[8].Mode = 0o666 },
		"owner":      func(f *fixture) { f.laid[8].UID = 1000 },
		"xattr":      func(f *fixture) { f.laid[0].Xattrs = map[string]string{"security.capability": "\x01"} },
		"a module":   func(f *fixture) { f.laid = append(f.laid, text("/opt/agent-browser/node_modules/x/index.js", "evil")) },

		"of a tree":             asTree(func(f *fixture) { f.addAbove(image.Bytes("/usr/sbin/nginx", 0o755, program(0xb7))) }),
		"a removal of a tree":   asTree(func(f *fixture) { f.addAbove(image.Whiteout("/usr/bin/Xvnc")) }),
		"a directory of a tree": asTree(func(f *fixture) { f.addAbove(image.Dir("/usr/bin", 0o777)) }),
		"xattr of a tree":       asTree(func(f *fixture) { f.laid[0].Xattrs = map[string]string{"security.capability": "\x01"} }),
	},
	"ledger": {
		"another": func(*fixture) {}, // below
	},
	"platform": {
		"missing": func(*fixture) {}, // TestPlatforms has the others
	},
	"layout": {
		"a file more": func(*fixture) {}, // image.TestOutside has the others
	},
	"name": {
		"another's": func(*fixture) {}, // likewise
	},
	"not-understood": {
		"a note": func(f *fixture) { f.surface.Notes = []tree.Note{{Text: "what is this?"}} },
	},
	"package-not-understood": {
		"a note": func(f *fixture) {
			f.prepare = func(img, _ *inspect.Image) {
				img.Packages.Notes = []tree.Note{{Text: "what is this?"}}
				img.Surface.Notes = img.Packages.Notes
			}
		},
	},
}

func TestGoodImagePasses(t *testing.T) {
	r := check(t, good().input(t))
	for _, f := range r.Findings {
		t.Errorf("%s: %s %v", f.Rule, f.Message, f.Places)
	}
	if !r.Passed || len(r.Rules) < 20 {
		t.Errorf("passed %v with %d rules", r.Passed, len(r.Rules))
	}
}

// successors maps the ids of earlier versions to the rules that find the same today. docs/verify.md has the table, too.
var successors = map[string]string{
	"account-login": "accounts", "account-root": "accounts", "autoload": "code", "env-loader": "code", "file-directory": "writable",
	"listener-unknown": "listeners", "mcp-command": "laid", "mcp-server": "mcp-servers", "mcp-tool": "tools", "nginx-auth-by-request-uri": "gate",
	"nginx-does-not-start": "not-understood", "nginx-gate": "gate", "nginx-include-missing": "laid", "nginx-longer-location": "routes",
	"nginx-no-auth": "gate", "nginx-regex-order": "routes", "nginx-route-missing": "routes", "nginx-static": "upstreams", "nginx-stream": "gate",
	"nginx-upstream": "upstreams", "nginx-writable-include": "writable", "package-not-understood": "not-understood", "privilege-device": "privileged",
	"privilege-file": "privileged", "privilege-sudo": "privileged", "privilege-writable": "privileged", "program": "programs",
	"program-account": "accounts", "program-environment": "switches", "program-include": "laid", "program-loader": "code", "program-path": "writable",
	"program-socket": "writable", "secret-env": "secrets", "secret-history": "secrets", "start-entrypoint": "laid", "start-environment": "laid",
	"start-script": "laid", "supervisord": "laid", "switch": "switches", "switch-set": "switches",
	"run-environment": "laid", "annotation": "manifest", "base-layer": "layer", "history": "config", "layer-archive": "layer",
	// By comparison: of what slimctl embeds the rest is a test of assets.
	"browser-flag": "file", "config-volume": "config", "nginx-many-servers": "file", "nginx-raw-path": "file", "program-dormant": "file", "secret-file": "file",
}

// Every rule finds what it is about, and says all that a reader needs.
func TestEveryRuleFinds(t *testing.T) {
	rules, tried := map[string]verify.Rule{}, map[string]bool{}
	for _, rule := range verify.Rules() {
		rules[rule.ID] = rule
	}
	for aspect, cases := range broken {
		id := cmp.Or(successors[aspect], aspect)
		rule, ok := rules[id]
		if !ok {
			t.Errorf("there is no rule %s", id)
		}
		tried[id] = true
		for name, breakIt := range cases {
			t.Run(aspect+"/"+name, func(t *testing.T) {
				f := good()
				breakIt(f)
				in := f.input(t)
				switch id {
				case "index":
					in.Index = []byte("{}")
				case "layout":
					in.Outside = []string{"the file \"x\" belongs to no image of index.json"}
				case "name":
					in.Names = []string{"docker.io/library/alpine:latest"}
				case "ledger":
					in.Ledgers = map[string][]string{"linux/amd64": {"sha256:1"}}
				case "platform":
					in = twoPlatforms(t)
					in.Images = in.Images[:1]
				}
				severity := rule.Severity
				if name == "listed in vain" || aspect == "package-not-understood" {
					severity = verify.Warning
				}
				r := check(t, in)
				for _, found := range r.Findings {
					if found.Rule != id || found.Severity != severity {
						continue
					}
					if found.Message == "" || found.Fix == "" || found.Platform == "" && !slices.Contains([]string{"index", "layout", "name"}, id) {
						t.Errorf("%+v", found)
					}
					if r.Passed != (severity != verify.Error && !hasError(r) && r.Proven != "") {
						t.Errorf("passed is %v", r.Passed)
					}
					return
				}
				t.Errorf("nothing found; there are %v\n%s", ruleIDs(r), describe(r))
			})
		}
	}
	for id, rule := range rules {
		if !tried[id] && !rule.Dynamic {
			t.Errorf("rule %s has no case", id)
		}
	}
}

// docs/verify.md has a line for each id of earlier versions.
func TestSuccessorsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/verify.md")
	if err != nil {
		t.Fatal(err)
	}
	for old, id := range successors {
		if row := "| `" + old + "` | `" + id + "` |"; !strings.Contains(string(text), row) {
			t.Errorf("docs/verify.md lacks %q", row)
		}
	}
}

func hasError(r *verify.Report) bool {
	for _, f := range r.Findings {
		if f.Severity == verify.Error {
			return true
		}
	}
	return false
}

// twoPlatforms is an image for both. The second one's programs are of the wrong machine: rules about files say so.
func twoPlatforms(t *testing.T) verify.Input {
	t.Helper()
	in := good().input(t)
	arm := good()
	arm.config.Architecture = "arm64"
	other := arm.input(t)
	other.Images[0].Platform.Variant = "v8" // which linux/arm64 means
	in.Images = append(in.Images, other.Images...)
	in.Expect["linux/arm64"] = other.Expect["linux/arm64"]
	in.Want.Images["linux/arm64"] = other.Want.Images["linux/arm64"]
	return in
}

func TestPlatforms(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(in *verify.Input)
		rule   string // none when empty
		says   string
	}{
		"both":       {func(*verify.Input) {}, "", ""},
		"one":        {func(in *verify.Input) { in.Images = in.Images[:1] }, "platform", "there is no image for linux/arm64"},
		"unverified": {func(in *verify.Input) { delete(in.Expect, "linux/arm64") }, "platform", "linux/arm64, which the profile does not have"},
		"another":    {func(in *verify.Input) { in.Images[1].Platform.Variant = "v7" }, "platform", "linux/arm64/v7"},
		"twice":      {func(in *verify.Input) { in.Images = append(in.Images, in.Images[0]) }, "platform", "several images for linux/amd64"},
	} {
		t.Run(name, func(t *testing.T) {
			in := twoPlatforms(t)
			tt.change(&in)
			r := check(t, in)
			said := false
			for _, f := range r.Findings {
				if strings.HasPrefix(f.Rule, "platform") {
					said = said || f.Rule == tt.rule && strings.Contains(f.Message, tt.says)
					if tt.rule == "" {
						t.Errorf("%s: %s", f.Rule, f.Message)
					}
				}
			}
			if tt.rule != "" && !said {
				t.Errorf("nothing says %q: %+v", tt.says, r.Findings)
			}
		})
	}
}

func TestRulesAreWritten(t *testing.T) {
	seen := map[string]bool{}
	holes := map[string]bool{}
	last := ""
	for _, r := range verify.Rules() {
		if seen[r.ID] {
			t.Errorf("%s is there twice", r.ID)
		}
		seen[r.ID] = true
		for _, s := range []string{r.Title, r.Why, r.Fix} {
			if len(s) < 12 || strings.ContainsAny(s, "\n\t|") && !strings.Contains(s, "(sse|message|mcp)") {
				t.Errorf("%s says %q", r.ID, s)
			}
		}
		if !strings.HasSuffix(r.Why, ".") || !strings.HasSuffix(r.Fix, ".") || strings.HasSuffix(r.Title, ".") {
			t.Errorf("%s: why and fix are sentences, the title is none", r.ID)
		}
		if r.Severity != verify.Error && r.Severity != verify.Warning && r.Severity != verify.Info {
			t.Errorf("%s: severity %q", r.ID, r.Severity)
		}
		if !r.Dynamic {
			if r.ID < last {
				t.Errorf("%s comes after %s", r.ID, last)
			}
			last = r.ID
			for _, h := range r.Holes {
				holes[h] = true
			}
		}
	}
	for _, h := range strings.Split("abcdefghijklm", "") {
		if !holes[h] {
			t.Errorf("no rule finds hole %s", h)
		}
	}
}
