package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/profiles/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/inspect/sandbox/rootfs"
)

const defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// bundle describes a container for runc's config.json.
type bundle struct {
	name, rootfs, dir string // dir is the run's
	config            v1.Config
	plan              *plan
	cgroups           cgroups
	missing           []string // limits that can't be set here
}

// spec returns the content of config.json. Beyond its settings a container gets Docker's defaults: masked and read-only
// paths, the default seccomp profile, the usual mounts.
func (b *bundle) spec() (*specs.Spec, error) {
	args := slices.Concat(b.config.Entrypoint, b.config.Cmd)
	if len(b.plan.Command) > 0 {
		args = slices.Concat(b.config.Entrypoint, b.plan.Command)
	}
	if len(args) == 0 {
		return nil, errors.New("the image has neither entrypoint nor command, and none was given")
	}
	who := b.config.User
	if b.plan.User != "" {
		who = b.plan.User
	}
	user, home, err := rootfs.Account(b.rootfs, who)
	if err != nil {
		return nil, err
	}
	process := &specs.Process{
		User: user, Args: args, Cwd: "/", NoNewPrivileges: b.plan.NoNewPrivileges,
		Env:     environment([]string{defaultPath, "HOSTNAME=" + b.name, "HOME=" + home}, b.config.Env, b.plan.Env),
		Rlimits: rlimits(),
		// execve leaves a user other than root only the bounding set.
		Capabilities: &specs.LinuxCapabilities{Bounding: b.plan.caps},
	}
	if strings.HasPrefix(b.config.WorkingDir, "/") {
		process.Cwd = filepath.Clean(b.config.WorkingDir)
	}
	if user.UID == 0 {
		process.Capabilities.Effective, process.Capabilities.Permitted = b.plan.caps, b.plan.caps
	}
	s := &specs.Spec{
		Version: "1.0.2", Hostname: b.name, Process: process,
		Root: &specs.Root{Path: b.rootfs, Readonly: b.plan.ReadOnly},
		Linux: &specs.Linux{
			CgroupsPath: "/" + b.name, Resources: b.resources(), Namespaces: b.namespaces(),
			MaskedPaths: []string{
				"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
				"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
				"/sys/devices/virtual/powercap", "/sys/firmware",
			},
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
	if s.Mounts, err = b.mounts(int(user.UID), int(user.GID)); err != nil {
		return nil, err
	}
	s.Linux.Seccomp, err = seccomp.GetDefaultProfile(s)
	return s, err
}

func (b *bundle) namespaces() []specs.LinuxNamespace {
	out := []specs.LinuxNamespace{{Type: specs.NetworkNamespace, Path: b.plan.netns}}
	for _, t := range []specs.LinuxNamespaceType{specs.PIDNamespace, specs.MountNamespace, specs.UTSNamespace, specs.IPCNamespace, specs.CgroupNamespace} {
		out = append(out, specs.LinuxNamespace{Type: t})
	}
	return out
}

// resources returns the limits that this machine's cgroups support, and records the others as missing.
func (b *bundle) resources() *specs.LinuxResources {
	r := &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}}
	can := func(controller string, asked bool) bool {
		if asked && !b.cgroups.hasController(controller) {
			b.missing = append(b.missing, fmt.Sprintf("%s: this machine has no %s cgroup", controller, controller))
			return false
		}
		return asked
	}
	if can("memory", b.plan.Memory > 0) {
		r.Memory = &specs.LinuxMemory{Limit: &b.plan.Memory}
		if _, err := os.Stat(filepath.Join(b.cgroups["memory"], "memory.memsw.limit_in_bytes")); err == nil || swapping() && b.cgroups["memory"] == "" {
			r.Memory.Swap = &b.plan.Memory // of both together: no swap
		} else if swapping() {
			b.missing = append(b.missing, "memory: the kernel does not count swap, which the container may use besides")
		}
	}
	if can("pids", b.plan.PIDs > 0) {
		r.Pids = &specs.LinuxPids{Limit: &b.plan.PIDs}
	}
	if can("cpu", b.plan.CPUs > 0) {
		q, period := quota(b.plan.CPUs), uint64(cpuPeriod)
		r.CPU = &specs.LinuxCPU{Quota: &q, Period: &period}
	}
	return r
}

func swapping() bool {
	text, _ := os.ReadFile("/proc/swaps")
	return strings.Count(string(text), "\n") > 1 // the first line is a heading
}

// rlimits returns no core files, and the usual number of open files; a hard limit can't be raised everywhere.
func rlimits() []specs.POSIXRlimit {
	files := uint64(65536)
	var ours unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &ours) == nil {
		files = min(files, ours.Max)
	}
	return []specs.POSIXRlimit{{Type: "RLIMIT_CORE"}, {Type: "RLIMIT_NOFILE", Hard: files, Soft: files}}
}

func (b *bundle) mounts(uid, gid int) ([]specs.Mount, error) {
	shm := b.plan.ShmSize
	if shm == 0 {
		shm = defaultShm
	}
	safe := []string{"nosuid", "noexec", "nodev"}
	with := func(more ...string) []string { return slices.Concat(safe, more) }
	out := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: safe},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: with("mode=1777", fmt.Sprintf("size=%d", shm))},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: safe},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: with("ro")},
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: with("relatime", "ro")},
	}
	for _, t := range b.plan.tmpfs {
		out = append(out, specs.Mount{Destination: t.path, Type: "tmpfs", Source: "tmpfs", Options: t.options})
	}
	for name, text := range map[string]string{
		"hosts":       "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.0.1\t" + b.name + "\n",
		"hostname":    b.name + "\n",
		"resolv.conf": "",
	} {
		file := filepath.Join(b.dir, name)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return nil, err
		}
		out = append(out, specs.Mount{Destination: "/etc/" + name, Type: "bind", Source: file, Options: with("bind", "ro")})
	}
	if b.plan.Work != "" {
		out = append(out, specs.Mount{Destination: "/work", Type: "bind", Source: b.plan.Work, Options: []string{"bind", "ro", "nosuid", "nodev"}})
	}
	for _, f := range b.plan.binds {
		out = append(out, specs.Mount{Destination: f.target, Type: "bind", Source: f.source, Options: with("bind", "ro")})
	}
	for _, k := range b.plan.keeps {
		dir := k.hostDir(b.dir)
		if err := os.Chown(dir, uid, gid); err != nil {
			return nil, err
		}
		out = append(out, specs.Mount{Destination: k.Mount, Type: "bind", Source: dir, Options: with("bind", "rw")})
	}
	slices.SortStableFunc(out[7:], func(a, b specs.Mount) int { // a nested mount comes after the outer one
		return strings.Count(a.Destination, "/") - strings.Count(b.Destination, "/")
	})
	return out, nil
}

// write writes config.json.
func (b *bundle) write() (*specs.Spec, error) {
	s, err := b.spec()
	if err != nil {
		return nil, err
	}
	return s, image.WriteFile(filepath.Join(b.dir, "bundle", "config.json"), 0o600, func(w io.Writer) error { return json.NewEncoder(w).Encode(s) })
}
