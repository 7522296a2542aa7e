//go:build linux

package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slimctl/slimctl/internal/need"
)

const searchPath = "PATH=/usr/local/bin:/usr/bin:/bin"

func sh(t *testing.T, ctx context.Context, script string, env ...string) Result {
	t.Helper()
	res, err := Run(ctx, Command{
		Path: "/bin/sh", Argv: []string{"-c", script}, Env: append(env, searchPath), Dir: t.TempDir(), MaxOutput: 1 << 20,
	})
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func TestRun(t *testing.T) {
	t.Setenv("SECRET", "inherited")
	for _, tc := range []struct {
		name, script   string
		stdout, stderr string
		code           int
	}{
		{"streams and code", `echo "$A"; echo e >&2; exit 3`, "b\n", "e\n", 3},
		{"killed from outside", `kill -9 $$`, "", "", 137},
		{"nothing inherited", `echo "${SECRET-none}"`, "none\n", "", 0},
		{"no input", `readlink /proc/self/fd/0`, "/dev/null\n", "", 0},
		{"its own group", `test $(cut -d' ' -f5 /proc/$$/stat) = $$; echo $?`, "0\n", "", 0},
		{"no privileges to gain", `grep NoNewPrivs /proc/self/status`, "NoNewPrivs:\t1\n", "", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := sh(t, t.Context(), tc.script, "A=b")
			if string(r.Stdout) != tc.stdout || string(r.Stderr) != tc.stderr || r.ExitCode != tc.code || r.Killed || r.TooMuch {
				t.Errorf("got %q %q %+v", r.Stdout, r.Stderr, r)
			}
		})
	}
}

func TestRunWithoutEnvironment(t *testing.T) {
	t.Setenv("SECRET", "inherited")
	r, err := Run(t.Context(), Command{Path: "/usr/bin/env", MaxOutput: 1 << 20})
	if err != nil || r.ExitCode != 0 || len(r.Stdout) > 0 {
		t.Errorf("got %q, %v", r.Stdout, err)
	}
}

func TestRunRefuses(t *testing.T) {
	if _, err := Run(t.Context(), Command{Path: "/no/such/program"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	// A bare name would be looked up in a PATH, a relative one in any directory.
	for _, p := range []string{"sh", "./sh", ""} {
		if _, err := Run(t.Context(), Command{Path: p}); err == nil || !strings.Contains(err.Error(), "absolute") {
			t.Errorf("%q: got %v", p, err)
		}
	}
	if _, err := Run(t.Context(), Command{Path: "/bin/sh", Argv: []string{"a\x00b"}}); err == nil {
		t.Error("a NUL in an argument was accepted")
	}
}

func TestEndlessOutput(t *testing.T) {
	for _, script := range []string{`yes`, `yes >&2`, `yes & wait`} {
		r := sh(t, t.Context(), script)
		if !r.TooMuch || !r.Killed || len(r.Stdout)+len(r.Stderr) != 1<<20 {
			t.Errorf("%s: %d+%d bytes, too much %v, killed %v", script, len(r.Stdout), len(r.Stderr), r.TooMuch, r.Killed)
		}
	}
	if r := sh(t, t.Context(), `head -c 1048576 /dev/zero`); r.TooMuch || r.Killed || len(r.Stdout) != 1<<20 {
		t.Errorf("just as much as is allowed: %d bytes, %v %v", len(r.Stdout), r.TooMuch, r.Killed)
	}
}

// TestCancel: when ctx ends, the program and its helpers are gone within 200 ms.
func TestCancel(t *testing.T) {
	for name, script := range map[string]string{
		"alone":           `echo >"$UP"; sleep 60`,
		"with helpers":    `sleep 60 & sh -c 'sleep 60 & echo >"$UP"; sleep 60' & wait`,
		"deaf to signals": `trap '' TERM INT HUP QUIT; echo >"$UP"; while :; do sleep 1; done`,
		"stopped":         `echo >"$UP"; kill -STOP $$`,
	} {
		t.Run(name, func(t *testing.T) {
			need.Within(t, 200*time.Millisecond, func() time.Duration {
				dir := t.TempDir()
				up, mark := filepath.Join(dir, "up"), "PROCESS_TEST="+dir
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var at time.Time
				go func() {
					for _, err := os.Stat(up); err != nil && ctx.Err() == nil; _, err = os.Stat(up) {
						time.Sleep(time.Millisecond)
					}
					at = time.Now()
					cancel()
				}()
				if r := sh(t, ctx, script, mark, "UP="+up); !r.Killed || r.TooMuch {
					t.Errorf("got %+v", r)
				}
				awaitNone(t, mark)
				return time.Since(at)
			})
		})
	}
	t.Run("over before the start", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if r := sh(t, ctx, `echo late`); !r.Killed || r.ExitCode != -1 || len(r.Stdout) > 0 {
			t.Errorf("got %+v", r)
		}
	})
	t.Run("over after the end", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r := sh(t, ctx, `echo done`)
		cancel()
		if r.Killed || string(r.Stdout) != "done\n" {
			t.Errorf("got %+v", r)
		}
	})
}

