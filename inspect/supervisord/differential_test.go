package supervisord

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/internal/need"
)

// truth is supervisord itself, which testdata/read.py has read configurations.
type truth struct {
	t   *testing.T
	in  *json.Encoder
	out *json.Decoder
}

type answer struct {
	Error    string
	Files    []string
	Programs map[string]struct {
		Args        []string
		User        *string
		Priority    int
		Autostart   bool
		Environment map[string]string
		Directory   *string
		Processes   int
	}
	User        *string
	Sockets     []struct{ Address string }
	Environment map[string]string
}

func supervisorsOwn(t *testing.T) *truth {
	t.Helper()
	program, err := os.ReadFile(need.Program(t, "supervisord"))
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(program), "\n") // the Python that has its modules
	words := append(strings.Fields(strings.TrimPrefix(line, "#!")), filepath.Join("testdata", "read.py"))
	cmd := exec.Command(words[0], words[1:]...)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	own := &truth{t: t, in: json.NewEncoder(stdin), out: json.NewDecoder(bufio.NewReader(stdout))}
	return own
}

func (own *truth) read(files, env map[string]string) (a answer) {
	own.t.Helper()
	if err := own.in.Encode(map[string]any{"files": files, "env": env}); err != nil {
		own.t.Fatal(err)
	}
	if err := own.out.Decode(&a); err != nil {
		own.t.Fatal(err)
	}
	return a
}

// agree compares Read with supervisord itself. Where that refuses to start, nothing is exposed, and nothing is asked of Read.
func (own *truth) agree(t *testing.T, files, env map[string]string) {
	t.Helper()
	want := own.read(files, env)
	var all []image.File
	for _, p := range slices.Sorted(maps.Keys(files)) {
		all = append(all, image.Bytes(p, 0o644, []byte(files[p])))
	}
	img, err := tree.FromFiles(t.Context(), nil, all...)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Read(t.Context(), img, "/main/supervisord.conf", env)
	if err != nil {
		t.Fatal(err)
	}
	dies := slices.ContainsFunc(c.Notes, func(n tree.Note) bool {
		return strings.Contains(n.Text, "does not start") || strings.Contains(n.Text, "not UTF-8")
	})
	if want.Error != "" {
		return
	}
	if dies && !strings.Contains(shown(files), "numprocs=0") { // without a process supervisord doesn't look at its options
		t.Errorf("supervisord starts; the notes are %v\n%s", c.Notes, shown(files))
	}
	type program struct {
		Args                []string
		User, Directory     string
		Priority, Processes int
		Autostart           bool
		Environment         map[string]string
	}
	get := func(s *string) string {
		if s == nil {
			return ""
		}
		return *s
	}
	flat := func(s string) string {
		return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' }), " ")
	}
	wanted, got := map[string]program{}, map[string]program{}
	for section, p := range want.Programs {
		wanted[section] = program{p.Args, flat(get(p.User)), flat(get(p.Directory)), p.Priority, p.Processes, p.Autostart, p.Environment}
	}
	common := want.Environment
	for _, p := range c.Programs {
		in := func(text string) string {
			s, _ := expand(text, func(name string) (string, bool) {
				if name == "program_name" {
					return p.Name, true
				}
				if v, ok := fromEnv(name, common); ok {
					return v, true
				}
				return fromEnv(name, env)
			})
			return s
		}
		full := maps.Clone(env)
		maps.Copy(full, common)
		args, err := p.Args(full)
		if err != nil {
			args = nil
		}
		if args == nil && err == nil {
			args = []string{}
		}
		autostart, _ := boolean(in(p.Autostart))
		processes := 1
		if n, ok := integer(in(p.Processes)); ok {
			processes = n
		}
		if p.Kind == "eventlistener" && p.Priority == -1 {
			p.Priority = 999 // of the process; -1 is the group's
		}
		environment := map[string]string{}
		for k, v := range p.Environment {
			if _, ok := common[k]; !ok {
				environment[k] = in(v)
			}
		}
		if processes > 0 {
			got[sectionOf(c, p)] = program{args, in(p.User), in(p.Directory), p.Priority, processes, autostart, environment}
		}
	}
	if diff := cmp.Diff(wanted, got); diff != "" {
		t.Errorf("programs (-supervisord +Read):\n%s\n%s", diff, shown(files))
	}
	if diff := cmp.Diff(want.Files, c.Files); diff != "" {
		t.Errorf("files (-supervisord +Read):\n%s\n%s", diff, shown(files))
	}
	var sockets, wantSockets []string
	for _, s := range c.Sockets {
		sockets = append(sockets, s.Address)
	}
	for _, s := range want.Sockets {
		wantSockets = append(wantSockets, s.Address)
	}
	slices.Sort(sockets)
	slices.Sort(wantSockets)
	if diff := cmp.Diff(wantSockets, sockets); diff != "" {
		t.Errorf("sockets (-supervisord +Read):\n%s\n%s", diff, shown(files))
	}
}

func sectionOf(_ *Config, p Program) string { return p.Kind + ":" + p.section }

func shown(files map[string]string) string {
	var b strings.Builder
	for _, p := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(&b, "--- %s\n%q\n%s\n", p, files[p], files[p])
	}
	return b.String()
}

