package nginx

import (
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// told is everything that the model says of a configuration, one thing a line.
func told(c *Config) []string {
	out := []string{"variant " + c.Variant}
	for _, r := range c.Routes() {
		line := fmt.Sprintf("%s | %s | %s |", r.Server, r.Path, words(r.Target, r.Auth))
		if r.Public {
			line += " public"
		}
		if r.Answers {
			line += " answers"
		}
		if r.Answers && !r.Open {
			line += " closed"
		}
		out = append(out, line)
		for _, o := range r.Also {
			line := "..."
			for _, when := range o.When {
				line += " when " + when
			}
			for _, via := range o.Via {
				line += " via " + via
			}
			out = append(out, line+": "+words(o.Target, o.Auth))
		}
	}
	for _, m := range c.Maps {
		out = append(out, strings.TrimSpace(fmt.Sprintf("map %s %s: parts %s, decides %s",
			m.Source, m.Variable, strings.Join(m.Parts, " "), strings.Join(m.Decides, " "))))
	}
	for _, i := range c.Includes {
		line := fmt.Sprintf("include %s %s", i.Place, i.Pattern)
		if i.Glob {
			line += " glob " + strings.Join(i.Files, " ")
		}
		if i.Missing {
			line += " missing"
		}
		out = append(out, strings.TrimSpace(line))
	}
	for _, n := range c.Notes {
		out = append(out, "note "+n.String())
	}
	return out
}

func words(t Target, auth string) string {
	out := []string{t.Kind, t.Value}
	switch {
	case t.Kind == Proxy:
		out = append([]string{t.Kind}, t.Addresses...)
	case t.Kind == Return:
		out = []string{t.Kind, strconv.Itoa(t.Status)}
	case t.Addresses != nil:
		out = append(append(out, "to"), t.Addresses...)
	}
	for _, flag := range []struct {
		is   bool
		word string
	}{{t.RawURI, "raw"}, {t.Free, "free"}, {t.Escapes, "escapes"}} {
		if flag.is {
			out = append(out, flag.word)
		}
	}
	out = append(out, t.Chosen...)
	if auth != "" {
		out = append(out, "asks", auth)
	}
	return strings.Join(out, " ")
}

// TestHoles plants each hole of the base in a small configuration. The files in testdata/holes tell what the model has to say
// of it.
func TestHoles(t *testing.T) {
	files, err := filepath.Glob("testdata/holes/*.txtar")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			var content []image.File
			for _, f := range archive.Files {
				content = append(content, image.Bytes("/"+f.Name, 0o644, f.Data))
			}
			im, err := tree.FromFiles(t.Context(), nil, content...)
			if err != nil {
				t.Fatal(err)
			}
			o, variants := Options{Env: map[string]string{}, Rendered: map[string][]Template{}}, 1
			var asked []string
			for line := range strings.Lines(string(archive.Comment)) {
				line = strings.TrimSuffix(line, "\n")
				verb, rest, _ := strings.Cut(line, " ")
				switch verb {
				case "env":
					k, v, _ := strings.Cut(rest, "=")
					o.Env[k] = v
				case "rendered":
					output, from, _ := strings.Cut(rest, " from ")
					from, once := strings.CutSuffix(from, " once")
					if from == "nothing" {
						from = ""
					}
					o.Rendered[output] = append(o.Rendered[output], Template{Path: from, Once: once})
				case "variants":
					variants, _ = strconv.Atoi(rest)
				case "says", "silent", "match", "server", "shared", "at":
					asked = append(asked, line)
				}
			}
			configs, err := Read(t.Context(), im, "/nginx.conf", o)
			if err != nil || len(configs) != variants {
				t.Fatalf("%d variants, %v", len(configs), err)
			}
			last := &configs[len(configs)-1]
			said := ""
			for i := range configs {
				said += strings.Join(told(&configs[i]), "\n") + "\n"
			}
			if len(asked) == 0 {
				t.Fatal("nothing is asked")
			}
			for _, line := range asked {
				verb, rest, _ := strings.Cut(line, " ")
				ok := false
				switch verb {
				case "says":
					ok = strings.Contains("\n"+said, "\n"+rest+"\n")
				case "silent":
					ok = !strings.Contains(said, rest)
				case "match":
					question, want, _ := strings.Cut(rest, " = ")
					f := strings.Fields(question)
					s := serverAt(t, last, f[0], f[1])
					l, valid := s.MatchURI(f[2])
					ok = valid && l != nil && l.Path() == want
				case "server":
					question, want, _ := strings.Cut(rest, " = ")
					f := strings.Fields(question)
					ok = serverAt(t, last, f[0], f[1]).Label() == want
				case "shared":
					f := strings.Fields(rest)
					for _, s := range last.Sockets() {
						ok = ok || s.String() == f[0] && strconv.Itoa(len(s.Servers)) == f[1]
					}
				case "at":
					f := strings.Fields(rest)
					for _, r := range last.Routes() {
						ok = ok || r.Path == f[0] && r.Place.String() == f[1]
					}
				}
				if !ok {
					t.Errorf("not so: %s", line)
				}
			}
			if t.Failed() {
				t.Log("the model says:\n" + said)
			}
		})
	}
}

func serverAt(t *testing.T, c *Config, socket, host string) *Server {
	t.Helper()
	address, port, err := net.SplitHostPort(socket)
	if err != nil {
		t.Fatal(err)
	}
	n, _ := strconv.Atoi(port)
	s := c.Server(address, n, host)
	if s == nil {
		t.Fatalf("no server for %s at %s", host, socket)
	}
	return s
}
