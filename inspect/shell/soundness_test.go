package shell_test

import (
	"bytes"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/shell"
	"github.com/slimctl/slimctl/internal/need"
)

// scripts makes shell scripts of what start scripts are made of.
type scripts struct {
	*rand.Rand
	depth int
}

func (g *scripts) pick(s ...string) string { return s[g.IntN(len(s))] }

func (g *scripts) name() string { return g.pick("A", "B", "C", "X", "Y") }

// word is a word that is one word whatever is in it.
func (g *scripts) word() string {
	n := g.name()
	switch g.IntN(14) {
	case 0:
		return g.pick("true", "false", "x", "''", `"a b"`, "'$A'")
	case 1:
		return `"$` + n + `"`
	case 2:
		return `"${` + n + `:-` + g.pick("d", "$A", "") + `}"`
	case 3:
		return `"${` + n + `-d}"`
	case 4:
		return `"${` + n + `:+` + g.pick("set", "$B") + `}"`
	case 5:
		return `"p$` + n + `s"`
	case 6:
		return `"$(echo "$` + n + `")"`
	case 7:
		return `"$(echo -n "$` + n + `" | xargs)"`
	case 8:
		return `"$(echo "$` + n + `" | tr -d '[:space:]')"`
	case 9:
		return `"${#` + n + `}"`
	case 10:
		return `"$(f "$` + n + `" k)"`
	case 11:
		return `"${` + n + `#t}"`
	case 12:
		return `"$(( ${#` + n + `} + 1 ))"`
	}
	return `"$(if ` + g.test() + `; then echo yes; else echo no; fi)"`
}

func (g *scripts) test() string {
	switch g.IntN(7) {
	case 0:
		return "[ -n " + g.pick(`"$X"`, `"$Y"`, `"$A"`, `"$B$C"`) + " ]"
	case 1:
		return "[ -z " + g.pick(`"$X"`, `"$Y"`, `"$A"`) + " ]"
	case 2:
		return "[ " + `"$` + g.name() + `" = ` + g.pick("true", `"$`+g.name()+`"`) + " ]"
	case 3:
		return "[ " + `"$` + g.name() + `" != true ]`
	case 4:
		return "[[ $" + g.name() + " == true && -z $" + g.name() + " ]]"
	case 5:
		return "! [ -n \"$" + g.name() + "\" ]"
	}
	return "[ -f " + g.pick("/there/a", "/not/there") + " ]"
}

func (g *scripts) block(n int) string {
	var b strings.Builder
	for range n {
		b.WriteString(g.statement())
	}
	return b.String()
}

func (g *scripts) statement() string {
	if g.depth++; g.depth > 4 {
		defer func() { g.depth-- }()
		return g.name() + "=" + g.word() + "\n"
	}
	defer func() { g.depth-- }()
	switch g.IntN(15) {
	case 0, 1, 2, 3:
		return g.name() + "=" + g.word() + "\n"
	case 4:
		return "export " + g.name() + "=" + g.word() + "\n"
	case 5:
		return "if " + g.test() + "; then\n" + g.block(1+g.IntN(2)) + "elif " + g.test() + "; then\n" + g.block(1) + "else\n" + g.block(1) + "fi\n"
	case 6:
		return "if " + g.test() + "; then\n" + g.block(2) + "fi\n"
	case 7:
		return g.test() + " && " + g.name() + "=" + g.word() + "\n"
	case 8:
		return g.test() + " || " + g.name() + "=" + g.word() + "\n"
	case 9:
		return "case " + g.word() + " in\ntrue) " + g.block(1) + ";;\nx | '') " + g.block(1) + ";;\n*) " + g.block(1) + ";;\nesac\n"
	case 10:
		stop := ""
		if g.IntN(2) == 0 {
			stop = g.test() + " && break\n"
		}
		return "for v in 1 2 3; do\n" + stop + g.name() + "=\"$" + g.name() + "$v\"\n" + g.block(1) + "done\n"
	case 11:
		return "f " + g.word() + " " + g.word() + " >/dev/null\n"
	case 12:
		return "( " + g.block(2) + ")\n"
	case 13:
		return "while " + g.test() + "; do\n" + g.block(1) + "break\ndone\n"
	}
	return "{ read -r " + g.name() + " || true; } <<<" + g.word() + "\n"
}

