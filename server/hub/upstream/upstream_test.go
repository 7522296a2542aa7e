package upstream

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/server/process"
)

// patience is for what has to come some time.
const patience = need.Patience

func self(t testing.TB) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// quick makes failures come quickly.
func quick() *times {
	t := normal
	t.backoff = []time.Duration{20 * time.Millisecond, 40 * time.Millisecond}
	t.grace = 200 * time.Millisecond
	return &t
}

// stub is a server in a role, stopped when the test ends; then nothing with
// its mark may be left.
func stub(t testing.TB, name string, o Options) *Server {
	t.Helper()
	s := New(Config{Name: name, Command: self(t), Env: map[string]string{role: name, "GORACE": "atexit_sleep_ms=0"}}, o)
	s.times = quick()
	cleanUp(t, s)
	return s
}

func cleanUp(t testing.TB, s *Server) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Stop(ctx); err != nil {
			t.Error(err)
		}
		if left := marked(s.mark); len(left) > 0 {
			t.Errorf("processes %v of server %s are left", left, s.config.Name)
		}
	})
}

// marked lists the processes with any of the marks in their environment.
func marked(marks ...string) (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, f := range files {
		env, _ := os.ReadFile(f)
		has := func(v string) bool { return slices.Contains(marks, v) }
		if slices.ContainsFunc(strings.Split(string(env), "\x00"), has) {
			pid, _ := strconv.Atoi(strings.Split(f, "/")[2])
			pids = append(pids, pid)
		}
	}
	return pids
}

func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

func (s *Server) is(want State) func() bool {
	return func() bool { return s.Status().State == want }
}

func up(t testing.TB, s *Server) *mcp.ClientSession {
	t.Helper()
	s.Start()
	var session *mcp.ClientSession
	eventually(t, s.config.Name+" runs", func() bool {
		var err error
		session, err = s.Session()
		return err == nil
	})
	return session
}

func echo(ctx context.Context, session *mcp.ClientSession) error {
	res, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "echo", Arguments: text{"x"}})
	if err == nil && (res.IsError || fmt.Sprint(res.StructuredContent) != "map[text:x]") {
		err = fmt.Errorf("got %+v", res)
	}
	return err
}

