// Package sandbox runs an image in a closed container, with Docker or with runc alone, and keeps evidence of the run.
package sandbox

import "time"

// Settings are how an image is run, as data: the runners, the compose file and the Kubernetes manifest come from them.
type Settings struct {
	// Network is "egress" (public addresses, through the rules of server/egress, and only for images that slimctl built),
	// "none" (loopback only), "path:FILE" (a network namespace that exists) or, with Docker, the name of a network. Empty is
	// egress for an image that slimctl built, and none for any other.
	Network string `json:"network"`
	// Publish are addresses of the host that lead to a port inside, such as 127.0.0.1:8080:8080. With networks none and
	// egress only to port 8080 of an image that slimctl built.
	Publish []string `json:"publish,omitempty"`

	Memory  int64         `json:"memory"`  // bytes
	CPUs    float64       `json:"cpus"`    // 1.0 is one core
	PIDs    int64         `json:"pids"`    // processes and threads
	Timeout time.Duration `json:"timeout"` // of the run; 0: until it is stopped
	ShmSize int64         `json:"shm_size"`

	User            string            `json:"user,omitempty"` // uid:gid; empty: the image's
	CapAdd          []string          `json:"cap_add"`        // all others are dropped
	NoNewPrivileges bool              `json:"no_new_privileges"`
	ReadOnly        bool              `json:"read_only"` // the root file system
	Tmpfs           []string          `json:"tmpfs,omitempty"`
	Env             map[string]string `json:"env,omitempty"`
	Command         []string          `json:"command,omitempty"` // in the place of the image's CMD

	// Policy is a browser-shell policy file of the host, in the place of the image's. Its rules hold outside of the container
	// as well, and private hosts are reached only when they are in it.
	Policy string `json:"policy,omitempty"`
	// Work is a directory of the host, read-only at /work. Output is what /output holds at the end, collected below it.
	Work   string `json:"work,omitempty"`
	Output string `json:"output,omitempty"`
	// Audit is a directory of the host in which the audit log is kept, below the run's id. With Output it is there, too.
	Audit string `json:"audit,omitempty"`
}

// Networks that every engine has.
const (
	NetworkEgress = "egress"
	NetworkNone   = "none"
)

// CapsNeeded are the capabilities that the closed image uses when it starts as root: directories for its accounts, changing
// to them, ending their processes. Started as uid 1000 it needs none.
var CapsNeeded = []string{"CHOWN", "SETUID", "SETGID", "KILL"}

// WritablePaths must be writable; with a read-only root each is a tmpfs or a volume.
var WritablePaths = []string{"/run", "/tmp", "/home/gem", "/var/log/gem", AuditMount, "/var/lib/browser-shell", "/output"}

// AuditMount is where the closed image takes a volume for its audit log, which lies in AuditDir.
const (
	AuditMount = "/var/log/browser-shell"
	AuditDir   = AuditMount + "/audit"
)

// Default returns the settings of the closed image: public addresses alone, 1 GiB of memory, one core, 120 s, a read-only root, all
// capabilities dropped but the needed ones.
func Default() Settings {
	return Settings{
		Memory: 1 << 30, CPUs: 1, PIDs: 512, Timeout: 120 * time.Second, ShmSize: 256 << 20,
		CapAdd: CapsNeeded, NoNewPrivileges: true, ReadOnly: true, Tmpfs: WritablePaths,
	}
}
