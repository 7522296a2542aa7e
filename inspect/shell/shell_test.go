package shell_test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/shell"
	"github.com/slimctl/slimctl/internal/need"
)

func imageOf(t testing.TB, files ...image.File) *tree.Image {
	t.Helper()
	img, err := tree.FromFiles(t.Context(), nil, files...)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// of walks through the start of an image with one script, and what else is given: path, content, path, content.
func of(t testing.TB, script string, env []string, more ...string) *shell.Walk {
	t.Helper()
	files := []image.File{image.Bytes("/run.sh", 0o755, []byte(script))}
	for i := 0; i < len(more); i += 2 {
		files = append(files, image.Bytes(more[i], 0o755, []byte(more[i+1])))
	}
	own := map[string]string{}
	for _, e := range env {
		name, v, _ := strings.Cut(e, "=")
		own[name] = v
	}
	w := shell.New(imageOf(t, files...), own)
	if err := w.Start(t.Context(), []string{"/run.sh", "first", "second"}); err != nil {
		t.Fatal(err)
	}
	return w
}

// summary is a walk in lines.
func summary(w *shell.Walk) []string {
	var out []string
	dormant := func(d bool) string {
		if d {
			return " (dormant)"
		}
		return ""
	}
	for _, x := range w.Renderings {
		out = append(out, fmt.Sprintf("%s > %s %v%s", x.Template, x.Output, x.Variables, dormant(x.Dormant)))
	}
	for _, h := range w.Hooks {
		out = append(out, fmt.Sprintf("hook %s %s @%d%s", h.Variable, h.How, h.Place.Line, dormant(h.Dormant)))
	}
	for _, g := range w.Grants {
		out = append(out, "grant "+g.Text)
	}
	for _, c := range w.Changes {
		out = append(out, fmt.Sprintf("%s %s %v%s", c.How, c.Path, c.Variables, dormant(c.Dormant)))
	}
	for _, n := range w.Notes {
		out = append(out, "note "+n.String())
	}
	if w.Supervisord != "" {
		out = append(out, "supervisord "+w.Supervisord)
	}
	return out
}

func TestScripts(t *testing.T) {
	for name, tt := range map[string]struct {
		script string
		more   []string
		want   []string
	}{
		"positional parameters, local and loops": {
			"#!/bin/bash\nr() { local from=/t/$1.conf to=\"/o/$1.conf\"; [ -f \"$from\" ] || return 0; envsubst \"$2\" <$from >$to; }\n" +
				"for n in a b; do r $n '$P'; done\nr c '${Q}${R}'\n",
			[]string{"/t/a.conf", "", "/t/c.conf", ""},
			[]string{"/t/a.conf > /o/a.conf [P]", "/t/b.conf > /o/b.conf [P] (dormant)", "/t/c.conf > /o/c.conf [Q R]"},
		},
		"a pipe":            {"#!/bin/sh\ncat /t | envsubst | tee /o >/dev/null\n", []string{"/t", "$A ${B} $$ ${C:-x}"}, []string{"/t > /o []", "note /t: envsubst replaces every variable in it: which those are isn't looked at"}},
		"without a list":    {"#!/bin/sh\nenvsubst </t >/o\n", []string{"/t", ""}, []string{"/t > /o []", "note /t: envsubst replaces every variable in it: which those are isn't looked at"}},
		"no known template": {"#!/bin/sh\necho x | envsubst >/o\n", nil, []string{"> /o []", "note /run.sh:2: which template envsubst reads here can't be told"}},
		"a copy":            {"#!/bin/sh\ncp -f /t /o\ninstall -m 600 /t /d/\n", []string{"/t", "", "/d/x", ""}, []string{"/t > /o []", "/t > /d/t []"}},
		"a link":            {"#!/bin/sh\nln -sf /t /o\n", []string{"/t", ""}, []string{"/t > /o []"}},
		"a changed copy":    {"#!/bin/sh\nsed \"s/x/$Y/\" /t >/t2\ncp /t2 /o\nsed -i s/a/b/ /o\n", []string{"/t", ""}, []string{"> /t2 [Y]", "cp /o [Y]", "sed -i /o [Y]"}},
		"braces":            {"#!/bin/bash\nrm -f /etc/{a,b}.conf\n", nil, []string{"rm /etc/a.conf []", "rm /etc/b.conf []"}},
		"arrays":            {"#!/bin/bash\nx=(/a /b)\nx+=(/c)\nrm \"${x[@]}\"\ntouch \"${x[1]}\"\n", nil, []string{"rm /a []", "rm /b []", "rm /c []", "touch /b []"}},
		"decided by the environment": {
			"#!/bin/sh\nif [ \"$ON\" = yes ]; then touch /on; else rm /off; fi\n[ -n \"$Z\" ] && touch /z\n", nil,
			[]string{"touch /on [ON]", "rm /off [ON]", "touch /z [Z]"},
		},
		"decided by files": {
			"#!/bin/sh\n[ -f /there ] && touch /a\n[ -f /nowhere ] && touch /b\nrm /there\n[ -f /there ] && touch /c\n",
			[]string{"/there", "x"},
			[]string{"touch /a []", "touch /b [] (dormant)", "rm /there []", "touch /c []"},
		},
		"an early end":            {"#!/bin/sh\n[ \"$SKIP\" = 1 ] && exit 0\ntouch /a\nexit 0\ntouch /never\n", nil, []string{"touch /a [SKIP]"}},
		"an end with an error":    {"#!/bin/sh\n[ -n \"$KEY\" ] || { echo no key; exit 1; }\ntouch /a\n", nil, []string{"touch /a []"}},
		"a pipe into a shell":     {"#!/bin/sh\necho \"$CODE\" | bash\n", nil, []string{"hook CODE bash -s @2"}},
		"eval, and twice removed": {"#!/bin/sh\nx=\"a $CODE\"\ny=$(echo \"$x\" | sed s/a/b/)\neval \"$y\"\n", nil, []string{"hook CODE eval @4"}},
		"only part of it":         {"#!/bin/sh\nsh -c \"echo $WHO\"\nsh -c 'echo $QUOTED'\n", nil, []string{"hook WHO sh -c @2"}},
		"through a function":      {"#!/bin/bash\nh() { [ -z \"$2\" ] || bash -c \"$2\"; }\nh A \"$A\"\nh B \"${B:-}\"\nh C fixed\n", nil, []string{"hook A bash -c @2", "hook B bash -c @2"}},
		"the program's name": {"#!/bin/sh\n\"$CMD\" x\n$A/bin/x\n/opt/$B/x\nexec \"${E:-/bin/true}\"\n", nil, []string{
			"hook CMD command @2", "hook A command @3", "hook E exec @5",
			"note /run.sh:3: /bin/x is run, and it isn't there", "note /run.sh:4: /opt//x is run, and it isn't there", "note /run.sh:5: /bin/true is run, and it isn't there",
		}},
		"a sourced file": {"#!/bin/sh\n. \"$RC\"\n. /lib.sh arg\nf\n", []string{"/lib.sh", "f() { touch /from-lib; }\n"}, []string{
			"hook RC . @2",
			"note /run.sh:2: which file is sourced here can't be told, but it depends on RC", "touch /from-lib []",
		}},
		"arithmetic":       {"#!/bin/bash\n(( N > 1 ))\nx=$((M + 1))\n[[ $K -gt 1 ]]\ny=$(( ${#L} + x ))\n", nil, []string{"hook N bash arithmetic @2", "hook M bash arithmetic @3", "hook K bash arithmetic @4"}},
		"arithmetic of sh": {"#!/bin/sh\nx=$((M + 1))\n", nil, nil},
		"wrappers": {
			"#!/bin/sh\nenv A=1 nice -n 5 sudo -u root timeout -k 1 5 bash -c \"$CODE\"\ngosu user sh -c \"$B\"\nsetpriv --reuid=1 -- sh -c \"$C\"\nnohup sh -c \"$D\" &\n", nil,
			[]string{"hook CODE bash -c @2", "hook B sh -c @3", "hook C sh -c @4", "hook D sh -c @5"},
		},
		"su":    {"#!/bin/sh\nsu - \"$U\" -c \"x=$L sh -s\" <<'E'\ntouch /in-here\nE\nsu u <<E\necho $M\nE\n", nil, []string{"hook L su -c @2", "hook M su @5", "touch /in-here []"}},
		"xargs": {"#!/bin/sh\necho \"$LIST\" | xargs sh -c\n", nil, []string{"hook LIST sh -c @2"}},
		"trap":  {"#!/bin/sh\ntrap \"rm $F\" EXIT\n", nil, []string{"hook F trap @2"}},
		"other languages": {"#!/bin/sh\npython3 -c \"$P\"\nnode /x.js\nexec /tool\n", []string{"/tool", "#!/usr/bin/env perl\n"}, []string{
			"hook P python3 -c @2",
			"note /run.sh:2: a program for python3 is run, and can't be followed", "note /run.sh:3: /x.js is run by node, and can't be followed",
			"note /tool: /run.sh runs this file, and it can't be followed: it is a script for perl",
		}},
		"rights": {
			"#!/bin/sh\necho \"$U ALL=ALL\" | tee -a /etc/sudoers\nusermod -aG video,sudo x\nusermod -s /bin/sh x\nchmod 4755 /x\nchmod u+s /y\nchmod 755 /z\nsetcap cap_net_raw+ep /w\n", nil,
			[]string{
				"grant it writes ALL=ALL to /etc/sudoers, which sudo obeys", "grant it changes an account's rights: usermod -aG video,sudo x",
				"grant it makes /x run with its owner's or group's rights: chmod 4755", "grant it makes /y run with its owner's or group's rights: chmod u+s",
				"grant it gives capabilities: setcap cap_net_raw+ep /w", "tee /etc/sudoers [U]",
			},
		},
		"supervisord":           {"#!/bin/sh\nset -- -c /s.conf\nexec supervisord -n \"$@\"\n", nil, []string{"supervisord /s.conf"}},
		"supervisord by itself": {"#!/bin/sh\nexec /usr/bin/supervisord\n", []string{"/etc/supervisor/supervisord.conf", ""}, []string{"supervisord /etc/supervisor/supervisord.conf"}},
		"quotes of xargs":       {"#!/bin/bash\nreadarray -t a < <(xargs -n1 printf '%s\\n' <<<\"--x \\\"b c\\\" d\")\nrm \"/${a[1]}\"\n", nil, []string{"rm /b c []"}},
		"two of them":           {"#!/bin/sh\nsupervisord -c /a.conf &\nsupervisord -c /b.conf\n", nil, []string{"note /run.sh:3: another supervisord is started, with /b.conf", "supervisord /a.conf"}},
		"chosen by a variable": {"#!/bin/sh\nsupervisord -c \"$CONF\"\n", nil, []string{
			"note /run.sh:2: the environment decides on supervisord's configuration, but it depends on CONF",
			"note /run.sh:2: which configuration supervisord is started with can't be told, but it depends on CONF",
		}},
		"the command":      {"#!/bin/sh\necho start\nexec \"$@\"\n", nil, nil},
		"not to be parsed": {"#!/bin/bash\nif then\n", nil, []string{"note /run.sh: the entrypoint runs this file, and it can't be followed: it can't be parsed: 2:1: `if` must be followed by a statement list"}},
		"too large":        {"#!/bin/bash\n" + strings.Repeat("# 456789\n", 40_000), nil, []string{"note /run.sh: the image starts this file, and it can't be followed"}},
		"no script":        {"\x7fELF\x02", nil, []string{"note /run.sh: the image starts this file, and it can't be followed"}},
		"indirection": {"#!/bin/bash\nn=RUN_ME\nsh -c \"${!n}\"\nsh -c \"${!WHICH}\"\n", nil, []string{
			"hook WHICH sh -c @4", "note /run.sh:3: what sh -c runs here can't be told",
			"note /run.sh:3: which variable ${!n} reads isn't followed", "note /run.sh:4: which variable ${!WHICH} reads isn't followed",
		}},
		"default": {"#!/bin/sh\n: \"${D:=/def}\"\ntouch \"$D\"\ntouch \"${S-/s}\" \"${T:+/t}\"\n", nil, []string{"touch /def [D]", "touch /s [S]"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := summary(of(t, tt.script, nil, tt.more...))
			want := slices.Sorted(slices.Values(tt.want))
			slices.Sort(got)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%.500s(-want +got):\n%s", tt.script, diff)
			}
		})
	}
}

