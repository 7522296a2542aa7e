package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slimctl/slimctl/server/policy"
)

// Publication maps an address of the host to a TCP port of the container.
type Publication struct {
	Host netip.AddrPort `json:"host"` // port 0: any free one
	Port uint16         `json:"port"` // 0: 8080 for an image that slimctl built, otherwise the host's port
}

// ParsePublish parses PORT, a port of the host alone, or [ADDRESS:]PORT:PORT[/tcp] like docker run's -p. The default
// address is 127.0.0.1, not every address of the host. Host port 0, or none after an address, means any free one.
func ParsePublish(s string) (Publication, error) {
	rest, proto, ok := strings.Cut(s, "/")
	if ok && proto != "tcp" {
		return Publication{}, fmt.Errorf("publish %q: only tcp can be published", s)
	}
	i := strings.LastIndexByte(rest, ':')
	port, err := strconv.ParseUint(rest[i+1:], 10, 16)
	if err != nil || port == 0 {
		return Publication{}, fmt.Errorf("publish %q: want PORT, or [ADDRESS:]PORT:PORT such as 127.0.0.1:8080:8080", s)
	}
	p := Publication{Host: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0), Port: uint16(port)}
	if i < 0 {
		return Publication{Host: netip.AddrPortFrom(p.Host.Addr(), p.Port)}, nil
	}
	host := rest[:i]
	if !strings.Contains(host, ":") {
		host = p.Host.Addr().String() + ":" + host
	}
	if strings.HasSuffix(host, ":") {
		host += "0"
	}
	if p.Host, err = netip.ParseAddrPort(host); err != nil {
		return Publication{}, fmt.Errorf("publish %q: want PORT, or [ADDRESS:]PORT:PORT such as 127.0.0.1:8080:8080: %w", s, err)
	}
	return p, nil
}

// Check returns all errors of the settings, with the settings' names.
func (s Settings) Check() error {
	_, err := s.parse()
	return err
}

// plan holds the parsed settings.
type plan struct {
	Settings
	netns   string // file of a network namespace to join
	publish []Publication
	caps    []string
	tmpfs   []tmpfs
	keeps   []*keep
	policy  *policy.Policy // of Settings.Policy, with its text; nil without one
	text    []byte
	binds   []bind
}

// bind is a file of the host, read-only in the container.
type bind struct{ source, target string }

type tmpfs struct {
	path    string
	options []string
}

func (s Settings) parse() (*plan, error) {
	p := &plan{Settings: s}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch file, ok := strings.CutPrefix(s.Network, "path:"); {
	case ok && filepath.IsAbs(file):
		p.netns = file
	case ok:
		bad("network %q: want an absolute path after path:", s.Network)
	case s.Network != "" && !networkName.MatchString(s.Network):
		bad("network %q: want egress, none, path:FILE or the name of a Docker network", s.Network)
	case s.Network == "host":
		bad("network host: the container would share this machine's network; want egress, none, path:FILE or the name of a Docker network")
	}
	for _, text := range s.Publish {
		pub, err := ParsePublish(text)
		if err != nil {
			errs = append(errs, err)
		}
		p.publish = append(p.publish, pub)
	}
	if s.Memory < 0 || s.Memory > 0 && s.Memory < minMemory {
		bad("memory %d: want 0 for no limit, or %d bytes and more", s.Memory, minMemory)
	}
	if s.CPUs < 0 || math.IsNaN(s.CPUs) || s.CPUs > 4096 || s.CPUs > 0 && s.CPUs < 0.01 {
		bad("cpus %v: want 0 for no limit, or 0.01 to 4096", s.CPUs)
	}
	if s.PIDs < 0 {
		bad("pids %d: want 0 for no limit, or a number of processes", s.PIDs)
	}
	if s.ShmSize < 0 {
		bad("shm_size %d: want 0 for 64 MiB, or a number of bytes", s.ShmSize)
	}
	if s.Timeout < 0 {
		bad("timeout %s: want 0 for none, or a duration", s.Timeout)
	}
	if strings.ContainsAny(s.User, " \n\x00/") || strings.Count(s.User, ":") > 1 {
		bad("user %q: want USER or USER:GROUP, as names or numbers", s.User)
	}
	for _, c := range s.CapAdd {
		name := strings.TrimPrefix(strings.ToUpper(c), "CAP_")
		if !slices.Contains(capabilities, name) {
			bad("cap_add %q: no such capability", c)
		}
		p.caps = append(p.caps, "CAP_"+name)
	}
	for k, v := range s.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			bad("env %q: a name has no =, and neither name nor value a NUL", k)
		}
	}
	for _, text := range s.Tmpfs {
		t, err := parseTmpfs(text)
		if err != nil {
			errs = append(errs, err)
		}
		if !slices.ContainsFunc(t.options, func(o string) bool { return strings.HasPrefix(o, "size=") }) {
			t.options = append(t.options, fmt.Sprintf("size=%d", s.TmpfsSize(t.path)))
		}
		p.tmpfs = append(p.tmpfs, t.ownedBy(s.User))
	}
	if slices.ContainsFunc(s.Command, func(a string) bool { return strings.ContainsRune(a, 0) }) {
		bad("command: an argument has a NUL")
	}
	if s.Policy != "" {
		var err error
		if p.policy, p.text, err = policy.ReadFile(s.Policy); err != nil {
			errs = append(errs, err)
		}
	}
	if s.Work != "" {
		dir, err := filepath.Abs(s.Work)
		if err == nil {
			dir, err = filepath.EvalSymlinks(dir)
		}
		if err != nil {
			bad("work: %w", err)
		} else if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			bad("work %s is not a directory", s.Work)
		}
		p.Work = dir
	}
	return p, errors.Join(errs...)
}

