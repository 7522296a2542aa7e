package cage

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Rights on files, as sets of LANDLOCK_ACCESS_FS (linux/landlock.h).
const (
	read  = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	start = read | unix.LANDLOCK_ACCESS_FS_EXECUTE
	write = read | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE |
		unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_MAKE_DIR |
		unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO |
		unix.LANDLOCK_ACCESS_FS_MAKE_SYM | unix.LANDLOCK_ACCESS_FS_REFER
	device = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	// forFiles are those that a rule on a file can have.
	forFiles = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE |
		unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
)

// handled returns the rights that a ruleset denies by default: all that the ABI version knows (landlock(7)).
func handled(abi int) unix.LandlockRulesetAttr {
	a := unix.LandlockRulesetAttr{Access_fs: unix.LANDLOCK_ACCESS_FS_MAKE_SYM<<1 - 1} // the first version's
	if abi >= 2 {
		a.Access_fs |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if abi >= 3 {
		a.Access_fs |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if abi >= 4 {
		a.Access_net = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
	}
	if abi >= 5 {
		a.Access_fs |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	if abi >= 6 {
		a.Scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	}
	return a
}

// landlockABI returns the kernel's ABI version of Landlock, or 0.
func landlockABI() int {
	v, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if e != 0 {
		return 0
	}
	return int(v)
}

// restrictThread restricts this thread and what it starts to the files and ports of the rules, as far as the kernel
// can. (landlock-lsm/go-landlock restricts all threads, by a second library; here exec keeps this thread only.)
func (r Rules) restrictThread(abi int) error {
	if abi == 0 {
		return nil
	}
	attr := handled(abi)
	fd, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errors.Is(e, unix.E2BIG) || errors.Is(e, unix.EINVAL) {
		return fmt.Errorf("landlock: the kernel reports ABI %d and refuses its access rights: %w", abi, e)
	}
	if e != 0 {
		return fmt.Errorf("landlock: %w", e)
	}
	ruleset := int(fd)
	defer unix.Close(ruleset)
	for _, kind := range []struct {
		paths  []string
		rights uint64
	}{{r.Read, read}, {r.Execute, start}, {r.Write, write}, {r.Devices, device}} {
		for _, path := range kind.paths {
			if err := allowPath(ruleset, path, kind.rights&attr.Access_fs); err != nil {
				return err
			}
		}
	}
	if attr.Access_net != 0 {
		for _, port := range r.Listen {
			if err := allowPort(ruleset, port, unix.LANDLOCK_ACCESS_NET_BIND_TCP); err != nil {
				return err
			}
		}
		if r.Proxy != 0 {
			if err := allowPort(ruleset, r.Proxy, unix.LANDLOCK_ACCESS_NET_CONNECT_TCP); err != nil {
				return err
			}
		}
	}
	if _, _, e := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(ruleset), 0, 0); e != 0 {
		return fmt.Errorf("landlock: %w", e)
	}
	return nil
}

// allowPath adds a rule for a file or a directory tree. A path that this account can't open needs none.
func allowPath(ruleset int, path string, rights uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil //nolint:nilerror // as above
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("landlock: %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		rights &= forFiles
	}
	rule := unix.LandlockPathBeneathAttr{Allowed_access: rights, Parent_fd: int32(fd)}
	_, _, e := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	if e != 0 {
		return fmt.Errorf("landlock: %s: %w", path, e)
	}
	return nil
}

// netPort is struct landlock_net_port_attr, which x/sys doesn't have.
type netPort struct{ access, port uint64 }

const ruleNetPort = 2 // LANDLOCK_RULE_NET_PORT

func allowPort(ruleset int, port uint16, right uint64) error {
	rule := netPort{right, uint64(port)}
	_, _, e := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), ruleNetPort,
		uintptr(unsafe.Pointer(&rule)), 0, 0, 0)
	if e != 0 {
		return fmt.Errorf("landlock: port %d: %w", port, e)
	}
	return nil
}
