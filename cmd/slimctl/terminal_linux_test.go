package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"golang.org/x/sys/unix"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/inspect/report"
)

// terminal opens a pseudo-terminal of so many columns: what is written to the one comes out of the other.
func terminal(t *testing.T, columns uint16) (writer, reader *os.File) {
	t.Helper()
	reader, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = reader.Close() })
	fd := int(reader.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	writer, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = writer.Close() })
	if err := unix.IoctlSetWinsize(int(writer.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}); err != nil {
		t.Fatal(err)
	}
	return writer, reader
}

func TestReportFlags(t *testing.T) {
	wide, _ := terminal(t, 132)
	sizeless, _ := terminal(t, 0)
	for _, tt := range []struct {
		name   string
		stdout io.Writer
		env    map[string]string
		flags  reportFlags
		want   report.Options
	}{
		{"a terminal", wide, nil, reportFlags{}, report.Options{Width: 132, Color: true}},
		{"a terminal that is asked for no colours", wide, nil, reportFlags{color: "never"}, report.Options{Width: 132}},
		{"NO_COLOR", wide, map[string]string{"NO_COLOR": "1"}, reportFlags{}, report.Options{Width: 132}},
		{"NO_COLOR, but asked for", wide, map[string]string{"NO_COLOR": "1"}, reportFlags{color: "always"}, report.Options{Width: 132, Color: true}},
		{"a terminal that has no colours", wide, map[string]string{"TERM": "dumb"}, reportFlags{}, report.Options{Width: 132}},
		{"a terminal that doesn't know its size", sizeless, map[string]string{"COLUMNS": "90"}, reportFlags{}, report.Options{Width: 90, Color: true}},
		{"standard output by its other name", wide, nil, reportFlags{file: "-"}, report.Options{Width: 132, Color: true}},
		{"a pipe", io.Discard, nil, reportFlags{}, report.Options{}},
		{"a pipe with columns", io.Discard, map[string]string{"COLUMNS": "80"}, reportFlags{}, report.Options{Width: 80}},
		{"columns that are none", io.Discard, map[string]string{"COLUMNS": "-3"}, reportFlags{}, report.Options{}},
		{"a pipe for which colours are asked", io.Discard, nil, reportFlags{color: "always"}, report.Options{Color: true}},
		{"a file never", wide, nil, reportFlags{file: "report.txt", color: "always"}, report.Options{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for k, v := range map[string]string{"NO_COLOR": "", "COLUMNS": "", "TERM": "xterm"} {
				if set, ok := tt.env[k]; ok {
					v = set
				}
				t.Setenv(k, v)
			}
			f := tt.flags
			f.format = report.Text
			if f.color == "" {
				f.color = "auto"
			}
			f.detectTerminal(tt.stdout)
			if !reflect.DeepEqual(f.options, tt.want) {
				t.Errorf("got %+v, want %+v", f.options, tt.want)
			}
		})
	}
}

// TestTerminalIsSafe prints an image whose every name would move the cursor, on a terminal with colours.
func TestTerminalIsSafe(t *testing.T) {
	t.Setenv("NO_COLOR", "")
	t.Setenv("TERM", "xterm")
	const evil = "\x1b[2J\x1b]0;owned\a\u009b31m\u202e"
	l, err := image.NewLayer([]image.File{image.Bytes("/"+evil+"/"+evil, 0o4755, []byte(evil))})
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.Append(empty.Image, mutate.Addendum{Layer: l, History: v1.History{CreatedBy: evil}})
	if err == nil {
		img, err = mutate.ConfigFile(img, &v1.ConfigFile{
			OS: "linux", Architecture: "amd64", History: []v1.History{{CreatedBy: evil}}, RootFS: configOf(t, img).RootFS,
			Config: v1.Config{Entrypoint: []string{evil}, User: evil, Env: []string{"A" + evil + "=" + evil}, Labels: map[string]string{evil: evil}},
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "evil")
	at, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = at.AppendImage(img)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"inspect", "oci:" + dir},
		{"inspect", "--all", "oci:" + dir},
		{"diff", "--layers", "standin:A", "oci:" + dir, "--platform", "linux/amd64"},
		{"diff", "--all", "standin:A", "oci:" + dir, "--platform", "linux/amd64"},
	} {
		t.Run(strings.Join(args[:2], " "), func(t *testing.T) {
			writer, reader := terminal(t, 100)
			shown := make(chan string)
			go func() {
				data, _ := io.ReadAll(reader) // it ends with an error when the writer is closed
				shown <- string(data)
			}()
			code := run(t.Context(), append(args, "--progress", "quiet"), writer, io.Discard)
			if err := writer.Close(); err != nil || code != exitOK {
				t.Fatalf("exit code %d, %v", code, err)
			}
			out := <-shown
			if !strings.Contains(out, "\x1b[1m") {
				t.Errorf("no colours in %q", out)
			}
			rest := regexp.MustCompile("\x1b\\[(0|1|2|3[1-6])m|\r\n").ReplaceAllString(out, "")
			if i := strings.IndexFunc(rest, func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 || r == 0x202e }); i >= 0 {
				t.Errorf("it reaches the terminal: %q", rest[max(0, i-60):min(len(rest), i+60)])
			}
			if !strings.Contains(rest, `\x1b[2J`) {
				t.Error("what was quoted can't be seen")
			}
		})
	}
}

