package compose

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/slimctl/slimctl/inspect/sandbox"
)

// The part of the Compose specification that is used (compose-spec/compose-spec, 05-services.md), no more than
// docker-compose 1.29 has. Field order is that of the file.
type composeFile struct {
	Services map[string]composeService `yaml:"services"`
	Volumes  map[string]struct{}       `yaml:"volumes"`
}

type composeService struct {
	Image       string            `yaml:"image"`
	Restart     string            `yaml:"restart"`
	User        string            `yaml:"user,omitempty"`
	Environment map[string]string `yaml:"environment"`
	Ports       []string          `yaml:"ports"`
	ReadOnly    bool              `yaml:"read_only"`
	Tmpfs       []string          `yaml:"tmpfs,omitempty"`
	Volumes     []composeVolume   `yaml:"volumes,omitempty"`
	CapDrop     []string          `yaml:"cap_drop"`
	CapAdd      []string          `yaml:"cap_add,omitempty"`
	SecurityOpt []string          `yaml:"security_opt"`
	ShmSize     int64             `yaml:"shm_size"`
	MemLimit    int64             `yaml:"mem_limit"`
	MemSwap     int64             `yaml:"memswap_limit"`
	CPUs        float64           `yaml:"cpus"`
	PIDsLimit   int64             `yaml:"pids_limit"`
	Command     []string          `yaml:"command,omitempty"`
}

type composeVolume struct {
	Type     string `yaml:"type"`
	Source   string `yaml:"source"`
	Target   string `yaml:"target"`
	ReadOnly bool   `yaml:"read_only"`
}

// Compose gives a docker-compose.yml.
func Compose(s Service) ([]byte, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	at, err := s.published()
	if err != nil {
		return nil, err
	}
	set := s.Settings
	c := composeService{
		Image: s.Image, Restart: "unless-stopped",
		Environment: map[string]string{},
		Ports:       []string{fmt.Sprintf("%s:%d", at, port)},
		ReadOnly:    set.ReadOnly,
		CapDrop:     []string{"ALL"}, CapAdd: s.caps(), SecurityOpt: []string{"no-new-privileges:true"},
		ShmSize: set.ShmSize, MemLimit: set.Memory, MemSwap: set.Memory, CPUs: set.CPUs, PIDsLimit: set.PIDs,
	}
	service := "services/" + s.Name + "/"
	comments := map[string]string{
		service + "image":         imageComment(s),
		service + "ports":         "Only this machine: the image speaks plain HTTP. A proxy with TLS may serve others.",
		service + "read_only":     "Nothing in the image can be changed; what has to be written goes away with the container.",
		service + "security_opt":  "No program gains rights by a set-user-id file. Docker's own seccomp profile is in force as long as none is named here.",
		service + "shm_size":      "Chromium keeps what its processes share in /dev/shm, and crashes when it is full.",
		service + "memswap_limit": "As much as mem_limit: no swap.",
		service + "pids_limit":    "A page can't use up the machine's processes.",
	}
	if s.takesTokens() {
		comments[service+"environment"] = "Callers show a token that this key checks; it is public."
	} else {
		c.Environment[keyName] = "${" + keyName + ":?set it to a long random text}"
		comments[service+"environment"] = "The key is taken from the shell, or from .env beside this file, and never written here."
	}
	for k, v := range set.Env {
		c.Environment[k] = literal(v)
	}
	for _, word := range set.Command {
		if err := checkText(word); err != nil {
			return nil, fmt.Errorf("command: %w", err)
		}
		c.Command = append(c.Command, literal(word))
	}
	if s.rootless() {
		c.User = fmt.Sprintf("%d:%d", account, account)
		comments[service+"user"] = "All programs run as this account, and need no capability."
		comments[service+"cap_drop"] = "None is needed by this user."
	} else if len(c.CapAdd) > 0 {
		comments[service+"cap_add"] = "To make the directories of the image's two accounts, change to these, and end their programs."
	}
	for _, p := range s.writable() {
		c.Tmpfs = append(c.Tmpfs, tmpfs(s, p))
	}
	if len(c.Tmpfs) > 0 {
		comments[service+"tmpfs"] = "These count as memory of the container."
	}
	for _, v := range []struct {
		source, target, why string
		readOnly            bool
	}{
		{s.PolicyFile, policyPath, "The policy that says what the tool may do; the tool can't change it.", true},
		{set.Work, "/work", "Files for the tool to read.", true},
		{set.Output, "/output", "Screenshots and other results. The directory has to be writable for the image's accounts (1000 and 1001).", false},
	} {
		if v.source == "" {
			continue
		}
		comments[service+"volumes/"+strconv.Itoa(len(c.Volumes))] = v.why
		c.Volumes = append(c.Volumes, composeVolume{Type: "bind", Source: literal(v.source), Target: v.target, ReadOnly: v.readOnly})
	}
	comments[service+"volumes/"+strconv.Itoa(len(c.Volumes))] = "The audit log, which outlasts the container. Read it with: docker compose cp " + s.Name + ":" + sandbox.AuditDir + " ."
	c.Volumes = append(c.Volumes, composeVolume{Type: "volume", Source: auditVolume, Target: sandbox.AuditMount})
	start := keyName + "=… docker compose up --detach --wait"
	if s.takesTokens() {
		start = "docker compose up --detach --wait"
	}
	head := fmt.Sprintf(`The closed browser image as a Docker Compose service. Start it with
  %s
and connect an MCP client to http://%s/mcp, a person's browser to http://%[2]s/vnc/.
The image brings its own health check, which --wait heeds. With docker-compose 1.29 leave --wait out.
The network is an ordinary one, with a way out. The browser takes only the way through the egress proxy in the container,
which refuses private addresses and what the policy doesn't allow. "slimctl run" leaves a container no other way.
`, start, at)
	return encode(head, document{composeFile{Services: map[string]composeService{s.Name: c}, Volumes: map[string]struct{}{auditVolume: {}}}, comments})
}

// auditVolume is the name of the volume that has the audit log.
const auditVolume = "audit"

// tmpfs gives a path with its mount options. Docker adds noexec, nosuid and nodev.
func tmpfs(s Service, path string) string {
	options := "mode=0755"
	switch {
	case path == "/tmp":
		options = "mode=1777"
	case s.rootless(): // it can't give itself what root owns
		options = fmt.Sprintf("mode=0755,uid=%d,gid=%d", account, account)
	}
	return path + ":" + options
}

// literal keeps Compose from putting the value of a variable into text.
func literal(s string) string { return strings.ReplaceAll(s, "$", "$$") }

func imageComment(s Service) string {
	if s.pinned() {
		return "By digest: these bytes and no others."
	}
	return "Not pinned: whoever may push this tag chooses what runs. Give the image as NAME@sha256:…"
}

// Settings are those of a service: the sandbox's own, published on one address of loopback, such as 127.0.0.1:8080.
func Settings(publish string) sandbox.Settings {
	set := sandbox.Default()
	set.Publish = []string{publish}
	return set
}
