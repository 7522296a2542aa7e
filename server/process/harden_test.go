//go:build linux

package process

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slimctl/slimctl/internal/need"
)

// hardenedRole makes the test binary a process that calls Harden; the tests'
// own process may not, since it starts processes without Run.
const hardenedRole = "PROCESS_TEST_HARDENED"

func TestMain(m *testing.M) {
	if mark := os.Getenv(hardenedRole); mark != "" {
		r, err := beHardened(mark)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// observed is what the hardened process saw.
type observed struct {
	WrongCodes     []string
	Files          [2]int // before and after
	Goroutines     [2]int
	Zombies        int // after all
	Orphans        int // that lived when the last run was over
	EndByMark      int // what End and EndChildren left
	EndAll         int
	Children       int
	Unlimited      int // of them
	SeesChildMarks bool
	FileMode       os.FileMode
	NotDumpable    bool
}

const runs = 200

func beHardened(mark string) (o observed, err error) {
	if err := Harden(); err != nil {
		return o, err
	}
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		return o, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		return o, err
	}
	info, err := os.Stat(file)
	if err != nil {
		return o, err
	}
	o.FileMode = info.Mode().Perm()
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	o.NotDumpable = err == nil && dumpable == 0

	oneRun(0, mark) // what is set up once
	o.Files[0], o.Goroutines[0] = openFiles(), runtime.NumGoroutine()
	var wg sync.WaitGroup
	var mu sync.Mutex
	next := make(chan int)
	for range 8 {
		wg.Go(func() {
			for i := range next {
				if wrong := oneRun(i, mark); wrong != "" {
					mu.Lock()
					o.WrongCodes = append(o.WrongCodes, wrong)
					mu.Unlock()
				}
			}
		})
	}
	for i := range runs {
		next <- i
	}
	close(next)
	wg.Wait()
	// Orphans that last: one that can be found by its mark, one that can't.
	for _, env := range []string{mark, "OTHER=x"} {
		lasting(env)
	}
	ps := findMarked([]string{mark})
	o.SeesChildMarks = len(ps) > 0
	ps.release()
	for range 20 { // some are faster than their limits
		lasting(mark)
	}
	o.Unlimited = unlimited()
	// One that surely was: it is no child of Run. Its parent is reaped as an
	// orphan.
	_ = exec.Command("/bin/sh", "-c", `x=$(setsid sh -c 'sleep 60 >/dev/null 2>&1 & echo up')`).Run()
	limitOrphans()
	o.Unlimited += unlimited()
	o.Orphans = len(listChildren(os.Getpid()))
	// Each may take two seconds, which are not always enough on a busy machine.
	deadline := time.Now().Add(need.Patience)
	for o.EndByMark = End(mark); o.EndByMark > 0 && time.Now().Before(deadline); o.EndByMark = End(mark) {
	}
	for o.EndAll = EndChildren(); o.EndAll > 0 && time.Now().Before(deadline); o.EndAll = EndChildren() {
	}
	for ; time.Now().Before(deadline); time.Sleep(lookEvery) {
		o.Children = len(listChildren(os.Getpid()))
		if o.Children == 0 && runtime.NumGoroutine() <= o.Goroutines[0] && openFiles() <= o.Files[0] {
			break
		}
	}
	for _, c := range listChildren(os.Getpid()) {
		if isZombie(c) {
			o.Zombies++
		}
	}
	o.Files[1], o.Goroutines[1] = openFiles(), runtime.NumGoroutine()
	return o, nil
}

// oneRun starts a program that leaves up to three daemons, which end at
// random, some of them before it does.
func oneRun(i int, mark string) string {
	want := i % 100
	var b strings.Builder
	for range rand.IntN(4) {
		fmt.Fprintf(&b, "x=$(setsid sh -c 'sleep 0.0%d >/dev/null 2>&1 & echo up');", rand.IntN(10))
	}
	fmt.Fprintf(&b, "exit %d", want)
	r, err := Run(context.Background(), Command{Path: "/bin/sh", Argv: []string{"-c", b.String()}, Env: []string{searchPath, mark}, MaxOutput: 1 << 10, Daemon: true})
	if err != nil || r.ExitCode != want || r.Killed {
		return fmt.Sprintf("run %d: %v %+v", i, err, r)
	}
	return ""
}

func lasting(env string) {
	_, _ = Run(context.Background(), Command{
		Path: "/bin/sh", Argv: []string{"-c", `x=$(setsid sh -c 'sleep 60 >/dev/null 2>&1 & echo up')`},
		Env: []string{searchPath, env}, MaxOutput: 1 << 10, Daemon: true,
	})
}

// unlimited counts our orphans without limits.
func unlimited() (n int) {
	for _, pid := range listChildren(os.Getpid()) {
		var got unix.Rlimit
		if err := unix.Prlimit(pid, unix.RLIMIT_FSIZE, nil, &got); err == nil && got.Max > MaxFile {
			n++
		}
	}
	return n
}

func openFiles() int {
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return -1
	}
	return len(names)
}

// TestHardened runs a hardened process, as root's and as another user's.
func TestHardened(t *testing.T) {
	for _, uid := range []int{os.Getuid(), 65534} {
		t.Run(fmt.Sprint(uid), func(t *testing.T) {
			testHardened(t, uid)
		})
	}
}

func testHardened(t *testing.T, uid int) {
	var stdout, stderr bytes.Buffer
	mark := hardenedRole + "_MARK=" + t.TempDir()
	program := copyOfTest(t)
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), hardenedRole+"="+mark, "TMPDIR=/tmp")
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = time.Second
	if uid != os.Getuid() {
		if os.Getuid() != 0 {
			need.Missing(t, "only root can run as another user")
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	defer End(mark)
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	var o observed
	if err := json.Unmarshal(stdout.Bytes(), &o); err != nil {
		t.Fatal(err)
	}
	if len(o.WrongCodes) > 0 {
		t.Errorf("%d of %d runs ended wrongly: %s", len(o.WrongCodes), runs, o.WrongCodes[0])
	}
	o.WrongCodes = nil // so much for them
	if o.Files[1] > o.Files[0] || o.Files[0] < 0 {
		t.Errorf("open files: %d before, %d after", o.Files[0], o.Files[1])
	}
	if o.Goroutines[1] > o.Goroutines[0] {
		t.Errorf("goroutines: %d before, %d after", o.Goroutines[0], o.Goroutines[1])
	}
	if o.Orphans < 3 {
		t.Errorf("%d orphans are ours, want the three that last: is it no subreaper?", o.Orphans)
	}
	if o.Unlimited > 0 {
		t.Errorf("%d orphans have no limits", o.Unlimited)
	}
	if !o.SeesChildMarks || o.EndByMark != 0 || o.EndAll != 0 || o.Children != 0 || o.Zombies != 0 {
		t.Errorf("left at the end: %+v", o)
	}
	if o.FileMode != 0o600 || !o.NotDumpable {
		t.Errorf("a new file has mode %o, not dumpable %v", o.FileMode, o.NotDumpable)
	}
}

// copyOfTest is the test binary where any user can run it.
func copyOfTest(t *testing.T) string {
	t.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/tmp", "process-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	program := filepath.Join(dir, "hardened")
	if err := os.WriteFile(program, self, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return program
}
