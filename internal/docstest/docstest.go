// Package docstest runs the commands of a Markdown page and compares their output with the page. [Run] is its only
// function.
//
// The page's console blocks are run one after the other in one directory:
//
//	```console
//	$ slimctl build --profile l0 --base standin:B --output type=oci,dest=out
//	sha256:…
//	```
//
// A line that begins with "$ " is a command, which continues while lines end in a backslash. The lines up to the next
// command are its expected standard output and error. There, … stands for any text in a line, and a line with only …
// stands for any lines. The output of a command without such lines isn't checked. A last line "[exit 3]" is the expected
// exit status. One bash runs all commands of a page, so variables persist; background processes are ended with it.
// Blocks in HTML comments are run, too, for steps that a reader has done already.
//
// A block with a file name, as in "```yaml file=my.yaml", is written to that file. Other blocks are ignored.
package docstest

import (
	"bufio"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Options configures [Run].
type Options struct {
	// Dir is the working directory of the commands, and of the files to write.
	Dir string
	// Env is the environment of the commands.
	Env []string
	// Replace holds pairs of old and new text. Run replaces the old by the new in files and commands, and the new by
	// the old in the output. For example, a page names a public registry, and a test runs it with a private one.
	Replace []string
}

// block is a fenced block of a page.
type block struct {
	line  int // line of the fence, from 1
	info  string
	lines []string
}

// Run runs a page. It ends the test at the first command whose output or exit status differs from the page, and names
// the page's line.
func Run(t testing.TB, page string, o Options) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	there := strings.NewReplacer(o.Replace...)
	var reversed []string
	for i := 0; i+1 < len(o.Replace); i += 2 {
		reversed = append(reversed, o.Replace[i+1], o.Replace[i])
	}
	back := strings.NewReplacer(reversed...)
	ran := 0
	var sh *shell
	for _, b := range parseBlocks(string(text)) {
		if name, ok := fileOf(b.info); ok {
			content := there.Replace(strings.Join(b.lines, "\n") + "\n")
			file := filepath.Join(o.Dir, filepath.FromSlash(name))
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if strings.Fields(b.info + " -")[0] != "console" {
			continue
		}
		for _, s := range parseSteps(b) {
			ran++
			where := fmt.Sprintf("%s:%d", page, s.line)
			if sh == nil {
				sh = startShell(t, o)
			}
			out, exit, err := sh.run(there.Replace(s.command))
			got := back.Replace(out)
			if err != nil {
				t.Fatalf("%s: %v, after\n$ %s\n%s", where, err, s.command, got)
			}
			if exit != s.exit {
				t.Fatalf("%s: exit status %d, want %d, of\n$ %s\n%s", where, exit, s.exit, s.command, got)
			}
			if len(s.output) > 0 && !pattern(s.output).MatchString(got) {
				t.Fatalf("%s: the page doesn't say what this prints:\n$ %s\n%s\nwant\n%s", where, s.command, got, strings.Join(s.output, "\n"))
			}
		}
	}
	if ran == 0 {
		t.Fatalf("%s has no console block", page)
	}
}

// shell is a bash that runs one command after the other.
type shell struct {
	in  io.WriteCloser
	out *bufio.Reader
	end string // a line printed after each command's output, followed by the exit status
}

func startShell(t testing.TB, o Options) *shell {
	t.Helper()
	cmd := exec.Command("bash", "-o", "pipefail")
	cmd.Dir, cmd.Env = o.Dir, o.Env
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = write, write
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	t.Cleanup(func() {
		_, _ = io.WriteString(in, "kill $(jobs -p) 2>/dev/null; wait\n")
		in.Close()
		_ = cmd.Wait()
		read.Close()
	})
	return &shell{in: in, out: bufio.NewReader(read), end: rand.Text()}
}

// run returns the output of a command and its exit status.
func (s *shell) run(command string) (output string, exit int, err error) {
	check := exec.Command("bash", "-n") // an open quote would make bash wait forever
	check.Stdin = strings.NewReader(command + "\n")
	if said, err := check.CombinedOutput(); err != nil {
		return string(said), 0, err
	}
	if _, err := fmt.Fprintf(s.in, "%s\nprintf '\\n%s %%d\\n' $?\n", command, s.end); err != nil {
		return "", 0, err
	}
	var out strings.Builder
	for {
		line, err := s.out.ReadString('\n')
		if err != nil {
			return out.String() + line, 0, fmt.Errorf("the shell ended: %w", err)
		}
		if status, ok := strings.CutPrefix(line, s.end+" "); ok {
			exit, err := strconv.Atoi(strings.TrimSpace(status))
			output = strings.TrimSuffix(out.String(), "\n")
			if output != "" && !strings.HasSuffix(output, "\n") {
				output += "\n"
			}
			return output, exit, err
		}
		out.WriteString(line)
	}
}

var fence = regexp.MustCompile("^(```+)(.*)$")

// parseBlocks returns the fenced blocks of a page in order.
func parseBlocks(text string) []block {
	var blocks []block
	end := ""
	for i, line := range strings.Split(text, "\n") {
		m := fence.FindStringSubmatch(line)
		switch {
		case end == "" && m != nil:
			end = m[1]
			blocks = append(blocks, block{line: i + 1, info: strings.TrimSpace(m[2])})
		case end != "" && strings.TrimRight(line, " ") == end:
			end = ""
		case end != "":
			b := &blocks[len(blocks)-1]
			b.lines = append(b.lines, line)
		}
	}
	return blocks
}

// fileOf returns the file in a block's info string, file=NAME.
func fileOf(info string) (name string, ok bool) {
	for _, word := range strings.Fields(info) {
		if name, ok = strings.CutPrefix(word, "file="); ok {
			return name, true
		}
	}
	return "", false
}

// step is one command with its expected output.
type step struct {
	line    int
	command string
	output  []string
	exit    int
}

var exitLine = regexp.MustCompile(`^\[exit (\d+)\]$`)

// parseSteps returns the commands of a console block.
func parseSteps(b block) []step {
	var steps []step
	for i := 0; i < len(b.lines); i++ {
		command, ok := strings.CutPrefix(b.lines[i], "$ ")
		if ok {
			s := step{line: b.line + i + 1, command: command}
			for strings.HasSuffix(b.lines[i], `\`) && i+1 < len(b.lines) {
				i++
				s.command += "\n" + b.lines[i]
			}
			steps = append(steps, s)
			continue
		}
		if len(steps) == 0 {
			continue
		}
		s := &steps[len(steps)-1]
		if m := exitLine.FindStringSubmatch(b.lines[i]); m != nil {
			s.exit, _ = strconv.Atoi(m[1])
			continue
		}
		s.output = append(s.output, b.lines[i])
	}
	return steps
}

// pattern returns a regular expression for the expected output.
func pattern(lines []string) *regexp.Regexp {
	var re strings.Builder
	re.WriteString(`^`)
	for _, line := range lines {
		if strings.TrimSpace(line) == "…" {
			re.WriteString(`(?:.*\n)*?`)
			continue
		}
		re.WriteString(`[ \t]*`)
		for i, part := range strings.Split(strings.TrimSpace(line), "…") {
			if i > 0 {
				re.WriteString(`.*?`)
			}
			// Columns may be wider or narrower than in the page.
			words := strings.Fields(part)
			for j, w := range words {
				words[j] = regexp.QuoteMeta(w)
			}
			if strings.TrimLeft(part, " \t") != part {
				re.WriteString(`[ \t]*`)
			}
			re.WriteString(strings.Join(words, `[ \t]+`))
			if strings.TrimRight(part, " \t") != part {
				re.WriteString(`[ \t]*`)
			}
		}
		re.WriteString(`[ \t]*\n`)
	}
	re.WriteString(`$`)
	return regexp.MustCompile(re.String())
}
