package audit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slimctl/slimctl/internal/need"
)

// TestMain lets the test binary be a second process that writes the log.
func TestMain(m *testing.M) {
	switch os.Getenv("AUDIT_TEST_CHILD") {
	case "write":
		os.Exit(childWrites())
	case "full":
		os.Exit(childIsFull())
	}
	os.Exit(m.Run())
}

// childWrites writes one line and then waits to be killed.
func childWrites() int {
	l, err := Open(os.Getenv("AUDIT_TEST_FILE"), Limits{MaxBytes: 20000, Keep: 50})
	if err == nil {
		err = l.Write(call("x"))
	}
	fmt.Println(err)
	if err == nil {
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
	return 1
}

// childIsFull may write files of 3000 bytes only: as a full disk it takes a
// part of a line.
func childIsFull() int {
	signal.Ignore(syscall.SIGXFSZ)
	var old syscall.Rlimit
	_ = syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 3000, Max: old.Max}); err != nil {
		fmt.Println(err)
		return 1
	}
	path := os.Getenv("AUDIT_TEST_FILE")
	l, err := Open(path, Limits{MaxBytes: 1 << 20, Keep: 2})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	written := 0
	for ; err == nil && written < 1000; written++ {
		err = l.Write(call("x"))
	}
	info, _ := os.Stat(path) // not even a shorter line may fit
	_ = syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: uint64(info.Size()) + 10, Max: old.Max})
	if err == nil || l.Ready() == nil || l.Write(call("y")) == nil {
		fmt.Println("a full disk was not noticed:", err)
		return 1
	}
	if r, err := Verify("", path); err != nil || !r.OK || r.Lines != written-1 {
		fmt.Println("after the full disk:", r, err)
		return 1
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
		fmt.Println(err)
		return 1
	}
	if err := errors.Join(l.Ready(), l.Write(call("z"))); err != nil {
		fmt.Println("there is room again:", err)
		return 1
	}
	return 0
}

func call(id string) Record {
	return Record{
		Event: ToolFinished, Events: []string{ToolCall, SandboxExec, ToolFinished}, RequestID: id, Session: "0011223344556677",
		ClientName: "test", ClientVersion: "1", Protocol: "2026-07-28", Tool: "browser-shell", Subcommand: "open",
		Argv: []string{"open", "[address]"}, URLHost: "example.com", Decision: "allow", DurationMS: 12, BytesOut: 34,
	}
}