// TestArithmeticRunsCommands is why a variable in an expression of bash is a hook.
func TestArithmeticRunsCommands(t *testing.T) {
	for _, expression := range []string{"(( 1 >= limit ))", "x=$((limit + 1))", "x=$(( $limit ))", "[[ 1 -ge $limit ]]"} {
		cmd := exec.Command(need.Program(t, "bash"), "-c", "limit=${LIMIT:-10}; "+expression)
		cmd.Env = []string{"LIMIT=a[$(echo it ran >&2)]", "PATH=/usr/bin:/bin"}
		out, _ := cmd.CombinedOutput() // the expression may be false
		if !strings.Contains(string(out), "it ran") {
			t.Errorf("%s: %s", expression, out)
		}
		w := of(t, "#!/bin/bash\nlimit=${LIMIT:-10}\n"+expression+"\n", nil)
		if len(w.Hooks) != 1 || w.Hooks[0].Variable != "LIMIT" || w.Hooks[0].Place.Line != 3 {
			t.Errorf("%s: hooks %v", expression, w.Hooks)
		}
	}
}

// TestReads: what counts as read is what the environment can change.
func TestReads(t *testing.T) {
	w := of(t, `#!/bin/bash
set -e
own=1; echo "$own" $RANDOM $PWD "$1" "$@" $? "${BASH_SOURCE[0]}"
export B="$IN_B"
echo "$B" "${DEF:-$IN_DEF}" "${!IN_INDIRECT}" "${ARR[@]}" "$(echo $IN_SUBST)" $((IN_ARITH)) <<<"$IN_HERE"
[ -z "$IN_TEST" ] && MAYBE=1
echo $MAYBE
for i in $IN_FOR; do echo $i; done
case $IN_CASE in x) ;; esac
f() { local l=$IN_F; echo $l; }
f
g() { echo $NEVER_CALLED; }
A=1 B=$IN_PREFIX cmd
echo 'not $QUOTED' \$ESCAPED
cat <<E
$IN_DOC
E
cat <<'E'
$NOT_IN_DOC
E
exec /next.sh
`, []string{"IN_B=v", "MAYBE=m"}, "/next.sh", "#!/bin/sh\necho $B $own $IN_NEXT\n")
	got := slices.Sorted(maps.Keys(w.Reads))
	if read := w.Reads["IN_B"]; read != nil && read.Places[0].Line != 4 {
		t.Errorf("%+v", read)
	}
	want := strings.Fields("ARR BASH_ENV DEF IN_ARITH IN_B IN_CASE IN_DEF IN_DOC IN_F IN_FOR IN_HERE IN_INDIRECT IN_NEXT IN_PREFIX IN_SUBST IN_TEST MAYBE own")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestHostile: bounded time and memory, no panic, and nothing passed over in silence.
func TestHostile(t *testing.T) {
	nested := func(open, closed string, n int) string { return strings.Repeat(open, n) + strings.Repeat(closed, n) }
	var all time.Duration
	for name, script := range map[string]string{
		"itself":           "exec /run.sh",
		"sourcing itself":  ". /run.sh; . /run.sh",
		"recursion":        "f() { f; f; f; }; f",
		"two by two":       "f() { g; g; }; g() { f; f; }; f",
		"a loop in a loop": strings.Repeat("for a in 1 2 3 4 5 6 7 8 9; do ", 20) + "touch /x; " + strings.Repeat("done; ", 20),
		"growing":          "a=xxxxxxxxxxxxxxxx; " + strings.Repeat("a=$a$a$a$a; ", 1000) + "echo $a",
		"growing lists":    "a=(x); " + strings.Repeat("a=(\"${a[@]}\" \"${a[@]}\"); ", 1000) + "rm \"${a[@]}\"",
		"many variables":   many(10_000, func(i int) string { return fmt.Sprintf("v%d=\"$v%d$e%d\"\n", i+1, i, i) }),
		"many branches":    many(6_000, func(i int) string { return fmt.Sprintf("if [ \"$e%d\" ]; then a%d=1; fi\n", i, i) }),
		"many exits":       many(8_000, func(i int) string { return fmt.Sprintf("[ \"$e%d\" ] && exit\n", i) }),
		"subshells":        nested("( ", ")", 9_000),
		"substitutions":    "echo " + nested("$(echo ", ")", 9_000),
		"arithmetic":       "echo $((" + nested("(1+", "1)", 9_000) + "))",
		"indexes":          "echo $((" + nested("a[", "1]", 9_000) + "))",
		"ifs":              nested("if ", "; then :; fi", 9_000),
		"braces":           nested("{ ", "; }", 9_000),
		"quotes":           strings.Repeat("\"$(", 9_000),
		"chain":            strings.Repeat("a && ", 40_000) + "b",
		"pipe":             strings.Repeat("a | ", 40_000) + "b",
		"case":             "case x in " + strings.Repeat("a) ;; ", 30_000) + "esac",
		"wide case":        "case x in " + strings.Repeat("a | ", 50_000) + "b) ;; esac",
		"words":            "echo " + strings.Repeat("$a ", 60_000),
		"defaults":         "echo " + nested("${a:-", "}", 9_000),
		"quoted defaults":  "echo " + nested("\"${a:-", "}\"", 9_000),
		"odd options":      "env -= x; sed -=; bash -= x; su -=; printf; printf ''; printf -v; read -=; exec -=; command -v; xargs -=; env -S\nset --; shift",
		"long items":       "echo {1..9999}" + strings.Repeat("x", 200_000),
		"wide fields":      strings.Repeat("printf '"+strings.Repeat("%999999s", 100)+"'\n", 200),
		"nested patterns":  "a=" + strings.Repeat("a", 1_000) + "; echo ${a//a/${a//a/${a//a/$a}}}",
		"sequences":        "echo {1..999999999}{1..999999999}{a..z}",
		"sequences' items": "echo {" + nested("{1..9999},", "", 3_000) + "}",
		"many sequences":   strings.Repeat("echo {1..9999}\n", 9_000),
		"too many items":   strings.Repeat("echo {1..99999}\n", 9_000),
		"many patterns":    "a=" + strings.Repeat("a", 6_000) + "\n" + strings.Repeat("echo ${a%%*a*a*a*a*a*a*a*a*a*a}\n", 3_000),
		"patterns":         "a=" + strings.Repeat("a", 60_000) + "; echo ${a//a/$a} ${a%%" + strings.Repeat("*a", 5_000) + "}",
		"dashes":           "x=$((" + strings.Repeat("- ", 100_000) + "1))",
		"not a word":       "\xff\xfe\x00 \x01 $'\\x00'",
		"passing much on":  many(8_000, func(i int) string { return fmt.Sprintf("export v%d=b\n", i) }) + strings.Repeat("/x.sh\n", 8_000),
		"templates":        many(4_000, func(i int) string { return fmt.Sprintf("envsubst </run.sh >/o%d\n", i) }),
		"here documents":   strings.Repeat("cat <<E\n$(\nE\n", 5_000),
	} {
		var w *shell.Walk
		took := need.CPU(t, func() { w = of(t, "#!/bin/bash\n"+script, nil, "/x.sh", "#!/bin/bash\n:\n") })
		all += took
		if len(w.Notes) > 300 || len(w.Reads) > 60_000 {
			t.Errorf("%s: %d notes, %d variables", name, len(w.Notes), len(w.Reads))
		}
		if took > time.Second {
			t.Log(name, took)
		}
		if took > 10*time.Second {
			t.Errorf("%s took %s", name, took)
		}
		// Whatever isn't followed to its end has a note.
		if name == "itself" && len(w.Notes) == 0 || name == "many exits" && len(w.Notes) == 0 || name == "subshells" && len(w.Notes) == 0 ||
			name == "passing much on" && len(w.Notes) == 0 || name == "templates" && len(w.Notes) == 0 {
			t.Errorf("%s has no note", name)
		}
	}
	if all > 60*time.Second {
		t.Errorf("it took %s", all)
	}
}

func many(n int, line func(int) string) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(line(i))
	}
	return b.String()
}