// TestContainerOnTerminal: what a container prints comes to a terminal with its colours, and without what moves the cursor, sets
// the title or fills the clipboard, however it is cut into pieces. A pipe and a file get all bytes.
func TestContainerOnTerminal(t *testing.T) {
	const text = "a\tb \x1b[1;31mred\x1b[m ✓ é\n"
	const evil = text + "\x1b[2J\x1b]52;c;cm0=\a\x1b[6n\u009b31m\u202e\x9b\xff\x1bc\x1b[" + "\x1b[" // the end of a sequence never comes
	for size := 1; size <= len(evil); size++ {
		writer, reader := terminal(t, 100)
		out := filterForTerminal(writer)
		for piece := range slices.Chunk([]byte(evil), size) {
			if n, err := out.Write(piece); n != len(piece) || err != nil {
				t.Fatalf("%d of %d bytes, %v", n, len(piece), err)
			}
		}
		if err := writer.Close(); err != nil {
			t.Fatal(err)
		}
		data, _ := io.ReadAll(reader) // it ends with an error when the writer is closed
		got, good := strings.CutPrefix(strings.ReplaceAll(string(data), "\r\n", "\n"), text)
		if bad := strings.IndexFunc(got, func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 || r == 0x202e }); !good || bad >= 0 || !utf8.ValidString(got) {
			t.Errorf("in pieces of %d: %q", size, data)
		}
		writer.Close()
		reader.Close()
	}
	var pipe strings.Builder
	if _, err := io.WriteString(filterForTerminal(&pipe), evil); err != nil || pipe.String() != evil {
		t.Errorf("%q, %v", pipe.String(), err)
	}
}

func configOf(t *testing.T, img v1.Image) *v1.ConfigFile {
	t.Helper()
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestResultStays runs each command that prints a result with bars on one terminal: once the result began nothing moves the
// cursor, which would erase it.
func TestResultStays(t *testing.T) {
	t.Setenv("NO_COLOR", "1")
	t.Setenv("TERM", "xterm")
	moves := regexp.MustCompile("\x1b\\[[0-9;]*[A-HJKSTf]")
	for _, tt := range []struct {
		name, result string
		args         func(dir string) []string
	}{
		{"build", `sha256:[0-9a-f]{64}`, func(dir string) []string {
			return []string{"build", "--output", "type=oci,dest=" + filepath.Join(dir, "out")} // bars for layers just before the end
		}},
		{"plan", `linux/amd64: profile l0`, func(string) []string { return []string{"plan"} }},
		{"plan as JSON", `\[`, func(string) []string { return []string{"plan", "--format", "json"} }},
		{"lock", `\S+/my\.lock`, func(dir string) []string { return []string{"lock", "-o", filepath.Join(dir, "my.lock")} }},
		{"dockerfile", `\S+/ctx`, func(dir string) []string {
			return []string{"dockerfile", "-o", filepath.Join(dir, "ctx"), "--from", "registry.test/aio"}
		}},
		{"inspect", `image +standin:B`, func(string) []string { return []string{"inspect", "standin:B"} }},
		{"verify", `error`, func(string) []string { return []string{"verify", "standin:B"} }},
		{"why", `linux/amd64: `, func(string) []string { return []string{"why", "standin:B", "/etc/passwd"} }},
		{"diff", `base +standin:B`, func(string) []string { return []string{"diff", "standin:B", "standin:B"} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			writer, reader := terminal(t, 100)
			shown := make(chan string)
			go func() {
				data, _ := io.ReadAll(reader) // it ends with an error when the writer is closed
				shown <- string(data)
			}()
			args := append(tt.args(t.TempDir()), "--platform", "linux/amd64", "--progress", "tty")
			if !strings.Contains(strings.Join(args, " "), "standin:") {
				args = append(args, "--base", "standin:B")
			}
			code := run(t.Context(), args, writer, writer)
			if err := writer.Close(); err != nil {
				t.Fatal(err)
			}
			out := <-shown
			at := regexp.MustCompile(`(?m)^(\x1b\[[0-9]*[AJ]|\r)*` + tt.result).FindStringIndex(out)
			if at == nil {
				t.Fatalf("exit code %d, and no result: %q", code, out)
			}
			if erased := moves.FindString(out[at[1]:]); erased != "" {
				t.Errorf("%q comes after the result: %q", erased, out[max(0, at[0]-80):])
			}
		})
	}
}
