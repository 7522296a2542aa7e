// Package compose writes the settings of a sandbox as files for other tools: a docker-compose.yml and a Kubernetes
// manifest. No file contains a key, nothing listens beyond loopback or the cluster, and the same service gives the same
// bytes.
package compose

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/slimctl/slimctl/inspect/sandbox"
	"github.com/slimctl/slimctl/server/policy"
)

// Constants of the closed image.
const (
	port      = 8080
	policyKey = "policy.json"
	account   = 1000 // the uid and gid of a start without root
	keyName   = "SANDBOX_API_KEY"
	tokenName = "JWT_PUBLIC_KEY"
)

// maxPolicy limits a policy file: a ConfigMap is limited to 1 MiB in total.
const maxPolicy = 512 << 10

// Service is the closed image as a long-running service.
type Service struct {
	// Image is a registry reference, preferably with its digest.
	Image string
	// Name is the name of the service and of all objects: a DNS label of at most 40 characters, which leaves room for
	// suffixes.
	Name string
	// Namespace is the Kubernetes namespace; empty for kubectl's default.
	Namespace string
	// Settings apply with three exceptions. A service has no Timeout. It has a Network of its own, since a browser
	// without a network shows nothing. Output is the directory for /output itself, not for a copy at the end. Publish
	// is one loopback address with a port, such as 127.0.0.1:8080.
	Settings sandbox.Settings
	// Rootless starts the image as uid 1000, which needs no capability.
	Rootless bool
	// PolicyFile is an absolute path on this machine, and Policy its content; empty for the policy in the image.
	PolicyFile string
	Policy     []byte
	// Private lists the private ranges that Policy opens, for the NetworkPolicy.
	Private []policy.PrivateRange
}

var label = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$`)

// volumeName matches the volume names that Kubernetes allows (RFC 1123).
var volumeName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// check refuses settings that can't be written, or would open more than they state.
func (s Service) check() error {
	if err := checkImage(s.Image); err != nil {
		return err
	}
	if !label.MatchString(s.Name) {
		return fmt.Errorf("name %q: use at most 40 lower-case letters, digits and dashes, a letter first", s.Name)
	}
	if s.Namespace != "" && !label.MatchString(s.Namespace) {
		return fmt.Errorf("namespace %q: use at most 40 lower-case letters, digits and dashes, a letter first", s.Namespace)
	}
	set := s.Settings
	if set.Memory <= 0 || set.CPUs <= 0 || set.PIDs <= 0 || set.ShmSize <= 0 {
		return errors.New("memory, CPUs, PIDs and the size of /dev/shm need a limit each")
	}
	if !set.NoNewPrivileges {
		return errors.New("no_new_privileges can't be left out")
	}
	if s.Rootless && set.User != "" {
		return fmt.Errorf("user %q: a start without root is always as %d:%d", set.User, account, account)
	}
	if set.User != "" && set.User != fmt.Sprintf("%d:%d", account, account) {
		return fmt.Errorf("user %q: the closed image starts as root or as %d:%d", set.User, account, account)
	}
	for _, c := range set.CapAdd {
		if !slices.Contains(sandbox.CapsNeeded, c) {
			return fmt.Errorf("capability %q: the closed image uses none but %s", c, strings.Join(sandbox.CapsNeeded, ", "))
		}
	}
	for _, p := range set.Tmpfs {
		if !filepath.IsAbs(p) || filepath.Clean(p) != p || strings.Contains(p, ":") || checkText(p) != nil {
			return fmt.Errorf("tmpfs %q: want a clean absolute path without a colon", p)
		}
	}
	for _, p := range []string{s.PolicyFile, set.Work, set.Output} {
		if err := checkHostPath(p); err != nil {
			return err
		}
	}
	if len(s.Policy) > maxPolicy {
		return fmt.Errorf("policy of %d bytes: a manifest takes at most %d", len(s.Policy), maxPolicy)
	}
	if !utf8.Valid(s.Policy) {
		return errors.New("the policy isn't UTF-8 text")
	}
	for _, word := range set.Command {
		if err := checkText(word); err != nil {
			return fmt.Errorf("command: %w", err)
		}
	}
	return checkEnv(set.Env)
}

func checkImage(ref string) error {
	kind, rest, _ := strings.Cut(ref, ":")
	if kind == "docker-daemon" {
		return fmt.Errorf("image %q: Docker knows its images without docker-daemon: in front; give %s", ref, rest)
	}
	if kind == "oci" || strings.HasSuffix(kind, "-archive") {
		return fmt.Errorf("image %q: Docker and Kubernetes take images from a registry; push it and give HOST/REPO@DIGEST", ref)
	}
	if _, err := name.ParseReference(ref, name.WeakValidation); err != nil { // also limits the characters
		return fmt.Errorf("image %q: %w", ref, err)
	}
	return nil
}

// checkHostPath also accepts an empty path. Quoted YAML can contain any text, but the path must not mislead a human
// reader.
func checkHostPath(p string) error {
	if p == "" {
		return nil
	}
	if !filepath.IsAbs(p) || filepath.Clean(p) != p {
		return fmt.Errorf("path %q: want a clean absolute path", p)
	}
	if err := checkText(p); err != nil {
		return fmt.Errorf("path %q: %w", p, err)
	}
	return nil
}

func checkText(s string) error {
	if !utf8.ValidString(s) {
		return errors.New("not UTF-8")
	}
	if strings.ContainsFunc(s, func(r rune) bool {
		return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
	}) {
		return errors.New("contains control characters")
	}
	return nil
}

// settable lists the image's variables without secrets.
var settable = []string{"TZ", "SLIM_SCREEN", "SLIM_LANG", "TICKET_TTL_SECONDS", tokenName, "JWT_AUDIENCE", "JWT_ISSUER"}

func checkEnv(env map[string]string) error {
	for k, v := range env {
		if k == keyName {
			return fmt.Errorf("%s is never written into a file: leave it out, and set it in the environment or in a Secret", keyName)
		}
		if !slices.Contains(settable, k) {
			return fmt.Errorf("variable %q: the closed image reads none but %s and %s", k, keyName, strings.Join(settable, ", "))
		}
		if err := checkText(v); err != nil {
			return fmt.Errorf("variable %s: %w", k, err)
		}
	}
	return nil
}

// published returns the address of this machine at which the image answers.
func (s Service) published() (netip.AddrPort, error) {
	if len(s.Settings.Publish) != 1 {
		return netip.AddrPort{}, fmt.Errorf("publish %q: want one address, such as 127.0.0.1:%d", s.Settings.Publish, port)
	}
	text := s.Settings.Publish[0]
	a, err := netip.ParseAddrPort(text)
	if err != nil || a.Addr().Zone() != "" || a.Port() == 0 {
		return a, fmt.Errorf("port %q: want an IP address and a port, such as 127.0.0.1:%d", text, port)
	}
	if !a.Addr().IsLoopback() {
		return a, fmt.Errorf("port %q: the image speaks plain HTTP, so only this machine may reach it; let a proxy with TLS in front of it serve others", text)
	}
	return a, nil
}