// pieces are what generated configurations are made of: the things in which a reader can differ from configparser.
var pieces = []string{
	"[program:a]\n", "[program:b] trailing\n", "[program:c];x\n", " [program:d]\n", "[eventlistener:e]\nevents=TICK_5\n", "[group:g]\nprograms=a,b\n", "[DEFAULT]\n",
	"[fcgi-program:f]\nsocket=tcp://localhost:9001\n", "[unix_http_server]\nfile=/run/x.sock\n", "[inet_http_server]\nport=*:9001\n", "[supervisord]\n",
	"[include]\nfiles=c/*.conf\n", "[program:a]]\n", "[]\n", "[x\n", "\n", "\n\n", "   \n", "; comment\n", "# comment\n", "  ; comment\n", "\r\n", "\x0b\n", "\u00a0\n",
	"command=/bin/a\n", "command = /bin/b -x ; gone\n", "command: /bin/c #gone\n", "command=/bin/d;stays #gone\n",
	"COMMAND=/bin/e\n", "Command\t=\t/bin/f\n", "command=\n", "command\n", "=x\n", " = x\n", "command=a=b:c\n", "command=/bin/g \"two words\" 'x;y' \\n\n",
	"command=/bin/h \"open\n", "command=/bin/i %(ENV_X)s %(program_name)s %(here)s 100%%\n", "command=/bin/j %(ENV_NOPE)s\n", "command=/bin/k %x\n", "command=/bin/l %(foo)s\n",
	"  more\n", "\tmore ; gone\n", " a=b\n", "    [program:z]\n", "user=u\n", "user=%(ENV_USER)s\n", "priority=5\n", "priority=+7\n", "priority=x\n", "priority=%(ENV_N)s\n",
	"autostart=false\n", "autostart=YES\n", "autostart=maybe\n", "autostart=%(ENV_ON)s\n", "autorestart=unexpected\n", "environment=A=\"1\",B='2,3',C=x\n", "environment=A=\"%(ENV_X)s\",PATH=\"/a:/b\"\n",
	"environment=A\n", "environment=A=\"open\n", "environment=A=1\n  ,B=2\n", "numprocs=2\nprocess_name=%(program_name)s_%(process_num)02d\n", "numprocs=2\n", "numprocs=0\n", "directory=/x/%(ENV_X)s\n",
	"startsecs=x\n", "stopsignal=INT\n", "stopsignal=NOPE\n", "exitcodes=0,2\n", "exitcodes=300\n", "stdout_logfile_maxbytes=10MB\n", "stdout_logfile_maxbytes=10TB\n", "umask=022\n", "umask=9\n", "stopasgroup=x\n",
	"process_name=x\n", "nonsense=%(\n", "key with spaces = 1\n", "files=c/*.conf\n", "files=c/[ab].conf d/?.conf\n", "files=c/.*.conf c/*\n", "files=%(here)s/c/b.conf\n",
}

var env = map[string]string{"X": "ex", "USER": "gem", "N": "12", "ON": "true"}

// TestAgreesWithSupervisord reads generated configurations with supervisord's own code and with Read.
func TestAgreesWithSupervisord(t *testing.T) {
	own := supervisorsOwn(t)
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		text := func(n int) string {
			var b strings.Builder
			for range n {
				b.WriteString(pieces[rnd.IntN(len(pieces))])
			}
			return b.String()
		}
		// Most pieces alone keep supervisord from starting; few together leave more that do.
		size := 1 + int(seed)%8
		files := map[string]string{
			"/main/supervisord.conf": "[supervisord]\n[include]\nfiles=c/*.conf\n[program:first]\ncommand=/bin/first\n" + text(size),
			"/main/c/a.conf":         "[program:a]\ncommand=/bin/a\n" + text(size),
			"/main/c/b.conf":         "[program:b]\ncommand=/bin/b\n" + text(rnd.IntN(3)),
			"/main/c/.hidden.conf":   "[program:hidden]\ncommand=/bin/hidden\n",
			"/main/d/x.conf":         text(rnd.IntN(3)),
			"/main/c/not":            "[program:not]\ncommand=/bin/not\n",
		}
		own.agree(t, files, env)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// TestAgreesOnLines reads what the stand-ins and the closed image have.
func TestAgreesOnLines(t *testing.T) {
	own := supervisorsOwn(t)
	const standins = "../../internal/standin/files/"
	for name, trees := range map[string][]string{"A": {"common", "a"}, "B": {"common", "b"}, "C": {"common", "b", "c"}, "closed": nil} {
		files, env := map[string]string{}, map[string]string{}
		add := func(p, file string) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			files[p] = string(data)
			for _, v := range Variables(files[p]) {
				env[v] = "true"
			}
		}
		if name == "closed" {
			add("/main/supervisord.conf", "../../assets/supervisord/supervisord.conf")
		}
		for _, tree := range trees {
			confs, err := filepath.Glob(standins + tree + "/opt/gem/supervisord/*.conf")
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range confs {
				add("/opt/gem/supervisord/"+filepath.Base(c), c)
			}
			if tree == "common" {
				add("/main/supervisord.conf", standins+"common/opt/gem/supervisord.conf")
			}
		}
		a := own.read(files, env)
		if want := map[string]int{"A": 12, "B": 19, "C": 19, "closed": 5}[name]; len(a.Programs) != want || a.Error != "" {
			t.Errorf("%s: supervisord has %d programs, want %d: %s", name, len(a.Programs), want, a.Error)
		}
		own.agree(t, files, env)
	}
}
