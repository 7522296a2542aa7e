package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/slimctl/slimctl/inspect/sandbox"
	"github.com/slimctl/slimctl/internal/need"
)

// TestKilled kills and stops each program of the image. The health check has to see it; one that was killed has to come back
// by itself, one that was stopped once it goes on.
func TestKilled(t *testing.T) {
	t.Parallel()
	b := boot(t, newWorld(t), buildL0(t, "standin-live:B"), nil)
	b.healthy(t)
	// A start without trouble says nothing that looks like trouble.
	for line := range strings.Lines(string(b.Logs())) {
		if regexp.MustCompile(`\b(CRIT|WARN|ERRO?R?)\b`).MatchString(line) {
			t.Errorf("a healthy start prints %s", line)
		}
	}
	for _, name := range programs {
		for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
			t.Run(fmt.Sprintf("%s %s", name, signal), func(t *testing.T) { b.kill(t, name, signal) })
		}
	}
	// All at once, and nginx's worker with its master.
	b.seen(t, syscall.SIGKILL, programs...)
	b.healthy(t)
	b.closed(t)
}

// kill sends a signal to a program's first process.
func (b *box) kill(t *testing.T, name string, signal syscall.Signal) {
	b.seen(t, signal, name)
	b.healthy(t)
	if name == "nginx" { // none is left of another master
		master := b.process(t, name)
		await(t, need.Patience, "the end of an earlier nginx", func() error {
			for _, p := range b.processes(t) {
				if p.Name == "nginx" && p.PID != master.PID && p.Parent != master.PID {
					return fmt.Errorf("process %d is left of it", p.Inside)
				}
			}
			return nil
		})
	}
}

// seen sends a signal to programs, waits until the health check tells of it, and lets them come back. supervisord is stopped
// meanwhile: it starts nginx anew in less time than one check takes.
func (b *box) seen(t *testing.T, signal syscall.Signal, names ...string) {
	t.Helper()
	var harmed []sandbox.Process
	for _, name := range names {
		harmed = append(harmed, b.process(t, name))
	}
	first := b.first(t)
	send(t, first, syscall.SIGSTOP)
	defer send(t, first, syscall.SIGCONT)
	for _, p := range harmed {
		send(t, p, signal)
		if signal == syscall.SIGSTOP {
			defer send(t, p, syscall.SIGCONT)
		}
	}
	await(t, need.Patience, "what the health check tells", func() error {
		r, err := b.Exec(t.Context(), []string{"/usr/local/bin/browser-shell", "health"}, sandbox.ExecOptions{})
		if err == nil && r.ExitCode == 0 {
			err = errors.New("that all is well")
		}
		if err == nil {
			t.Logf("%v: %s", names, bytes.TrimSpace(r.Stderr))
		}
		return err
	})
}

func send(t *testing.T, p sandbox.Process, signal syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(p.PID, signal); err != nil {
		t.Errorf("%s: %v", p.Name, err)
	}
}

func (b *box) processes(t *testing.T) []sandbox.Process {
	t.Helper()
	all, err := b.Processes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// process is a program's first process, once supervisord has one that runs.
func (b *box) process(t *testing.T, name string) (p sandbox.Process) {
	t.Helper()
	await(t, need.Patience, name, func() error {
		all, err := b.supervised(t)
		if err != nil {
			return err
		}
		pid := all[name].pid
		for _, p = range b.processes(t) {
			if p.Inside == pid && pid != 0 && p.State != "Z" {
				return nil
			}
		}
		return fmt.Errorf("no process %d", pid)
	})
	return p
}

// first returns the container's first process, supervisord.
func (b *box) first(t *testing.T) sandbox.Process {
	t.Helper()
	all := b.processes(t)
	i := slices.IndexFunc(all, func(p sandbox.Process) bool { return p.Inside == 1 })
	if i < 0 {
		t.Fatalf("no process 1 among %v", all)
	}
	return all[i]
}
