package cage

import "golang.org/x/sys/unix"

var forks = []int{unix.SYS_FORK, unix.SYS_VFORK}