func TestGood(t *testing.T) {
	s := stub(t, "good", Options{})
	var down *DownError
	if _, err := s.Session(); !errors.As(err, &down) || down.State != Stopped || down.RetryIn != 0 {
		t.Errorf("before the start: %v", err)
	}
	if _, err := s.Await(t.Context()); !errors.As(err, &down) {
		t.Errorf("before the start: %v", err)
	}
	s.Start()
	s.Start()
	session, err := s.Await(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := echo(t.Context(), session); err != nil {
		t.Error(err)
	}
	st := s.Status()
	if st.State != Running || st.PID == 0 || st.Protocol != "2026-07-28" || st.Server != "stub 1" || st.Transport != "stdio" || st.Attempt != 1 || st.Restarts != 0 {
		t.Errorf("got %+v", st)
	}
	s.SetTools(session, 3)
	if n := s.Status().Tools; n != 3 {
		t.Errorf("%d tools", n)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if st := s.Status(); st.State != Stopped || st.PID != 0 || st.Tools != 0 {
		t.Errorf("got %+v", st)
	}
	if err := syscall.Kill(st.PID, 0); err != syscall.ESRCH {
		t.Errorf("process %d is there: %v", st.PID, err)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Error(err)
	}
	if session, err = s.Await(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := echo(t.Context(), session); err != nil {
		t.Error(err)
	}
	if n := s.Status().Restarts; n != 1 {
		t.Errorf("%d restarts", n)
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("SECRET", "inherited")
	t.Setenv("HOME", "/ours")
	t.Setenv("LANG", "C.UTF-8")
	s := stub(t, "env", Options{Hub: "test"})
	s.config.Env["LANG"] = "its"
	s.config.Env[serverVar] = "forged"
	up(t, s)
	eventually(t, "its environment is in the log", func() bool { return len(s.Log()) > 0 })
	log := string(s.Log())
	for _, want := range []string{`"HOME=/ours"`, `"LANG=its"`, `"PATH=`, `"` + hubVar + `=test"`, s.mark} {
		if !strings.Contains(log, want) {
			t.Errorf("%s is missing in %s", want, log)
		}
	}
	for _, not := range []string{"SECRET", "forged", "LANG=C"} {
		if strings.Contains(log, not) {
			t.Errorf("%s is in %s", not, log)
		}
	}
}

// TestNoise: what is no message is in the log and ends nothing.
func TestNoise(t *testing.T) {
	var heard atomic.Int64
	s := stub(t, "noisy", Options{Client: &mcp.ClientOptions{LoggingMessageHandler: func(context.Context, *mcp.LoggingMessageRequest) { heard.Add(1) }}})
	session := up(t, s)
	for range 50 {
		if err := echo(t.Context(), session); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "late noise is logged", func() bool { return strings.Contains(string(s.Log()), "stdout: late noise\n") })
	log := string(s.Log())
	for _, want := range []string{
		"stdout: Starting up...\n", `stdout: {"level":"info"}` + "\n", "stdout: []\n", "stdout: [1,2]\n", "stdout: null\n",
		`stdout: {"jsonrpc":"1.0",`, fmt.Sprintf("... (a line of %d bytes)\n", len("long \n")+maxLine), "... (a line of 20001 bytes)\n",
	} {
		if !strings.Contains(log, want) {
			t.Errorf("%q is not in the log", want)
		}
	}
	if heard.Load() != 1 {
		t.Errorf("%d messages of the batch were heard", heard.Load())
	}
	if st := s.Status(); st.State != Running || st.Restarts != 0 {
		t.Errorf("got %+v", st)
	}
}

// TestHugeAnswer: an answer that is longer than a line may be is an error at once, not when the caller's patience ends, and
// the server's state says why.
func TestHugeAnswer(t *testing.T) {
	servers := map[string]func(*testing.T) *Server{
		"stdio": func(t *testing.T) *Server { return stub(t, "good", Options{}) },
	}
	for _, h := range append(slices.Clone(handlers), jsonHandler) {
		servers[h.name] = func(t *testing.T) *Server {
			_, address := far(t, "127.0.0.1:0", h.handler())
			return remote(t, "http://"+address, h.transport)
		}
	}
	for name, server := range servers {
		t.Run(name, func(t *testing.T) {
			s := server(t)
			session := up(t, s)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if _, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "huge"}); err == nil || ctx.Err() != nil {
				t.Fatalf("got %v", err)
			} else if name == "stdio" && !strings.Contains(err.Error(), fmt.Sprint(maxLine)) {
				t.Errorf("got %v", err) // go-sdk keeps the reason of a remote one
			}
			eventually(t, "its state says why", func() bool { return strings.Contains(s.Status().LastError, fmt.Sprint(maxLine)) })
			eventually(t, "it answers again", func() bool {
				now, err := s.Session()
				return err == nil && echo(t.Context(), now) == nil
			})
		})
	}
}

// TestFailing: each is tried again and again, and calls fail at once.
func TestFailing(t *testing.T) {
	for _, tc := range []struct{ role, want string }{
		{"exits", "the program ended: exit status 3"},
		{"silent", "the server did not answer within"},
		{"closes", "closed its stdout"},
	} {
		t.Run(tc.role, func(t *testing.T) {
			s := stub(t, tc.role, Options{})
			switch tc.role {
			case "silent":
				s.times.start = 300 * time.Millisecond
			case "exits":
				s.times.grace = patience
			}
			s.Start()
			_, err := s.Await(t.Context())
			var down *DownError
			if !errors.As(err, &down) || down.State != Error || down.RetryIn <= 0 || !strings.Contains(down.Cause, tc.want) {
				t.Fatalf("got %#v", err)
			}
			eventually(t, "it is tried again", func() bool { st := s.Status(); return st.Attempt >= 3 && st.Restarts >= 2 })
			if st := s.Status(); !strings.Contains(st.LastError, tc.want) {
				t.Errorf("got %+v", st)
			}
		})
	}
	t.Run("no program", func(t *testing.T) {
		s := New(Config{Name: "none", Command: "/no/such/program"}, Options{})
		s.times = quick()
		cleanUp(t, s)
		s.Start()
		eventually(t, "the error shows", func() bool { return strings.Contains(s.Status().LastError, "no such file") })
	})
	t.Run("last words", func(t *testing.T) {
		s := stub(t, "exits", Options{})
		s.Start()
		eventually(t, "they are in the log", func() bool {
			return strings.Contains(string(s.Log()), "no such display\nhub: the program ended: exit status 3\n")
		})
	})
}

// TestRude: a server's words don't fill the status, nor look like the hub's.
func TestRude(t *testing.T) {
	s := stub(t, "rude", Options{})
	s.Start()
	eventually(t, "the error shows", func() bool { return s.Status().LastError != "" })
	st := s.Status()
	if !strings.Contains(st.LastError, "no hub: all is well [2J") || len(st.LastError) > 500 {
		t.Errorf("got %d bytes: %.100s", len(st.LastError), st.LastError)
	}
	if log := string(s.Log()); strings.Contains(log, "\nhub: all is well") || len(log) > 5000 {
		t.Errorf("got %d bytes: %.100s", len(log), log)
	}
}

// TestEras: servers that end at a request they don't know, and servers that
// don't answer it.
func TestEras(t *testing.T) {
	for _, role := range []string{"strict", "mute"} {
		t.Run(role, func(t *testing.T) {
			s := stub(t, role, Options{})
			s.times.probe = 100 * time.Millisecond
			up(t, s)
			if st := s.Status(); st.Protocol != "2025-06-18" || st.Server != "old 0" {
				t.Errorf("got %+v", st)
			}
		})
	}
}

func TestDeathInCall(t *testing.T) {
	s := stub(t, "good", Options{})
	s.times.backoff = []time.Duration{time.Hour}
	s.times.grace = patience
	session := up(t, s)
	if _, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "die"}); err == nil {
		t.Fatal("the call of a dead server succeeded")
	}
	eventually(t, "the death shows", s.is(Error))
	_, err := s.Session()
	var down *DownError
	if !errors.As(err, &down) || down.RetryIn < 47*time.Minute || down.RetryIn > 72*time.Minute || !strings.Contains(down.Cause, "exit status 7") {
		t.Errorf("got %#v", err)
	}
	if !strings.Contains(err.Error(), "next attempt") {
		t.Errorf("got %s", err)
	}
	if err := s.Restart(t.Context()); err != nil { // in the middle of an hour's wait
		t.Error(err)
	}
	if session, err = s.Await(t.Context()); err != nil || echo(t.Context(), session) != nil {
		t.Error(err)
	}
}