// minMemory is the least memory with which runc and Docker can start a container.
const minMemory = 6 << 20

const (
	defaultShm = 64 << 20
	// stopGrace is the time for a container to end after the stop signal, as with "docker stop".
	stopGrace = 10 * time.Second
	// answerTime is the time for an engine to do one step of a container's end, also on a slow disk.
	answerTime = time.Minute
)

var networkName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}$`)

var tmpfsOption = regexp.MustCompile(`^(ro|rw|exec|noexec|nosuid|nodev|noatime|size=\d+[kmg]?|mode=[0-7]{1,4}|uid=\d+|gid=\d+|nr_inodes=\d+[kmg]?)$`)

// parseTmpfs parses PATH[:OPTION,…] like docker run's --tmpfs.
func parseTmpfs(text string) (tmpfs, error) {
	dir, options, _ := strings.Cut(text, ":")
	t := tmpfs{path: path.Clean(dir), options: []string{"nosuid", "nodev", "noexec"}}
	if !path.IsAbs(dir) || t.path == "/" {
		return t, fmt.Errorf("tmpfs %q: want an absolute path that isn't /", text)
	}
	for o := range strings.SplitSeq(options, ",") {
		if o == "exec" {
			t.options = slices.DeleteFunc(t.options, func(o string) bool { return o == "noexec" })
		}
		if o != "" && !tmpfsOption.MatchString(o) {
			return t, fmt.Errorf("tmpfs %q: unknown option %q", text, o)
		}
		if o != "" && !slices.Contains(t.options, o) {
			t.options = append(t.options, o)
		}
	}
	return t, nil
}

var numericUser = regexp.MustCompile(`^(\d+)(?::(\d+))?$`)

// ownedBy makes the container's first user the owner of a tmpfs with a mode of its own, unless its options name an
// owner; otherwise that user could not write to it. For a user given by name it stays root's: only the image knows the
// number.
func (t tmpfs) ownedBy(user string) tmpfs {
	m := numericUser.FindStringSubmatch(user)
	owned := slices.ContainsFunc(t.options, func(o string) bool { return strings.HasPrefix(o, "uid=") || strings.HasPrefix(o, "gid=") })
	if m != nil && !owned {
		t.options = append(t.options, "uid="+m[1], "gid="+cmp.Or(m[2], "0"))
	}
	return t
}

// capabilities lists those of capabilities(7).
var capabilities = strings.Fields(`AUDIT_CONTROL AUDIT_READ AUDIT_WRITE BLOCK_SUSPEND BPF CHECKPOINT_RESTORE CHOWN
	DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID IPC_LOCK IPC_OWNER KILL LEASE LINUX_IMMUTABLE MAC_ADMIN MAC_OVERRIDE MKNOD
	NET_ADMIN NET_BIND_SERVICE NET_BROADCAST NET_RAW PERFMON SETFCAP SETGID SETPCAP SETUID SYSLOG SYS_ADMIN SYS_BOOT
	SYS_CHROOT SYS_MODULE SYS_NICE SYS_PACCT SYS_PTRACE SYS_RAWIO SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG WAKE_ALARM`)

// environment joins the parts; later ones win.
func environment(base, fromImage []string, own map[string]string) []string {
	var names []string
	values := map[string]string{}
	set := func(k, v string) {
		if _, ok := values[k]; !ok {
			names = append(names, k)
		}
		values[k] = v
	}
	for _, kv := range slices.Concat(base, fromImage) {
		if k, v, ok := strings.Cut(kv, "="); ok && k != "" {
			set(k, v)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(own)) {
		set(k, own[k])
	}
	for i, k := range names {
		names[i] = k + "=" + values[k]
	}
	return names
}
