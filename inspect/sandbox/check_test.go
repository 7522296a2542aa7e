package sandbox

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestSettings: what is wrong with settings is told before anything is done.
func TestSettings(t *testing.T) {
	t.Parallel()
	if err := Default().Check(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Settings){
		"network host":           func(s *Settings) { s.Network = "host" },
		"network by container":   func(s *Settings) { s.Network = "container:other" },
		"a relative namespace":   func(s *Settings) { s.Network = "path:ns" },
		"publish no port":        func(s *Settings) { s.Publish = []string{"127.0.0.1"} },
		"publish port 0":         func(s *Settings) { s.Publish = []string{"127.0.0.1:8080:0"} },
		"publish a name":         func(s *Settings) { s.Publish = []string{"localhost:8080:8080"} },
		"publish udp":            func(s *Settings) { s.Publish = []string{"53:53/udp"} },
		"publish a large port":   func(s *Settings) { s.Publish = []string{"65536:1"} },
		"little memory":          func(s *Settings) { s.Memory = 1 },
		"memory below 0":         func(s *Settings) { s.Memory = -1 },
		"cpus below 0":           func(s *Settings) { s.CPUs = -1 },
		"pids below 0":           func(s *Settings) { s.PIDs = -1 },
		"shm below 0":            func(s *Settings) { s.ShmSize = -1 },
		"timeout below 0":        func(s *Settings) { s.Timeout = -time.Second },
		"user with a path":       func(s *Settings) { s.User = "../root" },
		"user of three parts":    func(s *Settings) { s.User = "1:2:3" },
		"capability":             func(s *Settings) { s.CapAdd = []string{"ALL"} },
		"tmpfs on the root":      func(s *Settings) { s.Tmpfs = []string{"/"} },
		"tmpfs on the root's ..": func(s *Settings) { s.Tmpfs = []string{"/a/.."} },
		"a relative tmpfs":       func(s *Settings) { s.Tmpfs = []string{"tmp"} },
		"a tmpfs with devices":   func(s *Settings) { s.Tmpfs = []string{"/tmp:dev"} },
		"env with =":             func(s *Settings) { s.Env = map[string]string{"A=B": ""} },
		"env with NUL":           func(s *Settings) { s.Env = map[string]string{"A": "\x00"} },
		"command with NUL":       func(s *Settings) { s.Command = []string{"\x00"} },
		"work that isn't there":  func(s *Settings) { s.Work = "/nowhere/at/all" },
		"work that is a file":    func(s *Settings) { s.Work = "/etc/passwd" },
	} {
		s := Default()
		change(&s)
		if err := s.Check(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for text, want := range map[string]string{
		"8098": "127.0.0.1:8098 0", "0:8080": "127.0.0.1:0 8080", "80:8080": "127.0.0.1:80 8080", "0.0.0.0:80:8080": "0.0.0.0:80 8080", "[::1]:80:8080/tcp": "[::1]:80 8080", "127.0.0.1::8080": "127.0.0.1:0 8080",
	} {
		p, err := ParsePublish(text)
		if got := p.Host.String() + " " + fmt.Sprint(p.Port); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", text, got, err, want)
		}
	}
}

// TestTmpfsOwner: a tmpfs is the user's whose number is known, unless its options say whose it is.
func TestTmpfsOwner(t *testing.T) {
	t.Parallel()
	const closed = "nosuid,nodev,noexec"
	for _, c := range []struct{ user, tmpfs, want string }{
		{"", "/tmp", closed},
		{"gem", "/tmp", closed},
		{"gem:44", "/tmp", closed},
		{"1000:gem", "/tmp", closed},
		{"1000", "/tmp", closed + ",uid=1000,gid=0"},
		{"1000:44", "/tmp", closed + ",uid=1000,gid=44"},
		{"1000:44", "/tmp:mode=700,exec", "nosuid,nodev,mode=700,exec,uid=1000,gid=44"},
		{"1000:44", "/tmp:uid=7", closed + ",uid=7"},
		{"1000:44", "/tmp:gid=7", closed + ",gid=7"},
	} {
		s := Default()
		s.User, s.Tmpfs = c.user, []string{c.tmpfs}
		p, err := s.parse()
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Replace(strings.Join(p.tmpfs[0].options, ","), ",size=268435456", "", 1); got != c.want {
			t.Errorf("user %q, tmpfs %s: %s, want %s", c.user, c.tmpfs, got, c.want)
		}
	}
}

// TestTmpfsFit: whoever fills every tmpfs of the closed image doesn't take all of its memory, which would end Chromium
// again and again (review 3, M5).
func TestTmpfsFit(t *testing.T) {
	t.Parallel()
	const dev = 64 << 20
	for _, memory := range []int64{1 << 30, 2 << 30, 8 << 30, 1<<30 + 12345} {
		s := Default()
		s.Memory = memory
		p, err := s.parse()
		if err != nil {
			t.Fatal(err)
		}
		sum := int64(dev) + s.ShmSize
		for _, m := range p.tmpfs {
			size := int64(0)
			for _, o := range m.options {
				_, _ = fmt.Sscanf(o, "size=%d", &size) // of one option
			}
			if size == 0 {
				t.Errorf("%s has no size: %q", m.path, m.options)
			}
			sum += size
		}
		if sum >= memory {
			t.Errorf("memory %d: the tmpfs hold %d", memory, sum)
		}
	}
	s := Default()
	s.Memory, s.Tmpfs = 0, []string{"/x:size=7m", "/y"}
	p, err := s.parse()
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"size=7m", "size=67108864"} {
		if got := strings.Join(p.tmpfs[i].options, ","); !strings.HasSuffix(got, want) || strings.Count(got, "size=") != 1 {
			t.Errorf("%s: got %s, want %s", p.tmpfs[i].path, got, want)
		}
	}
}