func FuzzScript(f *testing.F) {
	for _, line := range []string{"a", "b", "c"} {
		paths, err := filepath.Glob("../../internal/standin/files/" + line + "/opt/gem/*.sh")
		if err != nil || len(paths) == 0 {
			f.Fatal(paths, err)
		}
		for _, p := range paths {
			data, err := os.ReadFile(p)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(string(data))
		}
	}
	for seed := range uint64(20) {
		f.Add("#!/bin/bash\n" + script(seed))
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 1<<16 {
			return
		}
		w := of(t, text, []string{"USER=gem", "X=x y", "PATH=/bin"}, "/t", "$A")
		if len(w.Scripts) == 0 && w.Supervisord == "" && len(w.Notes) == 0 {
			t.Error("nothing is followed, and there is no note")
		}
		job := shell.Job{Name: "a", Command: []string{"/run.sh", "%(ENV_X)s", "%(ENV_)s"}, Autostart: "%(ENV_Y)s"}
		if _, _, err := w.Follow(t.Context(), job); err != nil {
			t.Error(err)
		}
	})
}

// Many programs with long scripts are followed together no further than a few long ones.
func TestFollowIsBounded(t *testing.T) {
	script := "#!/bin/bash\n" + many(10_000, func(i int) string { return fmt.Sprintf("a%d=1\n", i) })
	w := of(t, "#!/bin/bash\n"+many(8_000, func(i int) string { return fmt.Sprintf("export v%d=b\n", i) })+"exec supervisord -c /s.conf\n", nil,
		"/x.sh", script, "/s.conf", "")
	took := need.CPU(t, func() {
		for i := range 1000 {
			if _, _, err := w.Follow(t.Context(), shell.Job{Name: fmt.Sprint("p", i), Command: []string{"/x.sh"}, Autostart: "true"}); err != nil {
				t.Fatal(err)
			}
		}
	})
	if took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
	if !slices.ContainsFunc(w.Notes, func(n tree.Note) bool { return strings.Contains(n.Text, "too long or too deep") }) {
		t.Errorf("notes %v", w.Notes)
	}
}

