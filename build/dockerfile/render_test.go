package dockerfile

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/build/ledger/ledgertest"
	"github.com/slimctl/slimctl/image"
)

var update = flag.Bool("update", false, "write the golden files anew")

// small is a recipe as a reader of the golden files can take it in.
func small(t testing.TB, p v1.Platform) *build.Recipe {
	t.Helper()
	return &build.Recipe{
		Profile: "l0", Platform: p, Base: testBase(t, p, baseConfig), Epoch: epoch, Dirs: baseDirs(),
		Removals: []build.Remove{
			{Path: "/srv/app/a", Type: image.TypeFile, Why: "a second way to drive the browser; only browser-shell may"},
			{Path: "/opt/gone", Type: image.TypeDir, Why: "an editor"},
			{Path: "/tmp/x", Type: image.TypeFile, Why: "a second way to drive the browser; only browser-shell may"},
		},
		Overlays: []build.Lay{
			{Name: "payload", Why: "agent-browser 0.8.10", Files: []image.File{
				image.Bytes("/usr/lib/agent/bin", 0o755, []byte("for "+p.Architecture)),
				image.Bytes("/usr/lib/agent/readme", 0o644, []byte("for all")),
				image.Symlink("/bin/agent", "/usr/lib/agent/bin"),
			}},
			{Name: "confs", Why: "one public server", Files: []image.File{
				owned(image.Bytes("/srv/app/keep/mine", 0, []byte("mine")), 0o640, 1000, 1000),
				image.Bytes("/bin/su", 0o4755, []byte("setuid")),
			}},
		},
		Change: build.ConfigChange{
			Env: map[string]string{"CHANGE": `a "b" $c \`}, Labels: map[string]string{"org.example.title": "slim"},
			WorkingDir: "/srv/app/keep", Entrypoint: []string{"/bin/agent", "$HOME"},
			Healthcheck: &v1.HealthConfig{Test: []string{"CMD", "/bin/agent", "ok"}, Interval: time.Minute},
		},
	}
}

// bare takes every step from a recipe.
func bare(r *build.Recipe) *build.Recipe {
	r.Strip, r.Removals, r.Overlays, r.Change = nil, nil, nil, build.ConfigChange{}
	return r
}

func TestGolden(t *testing.T) {
	for name, o := range map[string]Options{"run": {}} {
		t.Run(name, func(t *testing.T) {
			c, err := Render([]*build.Recipe{small(t, amd64), small(t, arm64)}, o)
			if err != nil {
				t.Fatal(err)
			}
			parse(t, c.Dockerfile)
			var files []string
			for _, f := range c.files {
				files = append(files, f.path)
			}
			slices.Sort(files)
			golden(t, name+".Dockerfile", c.Dockerfile)
			golden(t, name+".dockerignore", c.Ignore)
			golden(t, name+".docker-bake.hcl", c.Bake)
			golden(t, name+".files", strings.Join(files, "\n")+"\n")
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	name = filepath.Join("testdata", "golden", name)
	if *update {
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(got), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-want +got):\n%s", name, d)
	}
}

var hardStrings = []string{
	"plain", "", " ", "two  spaces ", `$HOME ${PATH} $x $$ ${x:-y} ${x#e}`, `\$x \\$x`, `"quoted" 'single'`, `ends with \`,
	`\\`, `\`, `"`, `'`, `'"$x"'`, "a\tb", "# comment", "<<EOF", "`id` $(id)", "é ☃ \u2028", "[\"json\"]", "a=b c=d", "key=\"v\"",
	"-- --link", "*?[a]{b}", "%{if}", "~", "!", "\ufeff", `\n`, `trailing \ `,
}

func TestValuesComeOutAsTheyWentIn(t *testing.T) {
	for _, s := range hardStrings {
		t.Run(s, func(t *testing.T) {
			r := small(t, amd64)
			bare(r).Change = build.ConfigChange{
				Env: map[string]string{"A": s, "B": "b"}, Labels: map[string]string{"k": s, "l" + strings.NewReplacer("=", "", "\t", "").Replace(s): "l"},
				WorkingDir: image.Clean("/w" + s), Entrypoint: []string{"/e", s, s + "\n"}, Cmd: []string{"c", s},
				Healthcheck: &v1.HealthConfig{Test: []string{"CMD", "h", s}},
			}
			want := []command{
				{name: "ARG"},
				{name: "FROM"},
				{name: "FROM"},
				{name: "ENV", args: []string{"A", s}},
				{name: "ENV", args: []string{"B", "b"}},
				{name: "LABEL", args: []string{"k", s}},
				{name: "LABEL", args: []string{"l" + strings.NewReplacer("=", "", "\t", "").Replace(s), "l"}},
				{name: "WORKDIR", args: []string{image.Clean("/w" + s)}},
				{name: "HEALTHCHECK", args: []string{"CMD", "h", s}, json: true},
				{name: "ENTRYPOINT", args: []string{"/e", s, s + "\n"}, json: true},
				{name: "CMD", args: []string{"c", s}, json: true},
			}
			same(t, want, render(t, r, Options{}))
		})
	}
}

func TestRemovalsComeOutAsTheyWentIn(t *testing.T) {
	r := small(t, amd64)
	bare(r)
	want := []string{"/bin/rm", "-rf", "--"}
	for _, s := range append(hardStrings, "line\nRUN x", "\r\n", "\x01", "\x7f", strings.Repeat("\x01", 4000)) {
		p := image.Clean("/opt/dir/" + s)
		r.Removals = append(r.Removals, build.Remove{Path: p, Why: "why " + s})
		want = append(want, p)
	}
	same(t, []command{
		{name: "ARG"},
		{name: "FROM"},
		{name: "USER", args: []string{"0:0"}},
		{name: "RUN", args: want, json: true},
		{name: "USER", args: []string{"gem"}},
		{name: "FROM"},
	}, render(t, r, Options{}))
}

// TestCommentsHoldNoInstruction gives every text that somebody else writes what would end a comment.
func TestCommentsHoldNoInstruction(t *testing.T) {
	for _, evil := range []string{
		"x\nRUN evil", "x\r\nRUN evil", "x\rRUN evil", "x\u2028RUN evil", "x\u0085RUN evil", "x\vRUN evil", "x\x00\nRUN evil",
		"\nsyntax=evil/frontend", "\n# escape=`\n", "ends with \\", "\\\nRUN evil", strings.Repeat("long ", 40_000), strings.Repeat("x", 200_000),
		"*/ ${evil} \"\n}\ntarget \"evil\" {",
	} {
		r := small(t, amd64)
		want := render(t, r, Options{})
		r.Profile, r.Base.Line = "l0"+evil, evil
		for i := range r.Removals {
			r.Removals[i].Why = evil
		}
		for i := range r.Overlays {
			r.Overlays[i].Why = evil
		}
		got := render(t, r, Options{})
		// With one why the removals are one group, in order of the steps.
		if i := slices.IndexFunc(got, func(c command) bool { return c.name == "RUN" }); i > 0 {
			slices.Sort(got[i].args)
			slices.Sort(want[i].args)
		}
		same(t, want, got)
		c, err := Render([]*build.Recipe{r}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(c.Dockerfile, "\n# escape=") || strings.Count(c.Bake, "\ntarget ") != 1 {
			t.Errorf("%q: %s\n%s", evil, c.Dockerfile, c.Bake)
		}
	}
}

// TestOverlayNamesStayOutOfTheDockerfile gives overlays names that would leave the context or end a line.
func TestOverlayNamesStayOutOfTheDockerfile(t *testing.T) {
	r := small(t, amd64)
	bare(r)
	names := []string{"slim", "7", "a__b", "x-2", "x", "x", "../../etc", "a b", "A B", "a\nRUN evil", "", ".", "-rf", "--chown=1:1", "$HOME", strings.Repeat("long", 200), "a b"}
	for _, n := range names {
		r.Overlays = append(r.Overlays, build.Lay{Name: n, Why: "why", Files: []image.File{image.Bytes("/tmp/"+"x", 0o644, []byte(n))}})
	}
	copies := only(render(t, r, Options{}), "ADD")
	seen := map[string]bool{}
	for _, c := range copies {
		if strings.ContainsAny(c.args[0], " $\n") || strings.Contains(c.args[0], "..") || len(c.args) != 2 || c.args[1] != "/" || seen[c.args[0]] {
			t.Errorf("ADD %q", c.args)
		}
		seen[c.args[0]] = true
	}
	if len(copies) != len(names) {
		t.Errorf("%d ADD for %d overlays", len(copies), len(names))
	}
}

// render returns what BuildKit's parser makes of the Dockerfile for r.
func render(t *testing.T, r *build.Recipe, o Options) []command {
	t.Helper()
	c, err := Render([]*build.Recipe{r}, o)
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, c.Dockerfile)
}

// same compares commands; a want without arguments stands for any.
func same(t *testing.T, want, got []command) {
	t.Helper()
	var names, gotNames []string
	for _, c := range want {
		names = append(names, c.name)
	}
	for _, c := range got {
		gotNames = append(gotNames, c.name)
	}
	if d := cmp.Diff(names, gotNames); d != "" {
		t.Fatalf("instructions (-want +got):\n%s", d)
	}
	for i, w := range want {
		g := got[i]
		if w.args == nil {
			continue
		}
		if !slices.Equal(w.args, g.args) || w.json != g.json {
			t.Errorf("%s:\nwant %q, json %t\ngot  %q, json %t", w.name, w.args, w.json, g.args, g.json)
		}
	}
}

// stripped adds a step by whose ledger paths go.
func stripped(t *testing.T, gone ...string) func(*build.Recipe) {
	t.Helper()
	layer := ledgertest.Layer(t, gone...)
	return func(r *build.Recipe) {
		r.Strip = &build.Strip{Layers: []build.Component{}, Ledger: layer}
	}
}

func TestRefuses(t *testing.T) {
	many := make([]string, 20_000)
	for i := range many {
		many[i] = fmt.Sprintf("/opt/%0100d", i)
	}
	change := func(c build.ConfigChange) func(*build.Recipe) {
		return func(r *build.Recipe) { bare(r).Change = c }
	}
	file := func(f image.File) func(*build.Recipe) {
		return func(r *build.Recipe) { bare(r).Overlays = []build.Lay{{Name: "mine", Files: []image.File{f}}} }
	}
	remove := func(p string) func(*build.Recipe) {
		return func(r *build.Recipe) { bare(r).Removals = []build.Remove{{Path: p, Why: "why"}} }
	}
	config := func(edit func(*v1.Config)) func(*build.Recipe) {
		return func(r *build.Recipe) {
			c := baseConfig
			edit(&c)
			r.Base = testBase(t, amd64, c)
		}
	}
	withXattr := image.Bytes("/tmp/f", 0o644, nil)
	withXattr.Xattrs = map[string]string{"user.x": "y"}
	acl := baseDirs()["/tmp"]
	acl.Xattrs = map[string]string{"system.posix_acl_default": "x"}
	for _, tt := range []struct {
		name    string
		edit    func(*build.Recipe)
		options Options
		want    string
	}{
		{"strip of a mount", stripped(t, "/etc/hosts"), Options{}, "a RUN can't remove /etc/hosts"},
		{"strip below a mount", stripped(t, "/dev", "/dev/null"), Options{}, "a RUN can't remove /dev"},
		{"strip not UTF-8", stripped(t, "/opt/\xff"), Options{}, "isn't UTF-8"},
		{"strip of very much", stripped(t, many...), Options{}, "more than fit on the command line of a RUN"},
		{"strip without a ledger", func(r *build.Recipe) { r.Strip = &build.Strip{Layers: []build.Component{}} }, Options{}, "no ledger of what stays"},
		{"port taken away", change(build.ConfigChange{ExposedPorts: []string{"9/tcp"}}), Options{}, "port 8080/tcp: a Dockerfile can't take away"},
		{"port without protocol", change(build.ConfigChange{ExposedPorts: []string{"8080/tcp", "9"}}), Options{}, `port "9"`},
		{"hostile port", change(build.ConfigChange{ExposedPorts: []string{"8080/tcp", "$x/tcp"}}), Options{}, `port "$x/tcp"`},
		{"env with newline", change(build.ConfigChange{Env: map[string]string{"A": "b\nRUN evil"}}), Options{}, "env A: "},
		{"env with return", change(build.ConfigChange{Env: map[string]string{"A": "b\r"}}), Options{}, "control character"},
		{"env not UTF-8", change(build.ConfigChange{Env: map[string]string{"A": "\xff"}}), Options{}, "isn't UTF-8"},
		{"env name", change(build.ConfigChange{Env: map[string]string{"A B": ""}}), Options{}, `env "A B"`},
		{"env name expands", change(build.ConfigChange{Env: map[string]string{"$x": ""}}), Options{}, `env "$x"`},
		{"label with newline", change(build.ConfigChange{Labels: map[string]string{"a": "b\nRUN evil"}}), Options{}, "label a: "},
		{"label name", change(build.ConfigChange{Labels: map[string]string{"a=b": ""}}), Options{}, `label "a=b"`},
		{"label name with newline", change(build.ConfigChange{Labels: map[string]string{"a\nRUN evil": ""}}), Options{}, "control character"},
		{"relative workdir", change(build.ConfigChange{WorkingDir: "a"}), Options{}, "isn't an absolute, clean path"},
		{"workdir with newline", change(build.ConfigChange{WorkingDir: "/a\nRUN evil"}), Options{}, "control character"},
		{"workdir removed", func(r *build.Recipe) {
			r.Overlays, r.Change = nil, build.ConfigChange{WorkingDir: "/opt/gone/deep"}
		}, Options{}, `is removed by step "remove /opt/gone"`},
		{"user with newline", change(build.ConfigChange{User: "a\nRUN evil"}), Options{}, `user "a\nRUN evil"`},
		{"user expands", change(build.ConfigChange{User: "$x"}), Options{}, `user "$x"`},
		{"health times alone", change(build.ConfigChange{Healthcheck: &v1.HealthConfig{Interval: time.Second}}), Options{}, "healthcheck: a Dockerfile can't change the times and keep"},
		{"health shell with newline", change(build.ConfigChange{Healthcheck: &v1.HealthConfig{Test: []string{"CMD-SHELL", "a\nRUN evil"}}}), Options{}, "healthcheck: "},
		{"health shell continued", change(build.ConfigChange{Healthcheck: &v1.HealthConfig{Test: []string{"CMD-SHELL", `a \`}}}), Options{}, "can't be a shell command"},
		{"health shell is JSON", change(build.ConfigChange{Healthcheck: &v1.HealthConfig{Test: []string{"CMD-SHELL", `["a"]`}}}), Options{}, "can't be a shell command"},
		{"health of an unknown kind", change(build.ConfigChange{Healthcheck: &v1.HealthConfig{Test: []string{"RUN", "x"}}}), Options{}, `test ["RUN" "x"]`},
		{"entrypoint not UTF-8", change(build.ConfigChange{Entrypoint: []string{"\xff"}}), Options{}, "entrypoint: "},
		{"cmd with NUL", change(build.ConfigChange{Cmd: []string{"\x00"}}), Options{}, "cmd: "},
		{"base with ONBUILD", config(func(c *v1.Config) { c.OnBuild = []string{"RUN evil"} }), Options{}, "ONBUILD"},
		{"base's user is hostile", config(func(c *v1.Config) { c.User = "x\nRUN evil" }), Options{}, `user "x\nRUN evil"`},
		{"remove not UTF-8", remove("/opt/\xff"), Options{}, "isn't UTF-8"},
		{"remove what RUN mounts", remove("/etc/hosts"), Options{}, "use slimctl build"},
		{"remove what holds a mount", remove("/etc"), Options{}, "/etc/hosts"},
		{"whiteout by name", file(image.Bytes("/tmp/.wh.x", 0o644, nil)), Options{}, ".wh."},
		{"path not UTF-8", file(image.Bytes("/tmp/\xff", 0o644, nil)), Options{}, "isn't UTF-8"},
		{"attribute lost", file(withXattr), Options{}, "extended attribute user.x"},
		{"acl of a parent lost", func(r *build.Recipe) {
			r.Dirs["/tmp"] = acl
			bare(r).Overlays = []build.Lay{{Name: "mine", Files: []image.File{image.Bytes("/tmp/f", 0o644, nil)}}}
		}, Options{}, "/tmp has the extended attribute system.posix_acl_default"},
		{"base in a layout", nil, Options{Base: "oci:/tmp/x"}, "is neither in a registry nor an OCI layout"},
		{"base is a stand-in", nil, Options{Base: "standin:B"}, "is neither in a registry nor an OCI layout"},
		{"base is a live stand-in", nil, Options{Base: "standin-live:B"}, "is neither in a registry nor an OCI layout"},
		{"base in a layout that buildx can't name", nil, Options{Layout: "/tmp/a:b"}, "can't take in a context"},
		{"base with newline", nil, Options{Base: "x\nRUN evil"}, "base: "},
		{"base expands", nil, Options{Base: "$x/y"}, "base: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := small(t, amd64)
			if tt.edit != nil {
				tt.edit(r)
			}
			_, err := Render([]*build.Recipe{r}, tt.options)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestHealthcheckForms(t *testing.T) {
	for _, tt := range []struct {
		health v1.HealthConfig
		want   command
	}{
		{v1.HealthConfig{Test: []string{"NONE"}}, command{args: []string{"NONE"}}},
		{
			v1.HealthConfig{Test: []string{"CMD-SHELL", `curl  -f "$HOME" || exit 1 # x`}, Retries: 2},
			command{flags: []string{"--retries=2"}, args: []string{"CMD", `curl  -f "$HOME" || exit 1 # x`}},
		},
		{
			v1.HealthConfig{Test: []string{"CMD", "--x"}, StartPeriod: 1500 * time.Millisecond},
			command{flags: []string{"--start-period=1.5s"}, args: []string{"CMD", "--x"}, json: true},
		},
	} {
		r := small(t, amd64)
		bare(r).Change = build.ConfigChange{Healthcheck: &tt.health}
		got := only(render(t, r, Options{}), "HEALTHCHECK")
		tt.want.name = "HEALTHCHECK"
		if len(got) != 1 || !slices.Equal(got[0].flags, tt.want.flags) || !slices.Equal(got[0].args, tt.want.args) || got[0].json != tt.want.json {
			t.Errorf("%v: got %+v", tt.health, got)
		}
	}
}

func TestConfigPerPlatform(t *testing.T) {
	a, b := small(t, amd64), small(t, arm64)
	bare(b).Change = build.ConfigChange{Env: map[string]string{"ONLY": "arm64"}}
	c, err := Render([]*build.Recipe{a, b}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	stage := ""
	at := map[string][]string{}
	for _, cmd := range parse(t, c.Dockerfile) {
		if cmd.name == "FROM" {
			stage = cmd.args[len(cmd.args)-1]
		}
		if cmd.name == "ENV" {
			at[stage] = append(at[stage], cmd.args[0])
		}
	}
	if d := cmp.Diff(map[string][]string{"slim-amd64": {"CHANGE"}, "slim-arm64": {"ONLY"}}, at); d != "" {
		t.Error(d)
	}
}

func TestWrite(t *testing.T) {
	r := small(t, amd64)
	r.Overlays = append(r.Overlays, build.Lay{Name: "escape", Files: []image.File{
		image.Symlink("/tmp/out", "/"), image.Bytes("/srv/umask", 0o666, []byte("x")),
	}})
	c, err := Render([]*build.Recipe{r}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "new", "context")
	if err := c.Write(dir); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{
		"Dockerfile": 0o644, "README.md": 0o644, ".dockerignore": 0o644, "docker-bake.hcl": 0o644, "overlay/amd64/payload.tar": 0o644,
		"overlay/amd64/confs.tar": 0o644, "overlay/amd64/escape.tar": 0o644, ".": os.ModeDir | 0o755,
	} {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		} else if info.Mode() != mode {
			t.Errorf("%s has mode %v, not %v", name, info.Mode(), mode)
		}
	}
	if err := c.Write(dir); err == nil || !strings.Contains(err.Error(), "isn't empty") {
		t.Errorf("over an existing context: %v", err)
	}
}

func TestWriteAllOrNothing(t *testing.T) {
	broken := image.Bytes("/tmp/broken", 0o644, []byte("12345"))
	broken.Open = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("123")), nil }
	r := small(t, amd64)
	bare(r).Overlays = []build.Lay{{Name: "mine", Files: []image.File{broken}}}
	c, err := Render([]*build.Recipe{r}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	parent := t.TempDir()
	empty, file, link := filepath.Join(parent, "empty"), filepath.Join(parent, "file"), filepath.Join(parent, "link")
	if err := errors.Join(os.Mkdir(empty, 0o755), os.WriteFile(file, nil, 0o644), os.Symlink(empty, link)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		filepath.Join(parent, "new"): "missed writing 2 bytes", empty: "missed writing 2 bytes", file: "isn't a directory", link: "isn't a directory",
	} {
		if err := c.Write(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	left, err := os.ReadDir(parent)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != 3 {
		t.Errorf("left behind: %v", left)
	}
}
