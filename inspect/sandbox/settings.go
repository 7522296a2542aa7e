// Package sandbox runs an image in a closed container, with Docker or with runc alone, and keeps evidence of the run.
package sandbox

import "time"

// Settings defines how to run an image, as data for the runners, the compose file and the Kubernetes manifest.
type Settings struct {
	// Network is "egress" (public addresses, by the rules of server/egress, only for images that slimctl built), "none"
	// (loopback only), "path:FILE" (an existing network namespace) or, with Docker, the name of a network. Empty is
	// egress for an image that slimctl built, otherwise none.
	Network string `json:"network"`
	// Publish lists addresses of the host to forward to a port inside, such as 127.0.0.1:8080:8080, or ports of
	// 127.0.0.1. With networks none and egress only port 8080 of an image that slimctl built can be published.
	Publish []string `json:"publish,omitempty"`

	Memory  int64         `json:"memory"`  // bytes
	CPUs    float64       `json:"cpus"`    // 1.0 is one core
	PIDs    int64         `json:"pids"`    // processes and threads
	Timeout time.Duration `json:"timeout"` // of the run; 0: until Stop
	ShmSize int64         `json:"shm_size"`

	User            string            `json:"user,omitempty"` // uid:gid; empty: the image's
	CapAdd          []string          `json:"cap_add"`        // all others are dropped
	NoNewPrivileges bool              `json:"no_new_privileges"`
	ReadOnly        bool              `json:"read_only"` // the root file system
	Tmpfs           []string          `json:"tmpfs,omitempty"`
	Env             map[string]string `json:"env,omitempty"`
	Command         []string          `json:"command,omitempty"` // replaces the image's CMD

	// Policy is a browser-shell policy file of the host that replaces the image's. Its rules apply outside of the
	// container, too; only such a file can allow private hosts.
	Policy string `json:"policy,omitempty"`
	// Work is a directory of the host, read-only at /work. Output is a directory for the final content of /output.
	Work   string `json:"work,omitempty"`
	Output string `json:"output,omitempty"`
	// Audit is a directory of the host for the audit log, below the run's id. With Output the log is there, too.
	Audit string `json:"audit,omitempty"`
}

// Networks that every engine supports.
const (
	NetworkEgress = "egress"
	NetworkNone   = "none"
)

// CapsNeeded lists the capabilities that the closed image uses when it starts as root: to create directories for its
// accounts, switch to them and end their processes. Started as uid 1000 it needs none.
var CapsNeeded = []string{"CHOWN", "SETUID", "SETGID", "KILL"}

// WritablePaths lists the paths that must be writable; with a read-only root each is a tmpfs or a volume.
var WritablePaths = []string{"/run", "/tmp", "/home/gem", "/var/log/gem", AuditMount, "/var/lib/browser-shell", "/output"}

// TmpfsSize returns the size of a tmpfs without a size of its own, in bytes. What the tmpfs of a container hold counts as
// its memory: with /dev/shm and /dev, those of the closed image take less than its limit when all are full.
func (s Settings) TmpfsSize(path string) int64 {
	memory := s.Memory
	if memory == 0 {
		memory = 1 << 30
	}
	if path == "/tmp" { // what Chromium's processes share is there
		return memory / 4
	}
	return memory / 16
}

// AuditMount is the closed image's mount point for the audit log's volume; the log is in AuditDir.
const (
	AuditMount = "/var/log/browser-shell"
	AuditDir   = AuditMount + "/audit"
)

// Default returns the settings of the closed image: public addresses only, 1 GiB of memory, one core, 120 s, a
// read-only root, and only the needed capabilities.
func Default() Settings {
	return Settings{
		Memory: 1 << 30, CPUs: 1, PIDs: 512, Timeout: 120 * time.Second, ShmSize: 256 << 20,
		CapAdd: CapsNeeded, NoNewPrivileges: true, ReadOnly: true, Tmpfs: WritablePaths,
	}
}