// awaitNone waits until no process has the mark.
func awaitNone(t *testing.T, mark string) {
	t.Helper()
	t.Cleanup(func() { End(mark) })
	var ps processes
	need.Eventually(t, func() bool {
		ps = findMarked([]string{mark})
		ps.release()
		return len(ps) == 0
	}, func() string { return fmt.Sprint(len(ps), " processes are still there") })
}

// TestHelperLeftBehind: what stays in the program's group ends with it and
// does not hold the answer up; a daemon in its own session lives, and holds
// the answer up only shortly when it keeps the pipes.
func TestHelperLeftBehind(t *testing.T) {
	mark := "PROCESS_TEST=" + t.TempDir()
	defer End(mark)
	need.Within(t, pipeDelay, func() time.Duration {
		begin := time.Now()
		if r := sh(t, t.Context(), `sleep 60 & echo done`, mark); string(r.Stdout) != "done\n" || r.ExitCode != 0 || r.Killed {
			t.Errorf("got %+v", r)
		}
		return time.Since(begin)
	})
	awaitNone(t, mark)

	begin := time.Now()
	r := sh(t, t.Context(), `exec 3>&1; x=$(setsid sh -c 'sleep 300 >&3 2>&3 & echo up'); echo $x`, mark)
	if string(r.Stdout) != "up\n" || r.ExitCode != 0 || r.Killed || time.Since(begin) > need.Patience {
		t.Errorf("got %+v after %s", r, time.Since(begin))
	}
	ps := findMarked([]string{mark})
	ps.release()
	if len(ps) != 1 {
		t.Errorf("%d daemons live, want 1", len(ps))
	}
}

// TestLimits: a program's daemon has them too. (TestHardened has daemons that
// are started at once.)
func TestLimits(t *testing.T) {
	mark := "PROCESS_TEST=" + t.TempDir()
	defer End(mark)
	for range 3 {
		r := sh(t, t.Context(), `sleep 0.2; x=$(setsid sh -c 'sleep 60 >/dev/null 2>&1 & echo $!'); echo $x`, mark)
		pid, err := strconv.Atoi(strings.TrimSpace(string(r.Stdout)))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []struct {
			which int
			value unix.Rlimit
		}{
			{unix.RLIMIT_CORE, unix.Rlimit{}},
			{unix.RLIMIT_FSIZE, unix.Rlimit{Cur: MaxFile, Max: MaxFile}},
			{unix.RLIMIT_CPU, unix.Rlimit{Cur: 600, Max: 601}},
			{unix.RLIMIT_NOFILE, unix.Rlimit{Cur: MaxFiles, Max: MaxFiles}},
		} {
			var got unix.Rlimit
			if err := unix.Prlimit(pid, want.which, nil, &got); err != nil || got != want.value {
				t.Errorf("limit %d of the daemon: %+v, %v", want.which, got, err)
			}
		}
	}
	file := filepath.Join(t.TempDir(), "large")
	if r := sh(t, t.Context(), `sleep 0.2; head -c 100000000 /dev/zero >`+file); r.ExitCode == 0 {
		t.Error("a file of 100 MB was written")
	}
	if info, err := os.Stat(file); err != nil || info.Size() > MaxFile {
		t.Errorf("got %v, %v", info, err)
	}
}