func (g *scripts) script() string {
	return "f() {\n  local A=" + g.word2() + " Z\n" + g.test() + " && { echo early; return 0; }\n" + g.pick("B=$1\n", "Z=$2\n", "") +
		"if [ \"$1\" = true ]; then echo one; return; fi\n  echo \"$1-$2-$A\"\n}\n" + g.block(6) + "export A B C X Y\n"
}

func script(seed uint64) string {
	g := &scripts{Rand: rand.New(rand.NewPCG(seed, 7))}
	return g.script()
}

// word2 doesn't call f.
func (g *scripts) word2() string { return g.pick(`"$1"`, `"${X:-d}"`, "plain", `"$C"`) }

// TestSoundness runs generated scripts with bash. What a walk says that it knows of a variable must be what bash makes of it,
// and a variable of the environment that changes another one must be named as one that decides on it.
func TestSoundness(t *testing.T) {
	bash := need.Program(t, "bash")
	environments := [][]string{{"X=true"}, {"X="}, {}, {"X=true", "Y=x"}, {"X=other", "Y=true"}, {"X=a  b", "Y= true"}}
	values := func(script string, env []string) map[string]string {
		// The file that the image has and this machine has not.
		script = strings.ReplaceAll(script, "-f /there/a", "-d /")
		cmd := exec.Command(bash, "-c", script+"\nprintf '%s\\0' \"$A\" \"$B\" \"$C\" \"$X\" \"$Y\"")
		cmd.Env = append([]string{"PATH=/usr/bin:/bin"}, env...)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v\n%s", err, script)
		}
		got := map[string]string{}
		parts := bytes.Split(out, []byte{0})
		for i, name := range []string{"A", "B", "C", "X", "Y"} {
			got[name] = string(parts[len(parts)-6+i])
		}
		return got
	}
	known, all := 0, 0
	for seed := range uint64(60) {
		script := script(seed)
		img, err := tree.FromFiles(t.Context(), nil, image.Bytes("/run.sh", 0o755, []byte("#!/bin/bash\n"+script+"exec /usr/bin/supervisord -c /s.conf\n")),
			image.Bytes("/there/a", 0o644, nil))
		if err != nil {
			t.Fatal(err)
		}
		w := shell.New(img, map[string]string{"X": "true"}) // the first of environments
		if err := w.Start(t.Context(), []string{"/run.sh"}); err != nil {
			t.Fatal(err)
		}
		if w.Supervisord != "/s.conf" || len(w.Notes) > 0 {
			t.Fatalf("seed %d: supervisord %q, notes %v\n%s", seed, w.Supervisord, w.Notes, script)
		}
		first := values(script, environments[0])
		said := map[string]shell.Variable{}
		for _, v := range w.Environment() {
			said[v.Name] = v
			want, ours := first[v.Name]
			if !ours {
				continue
			}
			all++
			if v.Known {
				known++
				if v.Value != want {
					t.Errorf("seed %d: %s is %q to the walk and %q to bash\n%s", seed, v.Name, v.Value, want, script)
				}
			}
		}
		for _, env := range environments[1:] {
			for name, got := range values(script, env) {
				if got == first[name] {
					continue
				}
				from := said[name].From
				if _, ok := said[name]; !ok {
					from = []string{name} // it is the environment's own
				}
				if !slices.Contains(from, "X") && !slices.Contains(from, "Y") {
					t.Errorf("seed %d: with %v %s is %q and not %q, but is said to depend on %v\n%s", seed, env, name, got, first[name], from, script)
				}
			}
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	if known*2 < all {
		t.Errorf("of %d variables %d are known only", all, known)
	}
}
