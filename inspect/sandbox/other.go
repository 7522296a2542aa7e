//go:build !linux

package sandbox

import (
	"context"
	"errors"
)

var errNotLinux = errors.New("sockets of a container can be listed on Linux only")

func (r Runner) runc(context.Context, *Sandbox) (engine, error) {
	return nil, errors.New("runc runs images on Linux only: start Docker")
}

func processesOf(pids []int) []Process {
	var out []Process
	for _, pid := range pids {
		out = append(out, Process{PID: pid})
	}
	return out
}

func socketsOf([]int) ([]Socket, error) { return nil, errNotLinux }

func sweepHost(string, string) error { return nil }

func belongsTo(int, string) bool { return false }
