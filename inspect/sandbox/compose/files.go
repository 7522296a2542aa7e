package compose

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"gopkg.in/yaml.v3"

	"github.com/slimctl/slimctl/inspect/sandbox"
)

//go:embed *.tmpl
var templateFiles embed.FS

var templates = template.Must(template.New("").Funcs(template.FuncMap{
	"yaml": encode,
	// Compose and Kubernetes replace variables in text.
	"literal":  func(s string) (string, error) { return encode(strings.ReplaceAll(s, "$", "$$")) },
	"verbatim": func(s string) (string, error) { return encode(strings.ReplaceAll(s, "$(", "$$(")) },
	"volume":   volume,
	"quantity": quantity,
	"digest":   func(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) },
	"milli":    func(cpus float64) string { return strconv.FormatInt(int64(cpus*1000), 10) + "m" },
}).ParseFS(templateFiles, "*.tmpl"))

// page holds the data for the templates.
type page struct {
	Service
	// Tokens states that callers send tokens. Then there is no key: the signer of the tokens controls access.
	Tokens bool
	Pinned bool
	// At is the image's address on this machine.
	At                   string
	AuditMount, AuditDir string
	PolicyData           any

	// For the readme alone:
	Kubernetes bool
	File       string
	Paths      []string
}

// newPage returns the page of s. It returns an error if s is invalid or can't be written.
func newPage(s Service, kubernetes bool) (*page, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	p := &page{
		Tokens: s.Settings.Env[tokenName] != "", Pinned: strings.Contains(s.Image, "@sha256:"), At: fmt.Sprintf("127.0.0.1:%d", port),
		AuditMount: sandbox.AuditMount, AuditDir: sandbox.AuditDir, Kubernetes: kubernetes,
		PolicyData: map[string]any{"data": map[string]string{policyKey: string(s.Policy)}},
	}
	if !kubernetes {
		at, err := s.published()
		if err != nil {
			return nil, err
		}
		p.At = at.String()
	}
	set := &s.Settings
	s.Rootless = s.Rootless || set.User != ""
	set.CapAdd = slices.Sorted(slices.Values(set.CapAdd))
	if s.Rootless {
		set.CapAdd = nil
	}
	set.Tmpfs = slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(set.Tmpfs))), func(p string) bool {
		return !set.ReadOnly || p == sandbox.AuditMount || p == "/output" && set.Output != ""
	})
	p.Service = s
	return p, nil
}

func (p *page) render(name string) ([]byte, error) {
	var b bytes.Buffer
	if err := templates.ExecuteTemplate(&b, name, p); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// Compose returns a docker-compose.yml. It uses only features that docker-compose 1.29 supports.
func Compose(s Service) ([]byte, error) {
	p, err := newPage(s, false)
	if err != nil {
		return nil, err
	}
	return p.render("docker-compose.yml.tmpl")
}

// Kubernetes returns a manifest: the policy's ConfigMap, if there is one, a claim for the audit log, a Deployment, a
// Service of the cluster and a NetworkPolicy. It only names the Secret with the key.
func Kubernetes(s Service) ([]byte, error) {
	p, err := newPage(s, true)
	if err != nil {
		return nil, err
	}
	if s.Settings.Work != "" || s.Settings.Output != "" {
		return nil, errors.New("a Pod has no directories of this machine: mount volumes of the cluster at /work and /output instead")
	}
	if s.PolicyFile != "" && len(s.Policy) == 0 {
		return nil, fmt.Errorf("policy %s is empty", s.PolicyFile)
	}
	for _, path := range p.Settings.Tmpfs {
		if !volumeName.MatchString(volume(path)) {
			return nil, fmt.Errorf("tmpfs %q: a volume's name is made from it: use lower-case letters, digits and dashes", path)
		}
	}
	return p.render("kubernetes.yml.tmpl")
}

// plainName matches a file name that needs no quoting in a shell or Markdown.
var plainName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)

// Readme returns the page for a person who receives only the file of that name that Compose or, if kubernetes is true,
// Kubernetes made of s.
func Readme(s Service, file string, kubernetes bool) ([]byte, error) {
	p, err := newPage(s, kubernetes)
	if err != nil {
		return nil, err
	}
	if p.File = file; !plainName.MatchString(file) {
		p.File = "FILE"
	}
	for _, path := range []string{s.PolicyFile, s.Settings.Work, s.Settings.Output} {
		if path != "" && !kubernetes {
			p.Paths = append(p.Paths, strings.ReplaceAll(path, "`", "'"))
		}
	}
	return p.render("readme.md.tmpl")
}

// Settings returns the default settings of a service: the sandbox's own, published on one loopback address, such as
// 127.0.0.1:8080.
func Settings(publish string) sandbox.Settings {
	set := sandbox.Default()
	set.Publish = []string{publish}
	return set
}

// encode returns v as YAML. Text without a line break is on one line.
func encode(v any) (string, error) {
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	err := e.Encode(v)
	return strings.TrimSuffix(b.String(), "\n"), err
}

func volume(path string) string { return "tmp" + strings.ReplaceAll(path, "/", "-") }

// quantity returns bytes in the largest unit with an integral value.
func quantity(bytes int64) string {
	for _, u := range []struct {
		size int64
		name string
	}{{1 << 30, "Gi"}, {1 << 20, "Mi"}, {1 << 10, "Ki"}} {
		if bytes%u.size == 0 {
			return strconv.FormatInt(bytes/u.size, 10) + u.name
		}
	}
	return strconv.FormatInt(bytes, 10)
}