func open(t *testing.T, path string) *Log {
	t.Helper()
	l, err := Open(path, Limits{MaxBytes: 1 << 20, Keep: 3})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func write(t *testing.T, l *Log, n int) {
	t.Helper()
	for i := range n {
		if err := l.Write(call(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
}

func newPath(t *testing.T) string { return filepath.Join(t.TempDir(), "audit.jsonl") }

func lines(t *testing.T, path string) []string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Collect(strings.Lines(string(b)))
}

func wantWhole(t *testing.T, n int, files ...string) Report {
	t.Helper()
	r, err := Verify("", files...)
	if err != nil {
		t.Fatal(err)
	}
	if !r.OK || r.Lines != n {
		t.Fatalf("%+v, break %+v; want %d whole lines", r, r.Break, n)
	}
	return r
}

// TestLine pins the form that others read, and the recipe of the package
// comment.
func TestLine(t *testing.T) {
	path := newPath(t)
	l := open(t, path)
	write(t, l, 1)
	if err := l.Write(Record{Event: NetworkBlocked, Host: "a<b>.example", Port: 443, Address: "10.0.0.1", Decision: "deny", Rule: "url.private"}); err != nil {
		t.Fatal(err)
	}
	got := lines(t, path)
	keys := `"ts" "seq" "event" "events" "request_id" "session" "protocol" "tool" "subcommand" "argv" "url_host" "decision" "client" "name" "version" "exit_code" "duration_ms" "bytes_out" "prev" "hash"`
	rest := got[0]
	for _, k := range strings.Fields(keys) {
		var ok bool
		if _, rest, ok = strings.Cut(rest, k+":"); !ok {
			t.Errorf("%s is missing or out of place in %s", k, got[0])
		}
	}
	if strings.Contains(got[1], "exit_code") || !strings.Contains(got[1], `"host":"a<b>.example","port":443,"address":"10.0.0.1","decision":"deny"`) {
		t.Errorf("egress line: %s", got[1])
	}
	prev := strings.Repeat("0", 64)
	for _, s := range got {
		var v struct{ Prev, Hash string }
		if err := json.Unmarshal([]byte(s), &v); err != nil {
			t.Fatal(err)
		}
		bare := strings.Replace(strings.TrimSuffix(s, "\n"), `,"hash":"`+v.Hash+`"`, "", 1)
		if v.Prev != prev || v.Hash != hashLine([]byte(bare)) {
			t.Errorf("prev %s, hash %s of %s", v.Prev, v.Hash, bare)
		}
		prev = v.Hash
	}
	if seq, hash := l.Head(); seq != 2 || hash != prev {
		t.Errorf("head %d %s", seq, hash)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// TestLongFields: whatever a caller sends, a line has at most 64 KiB, is valid
// and says that something was cut.
func TestLongFields(t *testing.T) {
	path := newPath(t)
	l := open(t, path)
	for _, s := range []string{strings.Repeat("\x00", 1<<20), strings.Repeat("é", 1<<18), "\xff\xfe" + strings.Repeat("\"", 1<<17), `","prev":"` + strings.Repeat("0", 64) + `","hash":"` + strings.Repeat("0", 64) + "\"}\n"} {
		argv := make([]string, 5000)
		for i := range argv {
			argv[i] = s
		}
		rec := call(s)
		rec.Argv, rec.Events, rec.Rule, rec.ClientName, rec.Note = argv, argv, s, s, s
		rec.Data = map[string]any{"text": s, "words": argv[:10]}
		if err := l.Write(rec); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range lines(t, path) {
		if len(s) > 64<<10 || !json.Valid([]byte(s)) || !strings.Contains(s, " more cut]") {
			t.Errorf("%d bytes: %.200s", len(s), s)
		}
	}
	wantWhole(t, 4, path)
}

func TestGoesOn(t *testing.T) {
	path := newPath(t)
	for range 3 {
		l := open(t, path)
		write(t, l, 2)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if l.Ready() == nil || l.Write(call("")) == nil {
			t.Fatal("a closed log takes lines")
		}
	}
	if r := wantWhole(t, 6, path); !r.Complete || r.LastSeq != 6 {
		t.Errorf("%+v", r)
	}
}

// files lists a log's, the oldest first.
func files(t *testing.T, path string) []string {
	t.Helper()
	old, err := listNumbered(path)
	if err != nil {
		t.Fatal(err)
	}
	return append(old, path)
}

func TestRotation(t *testing.T) {
	path := newPath(t)
	limits := Limits{MaxBytes: 2000, Keep: 3, Rotate: true}
	l, err := Open(path, limits)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	write(t, l, 30)
	all := files(t, path)
	if len(all) != 4 {
		t.Fatalf("%q", all)
	}
	n := 0
	for _, f := range all {
		info, err := os.Stat(f)
		if err != nil || info.Size() > 2000 || info.Mode().Perm() != 0o600 {
			t.Fatalf("%s: %v, %v", f, info, err)
		}
		n += len(lines(t, f))
	}
	// Lines were lost: it needs an anchor, such as the last line that is kept elsewhere.
	r, err := Verify("", all...)
	if err != nil || r.OK || r.Break.Kind != Removed || r.Complete || r.LastSeq != 30 || r.FirstSeq != int64(30-n+1) {
		t.Errorf("%+v, %+v, %v", r, r.Break, err)
	}
	before := parseLine([]byte(strings.TrimSuffix(lines(t, all[0])[0], "\n"))).prev
	for anchor, ok := range map[string]bool{
		fmt.Sprintf("%d:%s", r.FirstSeq-1, before): true, before: true, "30:" + r.Head: true, r.Head: true,
		fmt.Sprintf("%d:%s", r.FirstSeq, before): false, "29:" + r.Head: false, strings.Repeat("0", 64): false,
	} {
		if r, err := Verify(anchor, all...); err != nil || r.OK != ok {
			t.Errorf("anchor %s: %+v, %v", anchor, r.Break, err)
		}
	}
	// A file in the middle is gone.
	if r, _ := Verify(before, all[0], all[2], all[3]); r.OK || r.Break.Kind != Removed || r.Break.File != all[2] || r.Break.Line != 1 {
		t.Errorf("%+v", r.Break)
	}
	// A crash between the rename and the first line of the new file.
	l.Close()
	if err := os.Rename(path, path+".000000000030"); err != nil {
		t.Fatal(err)
	}
	l = open(t, path)
	write(t, l, 1)
	if r, _ := Verify(before, files(t, path)...); !r.OK || r.LastSeq != 31 {
		t.Errorf("%+v", r)
	}
}

// TestFullLog: a log that keeps all takes no more calls when it is full, but what has begun; it goes on when somebody has
// taken older files away, and says how many records are missing. No line is lost.
func TestFullLog(t *testing.T) {
	path := newPath(t)
	limits := Limits{MaxBytes: 2000, Keep: 2}
	l, err := Open(path, limits)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	written := 0
	for l.Ready() == nil {
		write(t, l, 1)
		written++
	}
	for _, rec := range []Record{call("x"), {Event: PolicyBlocked, Decision: "deny", Refused: true}} {
		if err := l.Write(rec); !errors.Is(err, ErrFull) {
			t.Errorf("a full log: %v", err)
		}
	}
	if err := l.Finish(call("running")); err != nil {
		t.Errorf("a call that ran: %v", err)
	}
	written++
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if l, err = Open(path, limits); err != nil || !errors.Is(l.Ready(), ErrFull) {
		t.Fatalf("opened again: %v", err)
	}
	defer l.Close()
	if err := l.Write(call("x")); !errors.Is(err, ErrFull) {
		t.Errorf("opened again: %v", err)
	}
	if all := files(t, path); len(all) != 3 {
		t.Fatalf("%q", all)
	}
	wantWhole(t, written, files(t, path)...)
	away := filepath.Join(t.TempDir(), "away")
	if err := os.Rename(files(t, path)[0], away); err != nil {
		t.Fatal(err)
	}
	if err := l.Ready(); err != nil {
		t.Fatal(err)
	}
	write(t, l, 1)
	if r := wantWhole(t, written+2, append(files(t, path), away)...); !r.Complete {
		t.Errorf("%+v", r)
	}
	if got := lines(t, path); !strings.Contains(got[0]+strings.Join(lines(t, files(t, path)[1]), ""), "1 records could not be written") {
		t.Errorf("%q", got)
	}
}

// TestWhatAClientSays: its own words have 128 bytes at most as they are written, and a refused call a few hundred, whatever
// they consist of.
func TestWhatAClientSays(t *testing.T) {
	for _, s := range []string{"\x01", "\"", "\\", "\xff", "\u2028", "é", "a", "\ufffd", "😀"} {
		path := newPath(t)
		l := open(t, path)
		s := strings.Repeat(s, 5000)
		rec := Record{
			Event: PolicyBlocked, Decision: "deny", Refused: true, RequestID: s, TraceID: s, Subject: s, Session: s, ClientName: s, ClientVersion: s,
			Protocol: s, Tool: "browser-shell", Argv: []string{s, s, s}, URLHost: s, Note: s,
		}
		if err := l.Write(rec); err != nil {
			t.Fatal(err)
		}
		line := lines(t, path)[0]
		if len(line) > 2500 {
			t.Errorf("%q: %d bytes", s[:1], len(line))
		}
		var v map[string]json.RawMessage
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatal(err)
		}
		for key, most := range map[string]int{"request_id": 130, "trace_id": 130, "subject": 130, "session": 130, "protocol": 130, "client": 300, "argv": 300, "url_host": 258, "note": 258} {
			if n := len(v[key]); n > most || n == 0 {
				t.Errorf("%q: %s has %d bytes", s[:1], key, n)
			}
		}
		if b, _ := json.Marshal(BoundText(s)); len(b) > 130 {
			t.Errorf("%q: %d bytes", s[:1], len(b))
		}
	}
}

// TestRepeatsAreCounted: of refusals that are alike the first has a line and the others are counted, with times, at the end
// of a minute and at the end of the log; however many kinds there are, the lines stay few.
func TestRepeatsAreCounted(t *testing.T) {
	for name, c := range map[string]struct {
		rec func(i int) Record
		max int
	}{
		"one kind": {func(int) Record { return Record{Subject: "key:1", Rule: "url.private", Host: "a.test", Port: 80} }, 2},
		"two": {func(i int) Record {
			return Record{Subject: "key:1", Rule: "url.private", Host: "a.test", Port: 80 + i%2}
		}, 4},
		"requests":  {func(i int) Record { return Record{RequestID: fmt.Sprint(i), ClientName: fmt.Sprint(i), Rule: "x"} }, 2},
		"many":      {func(i int) Record { return Record{Rule: "x", Argv: []string{"eval", fmt.Sprint(i)}} }, maxKinds + 2},
		"many, two": {func(i int) Record { return Record{Rule: fmt.Sprint(i % 2), Host: fmt.Sprint(i)} }, maxKinds + 4},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const flood = 2000
				path := newPath(t)
				l, err := Open(path, Limits{MaxBytes: 1 << 20, Keep: 1})
				if err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				one := func(i int) {
					rec := c.rec(i)
					rec.Event, rec.Decision, rec.Refused = PolicyBlocked, "deny", true
					if err := l.Write(rec); err != nil {
						t.Fatal(err)
					}
				}
				for i := range flood {
					one(i)
				}
				if n := len(lines(t, path)); n > c.max {
					t.Errorf("%d lines at once", n)
				}
				time.Sleep(repeatTime)
				synctest.Wait()
				if n := len(lines(t, path)); n > 2*c.max {
					t.Errorf("%d lines after a minute", n)
				}
				for i := range 10 {
					one(i)
				}
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
				total := 0
				for _, line := range lines(t, path) {
					var v struct {
						Note string
						Data struct {
							Count       int
							First, Last time.Time
						}
					}
					if err := json.Unmarshal([]byte(line), &v); err != nil {
						t.Fatal(err)
					}
					if v.Data.Count > 0 && (v.Note != fmt.Sprintf("and %d more", v.Data.Count) || v.Data.First.Before(begin.Truncate(time.Second)) || v.Data.Last.Before(v.Data.First)) {
						t.Errorf("%s", line)
					}
					total += max(v.Data.Count, 1)
				}
				if total != flood+10 {
					t.Errorf("%d refusals are counted, of %d", total, flood+10)
				}
				wantWhole(t, len(lines(t, path)), path)
			})
		})
	}
}

// TestNoiseHidesNobody: whatever one subject or one of its sessions repeats, the refusals of others keep their subject,
// session, client, request and host.
func TestNoiseHidesNobody(t *testing.T) {
	refused := func(subject, session, host string, argv ...string) Record {
		return Record{
			Event: PolicyBlocked, Decision: "deny", Refused: true, Rule: "url.private", Subject: subject, Session: session,
			RequestID: "of " + session + " " + host, ClientName: "client of " + session, URLHost: host, Argv: argv,
		}
	}
	kinds := func(subject, session string, n int) (all []Record) {
		for i := range n {
			all = append(all, refused(subject, session, "", "eval", fmt.Sprint("x", i)))
		}
		return all
	}
	for name, noise := range map[string][]Record{
		"the same refusal of another session": {refused("key:1", "noise", "", "open", "[address]")},
		"32 kinds of another session":         kinds("key:1", "noise", 32),
		"thousands of kinds of another":       kinds("key:1", "noise", 3000),
		"32 kinds of another subject":         kinds("key:2", "noise", 32),
		"kinds in every session of another":   slices.Concat(kinds("key:2", "a", 40), kinds("key:2", "b", 40), kinds("key:2", "c", 40)),
	} {
		t.Run(name, func(t *testing.T) {
			path := newPath(t)
			l := open(t, path)
			for _, rec := range noise {
				if err := l.Write(rec); err != nil {
					t.Fatal(err)
				}
			}
			before := len(lines(t, path))
			for _, argv := range [][]string{{"screenshot", "/etc/passwd"}, {"state", "save", "/tmp/x"}, {"open", "[address]"}, {"open", "[address]"}} {
				host := ""
				if argv[0] == "open" {
					host = fmt.Sprint("10.9.9.", len(lines(t, path)))
				}
				if err := l.Write(refused("key:1", "real", host, argv...)); err != nil {
					t.Fatal(err)
				}
				all := lines(t, path)
				got := all[len(all)-1]
				for _, want := range append(argv, `"subject":"key:1"`, `"session":"real"`, "client of real", `"request_id":"of real `+host+`"`, host) {
					if !strings.Contains(got, want) {
						t.Errorf("no %s in %s", want, got)
					}
				}
			}
			if n := len(lines(t, path)) - before; n != 4 {
				t.Errorf("4 refusals made %d lines", n)
			}
		})
	}
}

// TestOverflowKeepsWho: beyond its kinds a session's refusals, and beyond its sessions a subject's, are counted by their
// rule, and the line says of whom, of which sessions and for which hosts.
func TestOverflowKeepsWho(t *testing.T) {
	path := newPath(t)
	l, err := Open(path, Limits{MaxBytes: 16 << 20, Keep: 1})
	if err != nil {
		t.Fatal(err)
	}
	const sessions, perSession = 2 * maxSessions, 3 * maxKinds
	for i := range sessions * perSession {
		session := fmt.Sprint("session ", i/perSession)
		if err := l.Write(Record{
			Event: PolicyBlocked, Decision: "deny", Refused: true, Rule: "url.private", Subject: "key:1", Session: session,
			RequestID: fmt.Sprint("r", i), URLHost: fmt.Sprintf("10.0.%d.%d", i/perSession, i%perSession),
		}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(lines(t, path)); n > (maxSessions+1)*(maxKinds+1) {
		t.Errorf("%d lines", n)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	text, total := "", 0
	for _, line := range lines(t, path) {
		var v struct {
			Subject, Session string
			Data             struct{ Count int }
		}
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatal(err)
		}
		if v.Subject != "key:1" || v.Session == "" {
			t.Errorf("of whom? %s", line)
		}
		total += max(v.Data.Count, 1)
		text += line
	}
	if total != sessions*perSession {
		t.Errorf("%d are counted, of %d", total, sessions*perSession)
	}
	for i := range sessions {
		if session := fmt.Sprintf("%q", fmt.Sprint("session ", i)); !strings.Contains(text, session) {
			t.Errorf("no line names %s", session)
		}
	}
	for i := range perSession {
		if host := fmt.Sprintf(`"10.0.0.%d"`, i); !strings.Contains(text, host) {
			t.Errorf("no line names %s", host)
		}
	}
}

// TestRepeatsAreBounded: the memory for what is counted has a bound, whoever comes; what is forgotten is written first.
func TestRepeatsAreBounded(t *testing.T) {
	path := newPath(t)
	l, err := Open(path, Limits{MaxBytes: 64 << 20, Keep: 1})
	if err != nil {
		t.Fatal(err)
	}
	const subjects = 3 * maxRepeats
	for i := range subjects {
		for range 2 {
			if err := l.Write(Record{Event: PolicyBlocked, Refused: true, Rule: "url.private", Subject: fmt.Sprint("sub:", i), Session: "s"}); err != nil {
				t.Fatal(err)
			}
		}
		if l.repeats.size > maxRepeats {
			t.Fatalf("%d are held", l.repeats.size)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if n := len(lines(t, path)); n != 2*subjects {
		t.Errorf("%d lines of %d subjects", n, subjects)
	}
}

// TestRepeatsArePatient: counts wait for a log that can't be written, and a kind that is over is forgotten.
func TestRepeatsArePatient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := newPath(t)
		l := open(t, path)
		defer l.Close()
		rec := Record{Event: PolicyBlocked, Decision: "deny", Rule: "x", Refused: true}
		for range 3 {
			if err := l.Write(rec); err != nil {
				t.Fatal(err)
			}
		}
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			need.Missing(t, "%v", err)
		}
		defer full.Close()
		l.mu.Lock()
		good := l.file
		l.file = full
		err = l.writeCounts()
		l.file = good
		l.mu.Unlock()
		if !errors.Is(err, ErrFull) {
			t.Errorf("got %v", err)
		}
		time.Sleep(repeatTime)
		synctest.Wait()
		if got := lines(t, path); len(got) != 2 || !strings.Contains(got[1], `"and 2 more"`) {
			t.Errorf("%q", got)
		}
		time.Sleep(repeatTime)
		synctest.Wait()
		l.mu.Lock()
		if l.repeats.size != 0 || len(l.tables) != 0 || len(l.repeats.sessions) != 0 || l.repeats.timer != nil {
			t.Error("what is over is not forgotten")
		}
		l.mu.Unlock()
	})
}

// TestOneWriter: a second process is refused, by name, and takes over when the first has been killed. Goroutines of one
// process share a log, which is rotated often; the chain holds and no line is lost.
func TestOneWriter(t *testing.T) {
	path := newPath(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "AUDIT_TEST_CHILD=write", "AUDIT_TEST_FILE="+path)
	stdin, err1 := cmd.StdinPipe()
	stdout, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	if said, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || said != "<nil>\n" {
		t.Fatalf("%q %v", said, err)
	}
	limits := Limits{MaxBytes: 20000, Keep: 50}
	if l, err := Open(path, limits); err == nil || !strings.Contains(err.Error(), path+": another process writes it") {
		t.Fatalf("%v %v", l, err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	l, err := Open(path, limits)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const each = 100
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range each {
				if err := errors.Join(l.Ready(), l.Write(call(fmt.Sprint(g, "-", i)))); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if l, err := Open(path, limits); err == nil { // the lock has moved to the new file
		t.Errorf("%v", l)
	}
	all := files(t, path)
	if len(all) < 5 {
		t.Fatalf("%q", all)
	}
	if r := wantWhole(t, 1+8*each, all...); !r.Complete {
		t.Errorf("%+v", r)
	}
}

func TestFullDisk(t *testing.T) {
	path := newPath(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "AUDIT_TEST_CHILD=full", "AUDIT_TEST_FILE="+path)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got := lines(t, path)
	note := got[len(got)-2]
	if !strings.Contains(note, `"event":"AUDIT_REPAIRED"`) || !strings.Contains(note, "2 records could not be written") {
		t.Errorf("%s", note)
	}
	wantWhole(t, len(got), path)
	if torn, _ := filepath.Glob(path + ".torn-*"); len(torn) > 0 {
		t.Errorf("%q is left", torn)
	}
}

// TestDevFull: write(2) itself fails, after Ready.
func TestDevFull(t *testing.T) {
	path := newPath(t)
	l := open(t, path)
	write(t, l, 1)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		need.Missing(t, "%v", err)
	}
	defer full.Close()
	good := l.file
	l.mu.Lock()
	l.file = full
	err = l.append(call("x"))
	l.file = good
	l.mu.Unlock()
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got %v", err)
	}
	wantWhole(t, 1, path)
}

func TestTornLine(t *testing.T) {
	for name, torn := range map[string]string{"half a line": `{"ts":"2026-`, "zeros": strings.Repeat("\x00", 4096)} {
		t.Run(name, func(t *testing.T) {
			path := newPath(t)
			l := open(t, path)
			write(t, l, 3)
			appendTo(t, path, torn)
			if err := l.Ready(); err == nil {
				t.Error("the running one goes on")
			}
			l.Close()
			write(t, open(t, path), 1)
			wantWhole(t, 5, path)
			if got := lines(t, path)[3]; !strings.Contains(got, Repaired) || !strings.Contains(got, hashLine([]byte(torn))) {
				t.Errorf("%s", got)
			}
			kept, _ := filepath.Glob(path + ".torn-*")
			if len(kept) != 1 {
				t.Fatalf("%q", kept)
			}
			if b, _ := os.ReadFile(kept[0]); string(b) != torn {
				t.Errorf("%q is kept", b)
			}
		})
	}
}

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

// TestTampering: what others do to the file of a running process breaks the
// log until a new start, and Open refuses what is not a log.
func TestTampering(t *testing.T) {
	tests := map[string]struct {
		do     func(path string) error
		reopen bool // a new Open goes on
	}{
		"removed":   {func(p string) error { return os.Remove(p) }, true},
		"truncated": {func(p string) error { return os.Truncate(p, 0) }, true},
		"cut":       {func(p string) error { return os.Truncate(p, 100) }, true},
		"replaced":  {func(p string) error { return errors.Join(os.Remove(p), os.WriteFile(p, nil, 0o600)) }, true},
		"foreign":   {func(p string) error { return errors.Join(os.Remove(p), os.WriteFile(p, []byte("hello\n"), 0o600)) }, false},
		"added": {func(p string) error {
			b, err := os.ReadFile(p)
			return errors.Join(err, os.WriteFile(p, append(b, "{}\n"...), 0o600))
		}, false},
		"repeated": {func(p string) error {
			b, err := os.ReadFile(p)
			return errors.Join(err, os.WriteFile(p, append(b, b...), 0o600))
		}, true},
		"symlink": {func(p string) error { return errors.Join(os.Rename(p, p+".x"), os.Symlink(p+".x", p)) }, false},
		"fifo":    {func(p string) error { return errors.Join(os.Remove(p), syscall.Mkfifo(p, 0o600)) }, false},
		"mode":    {func(p string) error { return errors.Join(os.Rename(p, p+".x"), os.WriteFile(p, nil, 0o644)) }, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			path := newPath(t)
			l := open(t, path)
			write(t, l, 3)
			if err := tt.do(path); err != nil {
				t.Fatal(err)
			}
			if err := l.Ready(); err == nil {
				t.Error("Ready did not notice")
			}
			if err := l.Write(call("x")); err == nil {
				t.Error("Write did not notice")
			}
			l.Close()
			again, err := Open(path, Limits{MaxBytes: 1 << 20, Keep: 3})
			if err == nil {
				again.Close()
			}
			if (err == nil) != tt.reopen {
				t.Errorf("Open gives %v", err)
			}
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "target")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(target, nil, 0o600))
	link, hard, wide, sub := filepath.Join(dir, "link"), filepath.Join(dir, "hard"), filepath.Join(dir, "wide"), filepath.Join(dir, "sub")
	must(os.Symlink(target, link))
	must(os.Symlink(filepath.Join(dir, "nothing"), filepath.Join(dir, "dangling")))
	must(os.Link(target, hard))
	must(os.WriteFile(wide, nil, 0o600))
	must(os.Chmod(wide, 0o620))
	must(os.Mkdir(sub, 0o700))
	must(os.Chmod(sub, 0o777))
	for path, want := range map[string]string{
		link: "symbolic link", filepath.Join(dir, "dangling"): "symbolic link", hard: "2 names", wide: "chmod 600",
		sub: "", filepath.Join(sub, "log"): "chmod go-w", filepath.Join(dir, "none", "log"): "no such file", "/dev/full": "",
	} {
		l, err := Open(path, Limits{MaxBytes: 1 << 20, Keep: 3})
		if err == nil {
			l.Close()
			t.Errorf("%s was opened", path)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "nothing")); err == nil {
		t.Error("a link was followed")
	}
	if os.Geteuid() == 0 {
		foreign := filepath.Join(dir, "foreign")
		must(os.WriteFile(foreign, nil, 0o600))
		must(os.Chown(foreign, 12345, 12345))
		if l, err := Open(foreign, Limits{MaxBytes: 1 << 20, Keep: 3}); err == nil {
			l.Close()
			t.Error("a file of another user was opened")
		}
	}
}

func TestVerify(t *testing.T) {
	path := newPath(t)
	l := open(t, path)
	write(t, l, 10)
	good := lines(t, path)
	hash := func(i int) string { return parseLine([]byte(strings.TrimSuffix(good[i], "\n"))).hash }
	// forge makes a line that is right in itself.
	forge := func(after int) string {
		e := parseLine([]byte(strings.TrimSuffix(good[after], "\n")))
		b, _, _ := call("forged").encode(e.ts, e.head)
		return string(b)
	}
	change := func(f func(s []string) []string) []string { return f(slices.Clone(good)) }
	tests := []struct {
		name, anchor string
		lines        []string
		kind         string
		line         int
	}{
		{"whole", "", good, "", 0},
		{"whole with head", hash(9), good, "", 0},
		{"grown since the head", hash(4), good, "", 0},
		{"empty", "", nil, "", 0},
		{"empty with head", hash(9), nil, Cut, 1},
		{"tail cut", hash(9), good[:7], Cut, 7},
		{"written anew", hash(9), []string{forge(0)}, Cut, 1},
		{"changed byte", "", change(func(s []string) []string { s[4] = strings.Replace(s[4], "example", "exampla", 1); return s }), Changed, 5},
		{"changed last", "", change(func(s []string) []string { s[9] = strings.Replace(s[9], "example", "exampla", 1); return s }), Changed, 10},
		{"changed first", "", change(func(s []string) []string { s[0] = strings.Replace(s[0], "example", "exampla", 1); return s }), Changed, 1},
		{"changed and hashed again", "", change(func(s []string) []string { s[4] = forge(3); return s }), Inserted, 6},
		{"changed hash", "", change(func(s []string) []string { s[4] = strings.Replace(s[4], hash(4), hash(5), 1); return s }), Changed, 5},
		{"space added", "", change(func(s []string) []string { s[4] = " " + s[4]; return s }), Changed, 5},
		{"not JSON", "", change(func(s []string) []string { s[4] = "hello\n"; return s }), Changed, 5},
		{"too long", "", change(func(s []string) []string { s[4] = strings.Repeat("x", 200000) + "\n"; return s }), Changed, 5},
		{"removed", "", change(func(s []string) []string { return slices.Delete(s, 4, 5) }), Removed, 5},
		{"three removed", "", change(func(s []string) []string { return slices.Delete(s, 4, 7) }), Removed, 5},
		{"swapped", "", change(func(s []string) []string { s[4], s[5] = s[5], s[4]; return s }), Reordered, 5},
		{"moved", "", change(func(s []string) []string { return append(slices.Insert(slices.Delete(s, 8, 9), 2, good[8]), "") }), Reordered, 3},
		{"inserted", "", change(func(s []string) []string { return slices.Insert(s, 4, forge(1)) }), Inserted, 5},
		{"inserted, fitting", "", change(func(s []string) []string { return slices.Insert(s, 4, forge(3)) }), Inserted, 5},
		{"inserted, not a line", "", change(func(s []string) []string { return slices.Insert(s, 4, "\n") }), Inserted, 5},
		{"repeated", "", change(func(s []string) []string { return slices.Insert(s, 4, s[2]) }), Inserted, 5},
		{"torn", "", change(func(s []string) []string { s[9] = s[9][:50]; return s }), Torn, 10},
		{"no newline", "", change(func(s []string) []string { s[9] = s[9][:len(s[9])-1]; return s }), Torn, 10},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := filepath.Join(t.TempDir(), "f")
			if err := os.WriteFile(f, []byte(strings.Join(tt.lines, "")), 0o600); err != nil {
				t.Fatal(err)
			}
			r, err := Verify(tt.anchor, f)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case tt.kind == "":
				if !r.OK || r.Lines != len(tt.lines) {
					t.Errorf("%+v %+v", r, r.Break)
				}
			case r.OK || r.Break.Kind != tt.kind || r.Break.Line != tt.line:
				t.Errorf("got %+v, want %s in line %d", r.Break, tt.kind, tt.line)
			}
		})
	}
	if _, err := Verify("abc", path); err == nil {
		t.Error("a short head was taken")
	}
	if _, err := Verify("", path, path+".none"); err == nil {
		t.Error("a missing file was passed over")
	}
}

