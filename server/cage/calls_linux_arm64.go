package cage

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_AARCH64

var permittedHere []uint32 // arm64 began after the older forms