// TestStopInCall: Stop waits for no call and for no program.
func TestStopInCall(t *testing.T) {
	for _, role := range []string{"good", "stubborn", "forking"} {
		t.Run(role, func(t *testing.T) {
			s := stub(t, role, Options{})
			session := up(t, s)
			failed := make(chan error, 1)
			go func() {
				_, err := session.CallTool(context.Background(), &mcp.CallToolParams{Name: "wait"})
				failed <- err
			}()
			if role == "forking" {
				eventually(t, "the grandchildren are there", func() bool { return len(marked(s.mark)) >= 3 })
			}
			if err := s.Stop(t.Context()); err != nil {
				t.Error(err)
			}
			if left := marked(s.mark); len(left) > 0 {
				t.Errorf("processes %v are left", left)
			}
			select {
			case err := <-failed:
				if err == nil {
					t.Error("the call succeeded")
				}
			case <-time.After(patience):
				t.Error("the call still waits")
			}
		})
	}
}

// TestDeaf: a program that reads nothing is ended, and holds up nobody whose
// time is over.
func TestDeaf(t *testing.T) {
	s := stub(t, "deaf", Options{})
	s.times.write = 300 * time.Millisecond
	session := up(t, s)
	large := make(chan error, 1)
	go func() {
		_, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "echo", Arguments: text{strings.Repeat("x", 1<<20)}})
		large <- err
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := echo(ctx, session); err == nil {
		t.Error("it answered")
	}
	if err := <-large; err == nil {
		t.Error("it answered")
	}
	eventually(t, "it is started again", func() bool { return s.Status().Restarts > 0 })
	if log := string(s.Log()); !strings.Contains(log, errStuck.Error()) {
		t.Errorf("got %s", log)
	}
}

