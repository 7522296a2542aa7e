package main

import (
	"cmp"
	"context"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/slimctl/slimctl/server/audit"
	"github.com/slimctl/slimctl/server/egress"
	"github.com/slimctl/slimctl/server/policy"
)

// MainWith is main with another network, for tests that run this test binary
// as browser-shell: a site on this machine can stand for a public one there,
// which no setting of the real binary allows. The desktop is at vnc, if given.
func MainWith(n policy.Network, vnc string) int {
	network = n
	vncAddress = cmp.Or(vnc, vncAddress)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	return dispatch(ctx, os.Args[1:], stdio{os.Stdin, os.Stdout, os.Stderr})
}

// Run runs a command that is soon over in this process.
func Run(stdin string, args ...string) (code int, stdout, stderr string) {
	var out, said strings.Builder
	code = dispatch(context.Background(), args, stdio{strings.NewReader(stdin), &out, &said})
	return code, out.String(), said.String()
}

// NetworkRecord returns the line of the log for a decision of the proxy.
func NetworkRecord(d egress.Decision) audit.Record { return networkRecord(d, nil) }
