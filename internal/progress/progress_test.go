package progress

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slimctl/slimctl/internal/need"
)

// buffer is a bytes.Buffer that may be read while a reporter writes.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func reporter(t *testing.T, mode string) (Reporter, *buffer) {
	t.Helper()
	var b buffer
	r, err := New(mode, &b)
	if err != nil {
		t.Fatal(err)
	}
	return r, &b
}

func TestModes(t *testing.T) {
	if _, err := New("fancy", &buffer{}); err == nil || !strings.Contains(err.Error(), "auto, tty, plain, quiet") {
		t.Errorf("got %v", err)
	}
	t.Setenv("TERM", "xterm")
	if r, _ := New(Auto, &buffer{}); fmt.Sprintf("%T", r) != "*progress.lines" {
		t.Errorf("auto without a terminal is %T", r)
	}
}

func TestPlain(t *testing.T) {
	r, out := reporter(t, Plain)
	r.(*lines).every = time.Hour
	a := r.Task("layer abc", 2_500_000)
	a.Add(2_500_000)
	a.Done(nil)
	a.Done(errors.New("twice"))
	b := r.Task("push\x1b[31m def", 10)
	b.Done(errors.New("no space\nleft"))
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r.Task("late", 1).Done(nil)
	want := regexp.MustCompile(`^layer abc: 2\.5 MB in \d+\.\ds\npush\\x1b\[31m def: no space\\nleft\n$`)
	if got := out.String(); !want.MatchString(got) {
		t.Errorf("got %q, want %s", got, want)
	}
}

func TestPlainSpeaksNowAndThen(t *testing.T) {
	r, out := reporter(t, Plain)
	r.(*lines).every = time.Millisecond
	k := r.Task("layer abc", 2000)
	time.Sleep(2 * time.Millisecond)
	k.Add(1500)
	if got := out.String(); got != "layer abc: 1.5 kB of 2.0 kB\n" {
		t.Errorf("got %q", got)
	}
}

func TestQuiet(t *testing.T) {
	r, out := reporter(t, Quiet)
	k := r.Task("x", 1)
	k.Add(1)
	k.Done(errors.New("bad"))
	if err := r.Close(); err != nil || out.String() != "" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

// TestBars draws something, does not hang on Close with work under way, and bears tasks after it.
func TestBars(t *testing.T) {
	r, out := reporter(t, TTY)
	k := r.Task("layer abc", 1000)
	k.Add(500)
	s := r.Task("verify def", 0)
	s.Add(10)
	need.Eventually(t, func() bool {
		return strings.Contains(out.String(), "layer abc") && strings.Contains(out.String(), "verify def")
	}, out.String)
	s.Done(nil)
	s.Done(nil)
	done := make(chan error)
	go func() { done <- r.Close() }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(need.Patience):
		t.Fatal("Close hangs")
	}
	k.Add(1)
	k.Done(nil)
	r.Task("late", 5).Done(nil)
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

func TestConcurrent(t *testing.T) {
	for _, mode := range Modes {
		r, _ := reporter(t, mode)
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				k := r.Task(fmt.Sprint("layer ", i), int64(i)*10)
				for range 10 {
					k.Add(int64(i))
				}
				k.Done(nil)
			})
		}
		wg.Wait()
		if err := r.Close(); err != nil {
			t.Errorf("%s: %v", mode, err)
		}
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("gone") }

func TestCloseTellsWriteErrors(t *testing.T) {
	r, err := New(Plain, broken{})
	if err != nil {
		t.Fatal(err)
	}
	r.Task("x", 1).Done(nil)
	if err := r.Close(); err == nil || err.Error() != "gone" {
		t.Errorf("got %v", err)
	}
}
