package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/server/process"
)

// chaosCalls is how many calls TestChaos makes.
const chaosCalls = 80

// TestChaos: while the command line, the daemons and Chromium are killed at
// random, each call is answered, and in the end no process, zombie, open file
// or run directory is left.
func TestChaos(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	chromium := l.realBrowser(t, "0.41.2")
	l.policy["limits"] = map[string]any{"rate_per_sec": 1000, "rate_burst": 10000}
	port := l.policy["agent_browser"].(map[string]any)["cdp_port"].(int)
	s := l.start(t, os.Stderr)
	url := site(t, servePage)
	for _, id := range []string{"a", "b", "c", "d"} { // what each needs is open before it is counted
		if a := s.raw(t, map[string]any{"session_id": id, "argv": []any{"open", url}}); a.ExitCode != 0 {
			t.Fatalf("got %+v", a)
		}
	}
	files, program := openFiles(t, s.cmd.Process.Pid), needBrowser(t)

	ctx, stop := context.WithCancel(t.Context())
	var killers, callers sync.WaitGroup
	var made atomic.Int64
	var killed [3]int
	var restart sync.RWMutex // held for writing while there is no browser
	killers.Go(func() {      // one in ten calls meets a dead command line or daemon
		for i, word := 0, [2]string{"--json", "AGENT_BROWSER_DAEMON="}; after(ctx, &made, 5*int64(i+1)); i++ {
			for !killOne(l, word[i%2]) && after(ctx, &made, 0) {
			}
			killed[i%2]++
		}
	})
	killers.Go(func() {
		for i := int64(1); after(ctx, &made, i*chaosCalls/5); i++ {
			restart.Lock()
			_ = syscall.Kill(-chromium.Pid, syscall.SIGKILL)
			_, _ = chromium.Wait()
			killed[2]++
			chromium = startChromium(t, program, port)
			restart.Unlock()
		}
	})
	var answered, worked atomic.Int64
	var failures sync.Map // what was said → how often
	for _, id := range []string{"a", "b", "c", "d"} {
		callers.Go(func() {
			step := 0
			for i := range chaosCalls / 4 {
				argv := [][]any{{"open", url}, {"snapshot", "-i"}, {"fill", "#n", "text"}, {"click", "#go"}, {"screenshot", "x.png"}, {"wait", "20"}, {"close"}}[step%7]
				step++
				made.Add(1)
				a, err := call(ctx, s.ClientSession, map[string]any{"session_id": id, "argv": argv, "timeout_sec": 30})
				if err != nil {
					t.Errorf("call %d of %s: %v", i, id, err)
					return
				}
				answered.Add(1)
				if a.ExitCode == 0 {
					worked.Add(1)
				} else {
					step = 0 // as an agent would: open the page again, after a moment
					time.Sleep(100 * time.Millisecond)
					restart.RLock()   // a slow start of the browser is one failure, not a hundred
					restart.RUnlock() //nolint:staticcheck // it waits, and that is all
					why, _, _ := strings.Cut(a.Stderr, "\n")
					n, _ := failures.LoadOrStore(why, new(atomic.Int64))
					n.(*atomic.Int64).Add(1)
				}
			}
		})
	}
	callers.Wait()
	stop()
	killers.Wait()
	t.Logf("%d answered, %d of them well; killed: %d command lines, %d daemons, %d browsers",
		answered.Load(), worked.Load(), killed[0], killed[1], killed[2])
	failures.Range(func(why, n any) bool {
		t.Logf("%4d × %s", n.(*atomic.Int64).Load(), why)
		return true
	})
	if answered.Load() < chaosCalls/4*4 || worked.Load() < chaosCalls/2 {
		t.Error("too few calls were answered well")
	}
	for i := range killed {
		if killed[i] < 3 {
			t.Errorf("killer %d found too little to kill", i)
		}
	}
	for _, id := range []string{"a", "b", "c", "d"} {
		if a := s.raw(t, map[string]any{"session_id": id, "argv": []any{"close"}}); a.ExitCode != 0 {
			t.Errorf("close: %+v", a)
		}
	}
	l.wantProcesses(t, 0)
	need.Eventually(t, func() bool { return openFiles(t, s.cmd.Process.Pid) <= files },
		func() string {
			return fmt.Sprintf("%d open files, %d at the start", openFiles(t, s.cmd.Process.Pid), files)
		})
	need.Eventually(t, func() bool { return len(childrenOf(t, s.cmd.Process.Pid)) == 0 },
		func() string { return fmt.Sprintf("children are left: %q", childrenOf(t, s.cmd.Process.Pid)) })
	s.Close()
	l.wantClean(t)
}