// TestEveryByte: no single byte can be changed unseen.
func TestEveryByte(t *testing.T) {
	path := newPath(t)
	l := open(t, path)
	write(t, l, 3)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, anchor := l.Head()
	f := filepath.Join(t.TempDir(), "f")
	for i := range good {
		b := bytes.Clone(good)
		b[i] ^= 1
		if err := os.WriteFile(f, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if r, err := Verify(anchor, f); err != nil || r.OK {
			t.Fatalf("byte %d: %+v, %v", i, r, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	b, _, _ := call("x").encode(time.Unix(0, 0), genesis)
	f.Add(bytes.TrimSuffix(b, []byte("\n")))
	f.Add([]byte(`{"ts":"","seq":1,"prev":"","hash":""}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		e := parseLine(b)
		if e.true && !e.ok || e.ok && (!json.Valid(b) || e.seq < 1) {
			t.Errorf("%+v of %q", e, b)
		}
	})
}

func BenchmarkWrite(b *testing.B) {
	l, err := Open(filepath.Join(b.TempDir(), "audit.jsonl"), Limits{MaxBytes: 64 << 20, Keep: 2})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	rec := call("1")
	for b.Loop() {
		if err := l.Write(rec); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReady(b *testing.B) {
	l, err := Open(filepath.Join(b.TempDir(), "audit.jsonl"), Limits{MaxBytes: 64 << 20, Keep: 2})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	for b.Loop() {
		if err := l.Ready(); err != nil {
			b.Fatal(err)
		}
	}
}
