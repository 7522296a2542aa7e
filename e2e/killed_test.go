package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

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
	starts, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/run/desktop/starts", b.first(t).PID))
	if err != nil || bytes.Count(starts, []byte(",")) < 2 { // health reads them
		t.Errorf("three starts of Chromium: %s, %v", starts, err)
	}
}

// TestEveryProcessKilled kills a process of each kind in the image but the first, one after the other, by looking and not by
// name: a kind is a program with its first arguments. After each a page opens, and the image is healthy again. Unless
// SLIMCTL_CHAOS is set, only Chromium's kinds are killed: TestKilled has the other programs.
func TestEveryProcessKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	b := boot(t, w, build(t, "l0-native", "standin-live:B"), nil)
	b.healthy(t)
	site := &httptest.Server{Listener: w.listen(t, siteIP+":80"), Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<!doctype html><title>fine</title>fine")
	})}}
	site.Start()
	defer site.Close()
	open := func(session string) {
		t.Helper()
		await(t, need.Patience, "a page", func() error {
			a, err := connectAgent(t, w, nil)
			if err != nil {
				return err
			}
			r, err := a.try(session, "open", "http://"+siteIP+"/")
			if err == nil && r.ExitCode != 0 {
				err = fmt.Errorf("%+v", r)
			}
			if err == nil {
				_, _ = a.try(session, "close") // its place is for the next one
			}
			return err
		})
	}
	open("before")
	newAgent(t, w).must("stays", "open", "http://"+siteIP+"/") // its processes are killed, too
	killed := map[string]bool{}
	next := func() (p sandbox.Process, kind string) {
		for _, p := range b.processes(t) {
			line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.PID))
			words := strings.Fields(strings.ReplaceAll(string(line), "\x00", " ")) // Chromium's are one text
			kind := numbers.ReplaceAllString(strings.Join(words[:min(3, len(words))], " "), "")
			if os.Getenv("SLIMCTL_CHAOS") == "" && !strings.Contains(kind, "--type=") {
				continue
			}
			if err == nil && p.Inside != 1 && p.State != "Z" && !killed[kind] && kind != "" {
				return p, kind
			}
		}
		return p, ""
	}
	var slowest time.Duration
	for p, kind := next(); kind != "" && len(killed) < 30; p, kind = next() {
		killed[kind] = true
		if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil { // it has just ended
			continue
		}
		began := time.Now()
		open(fmt.Sprint("s", p.Inside))
		slowest = max(slowest, time.Since(began))
		t.Logf("%.1f s until a page opens: %s", time.Since(began).Seconds(), kind)
	}
	b.healthy(t)
	b.closed(t)
	if !slices.ContainsFunc(slices.Collect(maps.Keys(killed)), func(kind string) bool { return strings.Contains(kind, "--type=zygote") }) || len(killed) < 4 {
		t.Errorf("not all were found: %q", slices.Collect(maps.Keys(killed)))
	}
	t.Logf("%d kinds; a page opened after %.1f s at the latest", len(killed), slowest.Seconds())
}

// numbers are no part of a kind: Chromium tells its GPU process how many have crashed before.
var numbers = regexp.MustCompile(`\d+`)

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
