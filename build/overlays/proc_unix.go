//go:build unix

package overlays

import (
	"os/exec"
	"syscall"
)

// ownGroup puts cmd in a process group that is killed as a whole: npm starts children.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if cmd.Cancel != nil { // made by exec.CommandContext
		cmd.Cancel = func() error { return killGroup(cmd) }
	}
}

func killGroup(cmd *exec.Cmd) error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