// Each file that is read by itself may mean to go through a layer: there is an end to that.
func TestReadingIsBounded(t *testing.T) {
	var more []string
	for i := range 150 {
		more = append(more, fmt.Sprintf("/lib/%d", i), fmt.Sprintf("# %d\n", i))
	}
	w := of(t, "#!/bin/sh\n"+many(150, func(i int) string { return fmt.Sprintf(". /lib/%d\n", i) }), nil, more...)
	if !slices.ContainsFunc(w.Notes, func(n tree.Note) bool { return strings.Contains(n.Text, "there are too many scripts") }) {
		t.Errorf("notes %v", w.Notes)
	}
}

// What a program comes to beyond what is looked at is told: it may listen.
func TestManyProgramsOfOne(t *testing.T) {
	w := of(t, "#!/bin/sh\nexec supervisord -c /s.conf\n", nil, "/s.conf", "",
		"/x.sh", "#!/bin/sh\n"+many(150, func(i int) string { return fmt.Sprintf("/bin/p%d\n", i) })+"nginx\n")
	if _, _, err := w.Follow(t.Context(), shell.Job{Name: "x", Command: []string{"/x.sh"}, Autostart: "true"}); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(w.Notes, func(n tree.Note) bool { return strings.Contains(n.Text, "comes to more than 100 programs") }) {
		t.Errorf("notes %v", w.Notes)
	}
}
