package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Executed is a file that was executed in a container, by processes of one executable.
type Executed struct {
	By    string `json:"by"` // what the process was until then, as a path in the container
	File  string `json:"file"`
	Times int    `json:"times"`
}

// maxExecuted bounds the kinds of Executed that are kept: about the square of the executable files in use.
const maxExecuted = 4096

// executions are what was executed in a container. Its methods may be called by several goroutines.
type executions struct {
	mu    sync.Mutex
	times map[Executed]int // keys have no Times
	err   error            // why they are not known, or not all
}

var errNotWatched = errors.New("what is executed is watched with runc alone")

func (x *executions) add(e Executed) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.times == nil {
		x.times = map[Executed]int{}
	}
	if _, ok := x.times[e]; !ok && len(x.times) == maxExecuted {
		x.err = fmt.Errorf("more than %d kinds of files were executed", maxExecuted)
		return
	}
	x.times[e]++
}

func (x *executions) fail(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.err = err
}

// list returns them sorted.
func (x *executions) list() ([]Executed, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	var out []Executed
	for e, times := range x.times {
		e.Times = times
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b Executed) int { return cmp.Or(cmp.Compare(a.By, b.By), cmp.Compare(a.File, b.File)) })
	return out, x.err
}

// Executed lists what was executed in the container since its start, sorted. The error says why that is not known, or not
// all of it. Runner.Watch asks for it.
func (s *Sandbox) Executed() ([]Executed, error) { return s.executed.list() }