// TestFlood: notifications nobody can keep up with are dropped.
func TestFlood(t *testing.T) {
	release := make(chan struct{})
	s := stub(t, "flooding", Options{Client: &mcp.ClientOptions{ProgressNotificationHandler: func(context.Context, *mcp.ProgressNotificationClientRequest) { <-release }}})
	session := up(t, s)
	eventually(t, "it shows in the log", func() bool { return strings.Contains(string(s.Log()), "are dropped") })
	if err := echo(t.Context(), session); err != nil {
		t.Error(err)
	}
	close(release)
}

// TestAsking: of a server's requests so many run at once and no more, and no
// two with one id.
func TestAsking(t *testing.T) {
	var running, most atomic.Int64
	release := make(chan struct{})
	s := stub(t, "asking", Options{Client: &mcp.ClientOptions{ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		most.Store(max(most.Load(), running.Add(1)))
		<-release
		running.Add(-1)
		return &mcp.ElicitResult{Action: "decline"}, nil
	}}})
	session := up(t, s)
	eventually(t, "many run", func() bool { return running.Load() == maxCalls })
	if err := echo(t.Context(), session); err != nil {
		t.Error(err)
	}
	close(release)
	eventually(t, "none runs", func() bool { return running.Load() == 0 })
	if most.Load() > maxCalls {
		t.Errorf("%d ran at once", most.Load())
	}
}

// TestKilled: others don't notice, and it comes back.
func TestKilled(t *testing.T) {
	victim, other := stub(t, "good", Options{}), stub(t, "good", Options{})
	times := normal
	times.grace = patience // for a busy kernel to reap the victim, whose end is the reason then
	victim.times, other.times = &times, &times
	up(t, victim)
	session := up(t, other)
	stop := make(chan struct{})
	var calls, during atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := echo(t.Context(), session); err != nil {
					t.Errorf("a call of the other server: %v", err)
					return
				}
				calls.Add(1)
				if v, err := victim.Session(); err == nil {
					_ = echo(t.Context(), v)
				}
			}
		})
	}
	eventually(t, "calls run", func() bool { return calls.Load() > 100 })
	pid := victim.Status().PID
	killed := time.Now()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the death shows", func() bool { return victim.Status().PID != pid }) // it is in Error for a second only
	seen := time.Since(killed)
	before := calls.Load()
	eventually(t, "it runs again", victim.is(Running))
	back := time.Since(killed)
	during.Store(calls.Load() - before)
	close(stop)
	wg.Wait()
	t.Logf("seen after %s, back after %s, %d calls of the other meanwhile", seen, back, during.Load())
	if during.Load() == 0 {
		t.Error("the other server was held up")
	}
	if back > patience/2 {
		t.Errorf("back after %s", back)
	}
	if st := victim.Status(); st.LastError != "the program ended: signal: killed" || st.Attempt != 2 || st.Restarts != 1 || st.PID == pid {
		t.Errorf("got %+v", st)
	}
	if st := other.Status(); st.Restarts != 0 {
		t.Errorf("got %+v", st)
	}
}

// TestHold: after a while of running the attempts are counted anew.
func TestHold(t *testing.T) {
	s := stub(t, "good", Options{})
	s.times.hold = time.Millisecond
	s.times.backoff = []time.Duration{time.Hour}
	for range 3 {
		up(t, s)
		eventually(t, "it holds", func() bool { return s.Status().Attempt == 0 })
		before := s.Status().Restarts
		_ = syscall.Kill(s.Status().PID, syscall.SIGKILL)
		eventually(t, "it is back at once", func() bool { st := s.Status(); return st.State == Running && st.Restarts > before })
	}
}

