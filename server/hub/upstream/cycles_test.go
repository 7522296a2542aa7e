package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slimctl/slimctl/server/process"
)

const cycles = 300

// forking is a server that answers nothing but the first request, for speed. It
// starts programs that leave its group: two that can be found by their mark,
// one of which ends soon, and, asked to, one that has no environment.
const forking = `setsid sleep 600 & setsid sleep 0.0$3 &
test $1 = bare && env -i /usr/bin/setsid /bin/sleep 600 &
read -r line
printf '%s\n' '{"jsonrpc":"2.0","id":1,"result":{"supportedVersions":["2026-07-28"],"capabilities":{}}}'
test $2 = leaves && exit
while read -r line; do :; done`

// observed is what the process with the cycles saw.
type observed struct {
	Failed     []string
	Files      [2]int // before and after
	Goroutines [2]int
	Children   int // zombies too
	Marked     int
	Seconds    float64
}

// beCycling is a hub, hardened as the real one is: what loses its parent
// becomes its child.
func beCycling() {
	if err := process.Harden(); err != nil {
		panic(err)
	}
	var o observed
	var marks []string
	var mu sync.Mutex
	cycle := func(s *Server) {
		ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
		defer cancel()
		s.Start()
		_, err := s.Await(ctx)
		if s.config.Args[len(s.config.Args)-2] == "leaves" {
			err = nil // it may have ended already
		}
		if err = errors.Join(err, s.Stop(ctx)); err != nil {
			mu.Lock()
			o.Failed = append(o.Failed, fmt.Sprintf("%s: %v\n%s", s.config.Name, err, s.Log()))
			mu.Unlock()
		}
	}
	server := func(i, j int) *Server {
		kind, ending := "marked", "stays"
		if i == 0 && j%10 == 0 {
			kind = "bare"
		}
		if j%7 == 0 {
			ending = "leaves" // on its own account, at about the time of Stop
		}
		s := New(Config{Name: fmt.Sprint(i, j), Command: "/bin/sh", Args: []string{"-c", forking, "sh", kind, ending, fmt.Sprint(j % 10)}}, Options{})
		s.times = quick()
		s.times.backoff = []time.Duration{time.Hour}
		mu.Lock()
		marks = append(marks, s.mark)
		mu.Unlock()
		return s
	}
	cycle(server(0, 1)) // what is made once
	o.Files[0], o.Goroutines[0] = files(), runtime.NumGoroutine()
	began := time.Now()
	const workers = 4
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			s := server(i, 1)
			for j := range cycles / workers {
				if j%5 == 0 { // else the same again
					s = server(i, j)
				}
				cycle(s)
			}
		})
	}
	wg.Wait()
	o.Seconds = time.Since(began).Seconds()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		o.Children = children()
		o.Files[1], o.Goroutines[1] = files(), runtime.NumGoroutine()
		if o.Children == 0 && o.Files[1] <= o.Files[0] && o.Goroutines[1] <= o.Goroutines[0] {
			break
		}
	}
	o.Marked = len(marked(marks...))
	if err := json.NewEncoder(os.Stdout).Encode(o); err != nil {
		panic(err)
	}
}

func files() int {
	names, _ := os.ReadDir("/proc/self/fd")
	return len(names)
}

// children counts this process's, zombies too.
func children() (n int) {
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, l := range lists {
		words, _ := os.ReadFile(l)
		n += len(strings.Fields(string(words)))
	}
	return n
}

// TestCycles: no process is left of many starts and stops of servers that
// leave daemons behind, no zombie, no file and no goroutine.
func TestCycles(t *testing.T) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(t.Context(), self(t))
	cmd.Env = append(os.Environ(), role+"=cycling")
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	var o observed
	if err := json.Unmarshal(stdout.Bytes(), &o); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d cycles in %.1f s", cycles, o.Seconds)
	if len(o.Failed) > 0 {
		t.Errorf("%d cycles failed: %s", len(o.Failed), o.Failed[0])
	}
	if o.Children != 0 || o.Marked != 0 {
		t.Errorf("left: %d children, %d processes with marks", o.Children, o.Marked)
	}
	if o.Files[1] > o.Files[0] || o.Goroutines[1] > o.Goroutines[0] {
		t.Errorf("before and after: files %v, goroutines %v", o.Files, o.Goroutines)
	}
}
