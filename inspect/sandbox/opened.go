package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Opened is a file of the image that was opened in a container.
type Opened struct {
	File string `json:"file"`
	By   string `json:"by,omitempty"` // the program that opened it first; empty for one that had ended when it was asked for
}

// maxOpened bounds the files that are kept.
const maxOpened = 1 << 16

// openings are the files that were opened in a container. Its methods may be called by several goroutines.
type openings struct {
	mu  sync.Mutex
	by  map[string]string
	err error // why they are not known, or not all
}

// addOpened adds a file that was opened; before a container has its own root its paths begin with root.
func (o *openings) addOpened(file, by, root string) {
	if below, ok := strings.CutPrefix(file, root+"/"); ok {
		file = "/" + below
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.by == nil {
		o.by = map[string]string{}
	}
	was, known := o.by[file]
	switch {
	case !known && len(o.by) == maxOpened:
		o.err = fmt.Errorf("more than %d files were opened", maxOpened)
	case !known || was == "":
		o.by[file] = by
	}
}

func (o *openings) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err = err
}

var errNotObserved = errors.New("what is opened is observed with runc alone")

// Opened lists the files of the image that were opened since the container's start, sorted. The error says why that is not known,
// or not all of it. Runner.Watch asks for it. What is only looked at (stat(2)), links, and the interpreter that the kernel itself
// takes for a program are not among them.
func (s *Sandbox) Opened() ([]Opened, error) {
	s.opened.mu.Lock()
	defer s.opened.mu.Unlock()
	var out []Opened
	for file, by := range s.opened.by {
		out = append(out, Opened{file, by})
	}
	slices.SortFunc(out, func(a, b Opened) int { return cmp.Compare(a.File, b.File) })
	return out, s.opened.err
}
