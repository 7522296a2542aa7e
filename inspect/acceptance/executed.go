package acceptance

import (
	"path"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/inspect/sandbox"
)

// starts maps each program of the closed image to the programs that it may start, by patterns (path.Match) of file
// names. Every program may start itself, and helpers in a directory of its own.
var starts = []struct{ by, what []string }{
	{[]string{"browser-shell"}, slices.Concat(browsers, shells, []string{"agent-browser*", "nginx", "openbox", "python3*", "supervisord", "browser-shell", "Xvnc", "Xtigervnc"})},
	{[]string{"python3*"}, []string{"browser-shell"}}, // supervisord
	{[]string{"Xvnc", "Xtigervnc"}, shells},           // for xkbcomp
	{[]string{"agent-browser*"}, append([]string{"node"}, shells...)},
	{shells, slices.Concat(browsers, wrapping, []string{"node", "xkbcomp"})},
}

var (
	browsers = []string{"browser", "chrome", "chromium*", "google-chrome*"}
	shells   = []string{"sh", "dash", "bash"}
	// wrapping lists commands in scripts that start a browser; they neither open anything nor run another program.
	wrapping = []string{"basename", "cat", "cut", "dirname", "expr", "grep", "id", "ls", "mkdir", "readlink", "sed", "tr", "uname", "which", "which.*"}
	// shared lists directories whose programs don't belong together.
	shared = []string{"/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"}
)

// Strangers returns executed files of a closed image other than its programs and those that they may start. It ignores
// files that the engine executed, for a health check or an operator.
func Strangers(executed []sandbox.Executed) []sandbox.Executed {
	return slices.DeleteFunc(slices.Clone(executed), func(e sandbox.Executed) bool {
		by, name := path.Base(e.By), path.Base(e.File)
		if by == "/" || by == "runc" || strings.HasPrefix(e.By, "/memfd:runc_cloned:") { // runc runs as a copy of itself
			return true
		}
		if e.By == e.File || path.Dir(e.By) == path.Dir(e.File) && !slices.Contains(shared, path.Dir(e.By)) || strings.HasPrefix(name, "ld-") {
			return true
		}
		return slices.ContainsFunc(starts, func(s struct{ by, what []string }) bool { return matches(s.by, by) && matches(s.what, name) })
	})
}

func matches(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		ok, _ := path.Match(p, name) // the patterns are valid
		return ok
	})
}

// executed checks the files executed since the boot.
func (b *box) executed() {
	executed, err := b.Executed()
	if err != nil {
		b.unchecked("what was executed: %v", err)
	}
	for _, e := range Strangers(executed) {
		b.addFinding("run-executed", e.File, "%s was executed, by %s", quote(e.File), quote(e.By))
	}
}

// observe records the files opened since the boot.
func (b *box) observe() {
	opened, err := b.Opened()
	if err != nil {
		b.Result.NotObserved = err
	}
	for _, o := range opened {
		if b.Result.Opened[o.File] == "" {
			b.Result.Opened[o.File] = o.By
		}
	}
}
