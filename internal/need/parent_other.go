//go:build unix && !linux

package need

import "syscall"

func dieWithParent(*syscall.SysProcAttr) {}
