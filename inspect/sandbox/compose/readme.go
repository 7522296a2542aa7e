package compose

import (
	_ "embed"
	"fmt"
	"regexp"
	"strings"
	"text/template"

	"github.com/slimctl/slimctl/inspect/sandbox"
)

//go:embed readme.md.tmpl
var readmeText string

var readmeTemplate = template.Must(template.New("readme").Parse(readmeText))

// plainName is a file name that a shell and Markdown take as it is.
var plainName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)

// Readme returns the page for a person who receives only the file that Compose or, if kubernetes is true, Kubernetes made of
// s, named file.
func Readme(s Service, file string, kubernetes bool) ([]byte, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if !plainName.MatchString(file) {
		file = "FILE"
	}
	v := struct {
		Kubernetes, Tokens                                             bool
		File, Image, Name, Namespace, KeyName, At, LocalPort, AuditDir string
		Port                                                           int
		Paths                                                          []string
	}{
		Kubernetes: kubernetes, Tokens: s.takesTokens(), File: file, Image: s.Image, Name: s.Name, KeyName: keyName, Port: port, AuditDir: sandbox.AuditDir,
		At: fmt.Sprintf("127.0.0.1:%d", port), LocalPort: fmt.Sprint(port),
	}
	if s.Namespace != "" {
		v.Namespace = " -n " + s.Namespace
	}
	if !kubernetes {
		at, err := s.published()
		if err != nil {
			return nil, err
		}
		v.At = at.String()
		for _, p := range []string{s.PolicyFile, s.Settings.Work, s.Settings.Output} {
			if p != "" {
				v.Paths = append(v.Paths, strings.ReplaceAll(p, "`", "'"))
			}
		}
	}
	var b strings.Builder
	err := readmeTemplate.Execute(&b, v)
	return []byte(b.String()), err
}
