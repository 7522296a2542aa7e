package e2e

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slimctl/slimctl/inspect/sandbox"
)

// TestKilled kills and stops each program of the image. The health check has to see it; one that was killed has to come back
// by itself, one that was stopped once it goes on.
func TestKilled(t *testing.T) {
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
	b.seen(t, "", func() {
		for _, name := range programs {
			b.signal(t, name, syscall.SIGKILL)
		}
	})
	b.healthy(t)
	b.closed(t)
}

// kill sends a signal to a program's first process.
func (b *box) kill(t *testing.T, name string, signal syscall.Signal) {
	b.seen(t, name, func() { b.signal(t, name, signal) })
	if signal == syscall.SIGSTOP {
		b.signal(t, name, syscall.SIGCONT)
	}
	b.healthy(t)
	if name == "nginx" { // none is left of another master
		for _, p := range b.processes(t) {
			if p.Name == "nginx" && p.Inside != b.pid(t, name) && p.Parent != b.process(t, name).PID {
				t.Errorf("process %d is left of an earlier nginx", p.Inside)
			}
		}
	}
}

// seen does harm and waits until the health check tells of it. Since a program may be back within the time that one check
// takes, checks run all along, and those of a program that was started anew count too.
func (b *box) seen(t *testing.T, name string, harm func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	unhealthy := make(chan string, 1)
	go func() {
		for ctx.Err() == nil {
			r, err := b.Exec(ctx, []string{"/usr/local/bin/browser-shell", "health"}, sandbox.ExecOptions{})
			if err == nil && r.ExitCode != 0 {
				unhealthy <- string(r.Stderr)
				return
			}
		}
	}()
	harm()
	select {
	case said := <-unhealthy:
		t.Logf("%s: %s", name, strings.TrimSpace(said))
	case <-time.After(3 * time.Minute):
		t.Errorf("%s: health doesn't tell", name)
	}
}

func (b *box) signal(t *testing.T, name string, signal syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(b.process(t, name).PID, signal); err != nil {
		t.Fatalf("%s: %v", name, err)
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
	await(t, time.Minute, name, func() error {
		pid := b.pid(t, name)
		for _, p = range b.processes(t) {
			if p.Inside == pid && pid != 0 && p.State != "Z" {
				return nil
			}
		}
		return fmt.Errorf("no process %d", pid)
	})
	return p
}

// pid is what supervisord numbers a program's first process, inside; 0 when it has none.
func (b *box) pid(t *testing.T, name string) int {
	t.Helper()
	r, err := b.Exec(t.Context(), []string{"/usr/bin/supervisorctl", "-c", "/opt/gem/supervisord.conf", "pid", name}, sandbox.ExecOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(r.Stdout)))
	return pid
}