// after waits until so many calls were made; false when ctx is over.
func after(ctx context.Context, made *atomic.Int64, calls int64) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(rand.N(10 * time.Millisecond)):
		}
		if made.Load() >= calls {
			return true
		}
	}
}

// killOne kills one process of the lab's whose command line or environment
// holds a word; false if there is none now.
func killOne(l *lab, word string) bool {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	rand.Shuffle(len(dirs), func(i, j int) { dirs[i], dirs[j] = dirs[j], dirs[i] })
	for _, dir := range dirs {
		env, _ := os.ReadFile(filepath.Join(dir, "environ"))
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		if !bytes.Contains(env, []byte("BROWSER_SHELL_RUN="+l.state+"/")) || !bytes.Contains(append(env, line...), []byte(word)) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		p, err := os.FindProcess(pid)
		if err == nil && p.Kill() == nil {
			awaitEnded(p)
			return true
		}
	}
	return false
}

// awaitEnded waits until all threads of a killed process have ended: a signal takes its time on a busy machine, and
// nobody can tell before.
func awaitEnded(p *os.Process) {
	for deadline := time.Now().Add(need.Patience); !process.Ended(p) && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
	}
}

func openFiles(t *testing.T, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// childrenOf lists the children of a process, zombies too.
func childrenOf(t *testing.T, pid int) []string {
	t.Helper()
	var out []string
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, f := range stats {
		b, _ := os.ReadFile(f)
		if i := bytes.LastIndexByte(b, ')'); i > 0 {
			if fields := strings.Fields(string(b[i+1:])); len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
				out = append(out, string(b))
			}
		}
	}
	return out
}

// TestNoSecretGetsOut: what is planted in the page, the address, the words of a
// command and the environment is in no answer, not in the logs and not on
// stderr.
func TestNoSecretGetsOut(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.realBrowser(t, "0.41.2")
	secrets := []string{
		"AKIAIOSFODNN7EXAMPLQ", "ghp_16C7e42F292c6912E7710c838347Ae178B4a", "sk-proj-abcdefghijklmnop1234567890ABCD", "xoxb-123456789012-abcdefghijkl",
		"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U", "hunter2hunter2", "Zm9vYmFyYmF6cXV4MTIz", "s3cret-of-the-environment",
	}
	url := site(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<title>%s</title><p>%s</p><p>%s</p><p>token=%s</p><p>Authorization: Bearer %s</p><label>Password <input id=p value="%s"></label><a href="/?api_key=%s">x</a><button id=b onclick="document.title='%s'">b</button>`,
			secrets[0], secrets[1], secrets[2], secrets[6], secrets[4], secrets[5], secrets[6], secrets[7])
	})
	var stderr bytes.Buffer
	s := l.start(t, &stderr)
	var all strings.Builder
	for _, argv := range [][]any{
		{"open", url + "?token=" + secrets[6]},
		{"snapshot"},
		{"snapshot", "-i", "-u"},
		{"fill", "#p", secrets[5]},
		{"type", "#p", secrets[3]},
		{"click", "#" + secrets[0]},
		{"click", "#b"},
		{"snapshot"},
		{"open", "http://user:" + secrets[5] + "@site.test/"},
		{"eval", "fetch('//x/" + secrets[3] + "')"},
		{"wait", "--text", secrets[1], "--fn", secrets[2]},
		{"--password=" + secrets[5], "open"},
		{"open", url + "?next=" + secrets[3]},
	} {
		a := s.raw(t, map[string]any{"session_id": "s", "argv": argv})
		text, err := json.Marshal(a.raw)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	s.Close()
	all.Write(stderr.Bytes())
	logs, _ := filepath.Glob(filepath.Join(l.state, "*.jsonl*"))
	if len(logs) < 2 {
		t.Fatalf("logs: %q", logs)
	}
	for _, f := range logs {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(b)
	}
	for _, secret := range secrets {
		if n := strings.Count(all.String(), secret); n > 0 {
			at := strings.Index(all.String(), secret)
			t.Errorf("%s: %d times, for instance in …%s", secret, n, all.String()[max(0, at-200):at+len(secret)])
		}
	}
	if !strings.Contains(all.String(), "[redacted]") {
		t.Error("nothing was hidden")
	}
}