func TestBackoff(t *testing.T) {
	for n, want := range []time.Duration{0, 1, 2, 4, 8, 16, 30, 30, 30} {
		want *= time.Second
		seen := map[time.Duration]bool{}
		for range 1000 {
			got := normal.retryDelay(n)
			seen[got] = true
			if got < want*4/5 || got > want*6/5 {
				t.Fatalf("after attempt %d: %s", n, got)
			}
		}
		if n > 0 && len(seen) < 100 {
			t.Errorf("after attempt %d: always the same", n)
		}
	}
	if got := normal.retryDelay(1 << 30); got < 24*time.Second {
		t.Errorf("much later: %s", got)
	}
}

// TestOrder: OnState hears each change once, one after the other, and may call
// what it likes.
func TestOrder(t *testing.T) {
	var s *Server
	var mu sync.Mutex
	var states []State
	var at atomic.Int64
	s = stub(t, "good", Options{OnState: func(st Status) {
		if at.Add(1) != 1 {
			t.Error("called twice at once")
		}
		s.Status()
		s.Log()
		mu.Lock()
		states = append(states, st.State)
		mu.Unlock()
		at.Add(-1)
	}})
	s.times.backoff = []time.Duration{time.Millisecond}
	up(t, s)
	for range 3 {
		pid := s.Status().PID
		_ = syscall.Kill(pid, syscall.SIGKILL)
		eventually(t, "it runs again", func() bool { st := s.Status(); return st.State == Running && st.PID != pid })
	}
	want := []State{Starting, Running, Error, Starting, Running, Error, Starting, Running, Error, Starting, Running}
	eventually(t, "all are told", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(slices.Compact(slices.Clone(states))) >= len(want)
	})
	mu.Lock()
	defer mu.Unlock()
	if got := slices.Compact(states); !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

// TestAnywhere: methods at any time from anywhere, and nothing is left.
func TestAnywhere(t *testing.T) {
	servers := []*Server{stub(t, "good", Options{OnState: func(Status) {}}), stub(t, "forking", Options{}), stub(t, "exits", Options{})}
	var wg sync.WaitGroup
	for i := range 12 {
		s := servers[i%len(servers)]
		wg.Go(func() {
			for j := range 8 {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(10+20*j)*time.Millisecond)
				switch (i + j) % 4 {
				case 0:
					_ = s.Stop(ctx)
				case 1:
					_ = s.Restart(ctx)
				default:
					s.Start()
					if session, err := s.Await(ctx); err == nil {
						_ = echo(ctx, session)
					}
				}
				s.Status()
				s.Log()
				cancel()
			}
		})
	}
	wg.Wait()
}

// TestHubKilled: programs don't outlive a killed hub.
func TestHubKilled(t *testing.T) {
	cmd := exec.Command(self(t))
	cmd.Env = []string{role + "=parent"}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	_, err = fmt.Fscan(out, &pid)
	child, findErr := os.FindProcess(pid)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err = errors.Join(err, findErr); err != nil {
		t.Fatal(err)
	}
	defer child.Release()
	eventually(t, "the program ends", func() bool { return process.Ended(child) })
}

// TestSweep: what a killed hub left is found by its name.
func TestSweep(t *testing.T) {
	name := t.TempDir()
	cmd := exec.Command(self(t))
	cmd.Env = []string{role + "=sleeper", hubVar + "=" + name}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	eventually(t, "it is there", func() bool { return len(marked(hubVar+"="+name)) == 1 })
	if left := Sweep(name); left != 0 {
		t.Errorf("%d left", left)
	}
	<-ended
	Sweep("") // ends nothing, us least of all
}

// TestNothingKept: neither goroutines nor files are left of servers that were
// there.
func TestNothingKept(t *testing.T) {
	one := func(role string) {
		s := stub(t, role, Options{})
		if role == "silent" {
			s.times.start = 200 * time.Millisecond
		}
		s.Start()
		if session, err := s.Await(t.Context()); err == nil {
			_ = echo(t.Context(), session)
		}
		if err := s.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
	one("good") // what is made once
	open, goroutines := files(), runtime.NumGoroutine()
	for range 4 {
		for _, role := range []string{"good", "forking", "exits", "silent", "closes"} {
			one(role)
		}
	}
	eventually(t, "as many files and goroutines as before", func() bool {
		return files() <= open && runtime.NumGoroutine() <= goroutines
	})
}
