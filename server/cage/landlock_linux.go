package cage

import (
	"fmt"
	"os"

	"github.com/landlock-lsm/go-landlock/landlock"
	"github.com/landlock-lsm/go-landlock/landlock/syscall"
)

// What a kind of path in Rules may be used for.
const (
	read  = syscall.AccessFSReadFile | syscall.AccessFSReadDir
	start = read | syscall.AccessFSExecute
	write = read | syscall.AccessFSWriteFile | syscall.AccessFSTruncate | syscall.AccessFSRemoveDir | syscall.AccessFSRemoveFile |
		syscall.AccessFSMakeDir | syscall.AccessFSMakeReg | syscall.AccessFSMakeSock | syscall.AccessFSMakeFifo | syscall.AccessFSMakeSym |
		syscall.AccessFSRefer
	device = syscall.AccessFSReadFile | syscall.AccessFSWriteFile | syscall.AccessFSIoctlDev
	// forFiles are those of them that a rule on a file can have.
	forFiles = syscall.AccessFSReadFile | syscall.AccessFSWriteFile | syscall.AccessFSTruncate | syscall.AccessFSExecute | syscall.AccessFSIoctlDev
)

// landlockABI is the kernel's version, or 0.
func landlockABI() int {
	v, err := syscall.LandlockGetABIVersion()
	if err != nil {
		return 0
	}
	return v
}

// restrict holds this process to the rules' files and ports, as far as the kernel goes.
func (r Rules) restrict() error {
	var rules []landlock.Rule
	for _, kind := range []struct {
		paths  []string
		rights landlock.AccessFSSet
	}{{r.Read, read}, {r.Execute, start}, {r.Write, write}, {r.Devices, device}} {
		for _, path := range kind.paths {
			info, err := os.Stat(path)
			if err != nil {
				continue // not there, or not for this account
			}
			rights := kind.rights
			if !info.IsDir() {
				rights &= forFiles
			}
			rules = append(rules, landlock.PathAccess(rights, path).IgnoreIfMissing())
		}
	}
	for _, port := range r.Listen {
		rules = append(rules, landlock.BindTCP(port))
	}
	if r.Proxy != 0 {
		rules = append(rules, landlock.ConnectTCP(r.Proxy))
	}
	if err := landlock.V7.BestEffort().Restrict(rules...); err != nil {
		return fmt.Errorf("landlock: %w", err)
	}
	return nil
}
