package sandbox

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Executed is a file that was executed in a container, by processes of one executable.
type Executed struct {
	By    string `json:"by"` // the previous executable, as a path in the container
	File  string `json:"file"`
	Times int    `json:"times"`
}

// Opened is an opened file of the image.
type Opened struct {
	File string `json:"file"`
	By   string `json:"by,omitempty"` // the program that opened it first; empty if that ended too early
}

const (
	maxExecuted = 4096 // distinct values of Executed: about the square of the executable files in use
	maxOpened   = 1 << 16
)

var (
	errNotWatched  = errors.New("executed files are recorded by runc only: pass --runtime runc")
	errNotObserved = errors.New("opened files are recorded by runc only: pass --runtime runc")
)

// sightings collects the records of a watch. Its methods are safe for concurrent use.
type sightings[K comparable, V any] struct {
	mu  sync.Mutex
	all map[K]V
	err error // why the records are missing or incomplete
}

// note applies change to the value of k. The number of keys is limited.
func (s *sightings[K, V]) note(k K, most int, change func(V) V) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.all[k]; !known && len(s.all) == most {
		s.err = fmt.Errorf("incomplete: more than %d different files", most)
		return
	}
	if s.all == nil {
		s.all = map[K]V{}
	}
	s.all[k] = change(s.all[k])
}

func (s *sightings[K, V]) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *sightings[K, V]) list() (map[K]V, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.all), s.err
}

// addExecuted records that a process of the executable by executed a file.
func (s *Sandbox) addExecuted(by, file string) {
	s.executed.note(Executed{By: by, File: file}, maxExecuted, func(times int) int { return times + 1 })
}

// addOpened records an opened file; before a container has its own root its paths begin with root.
func (s *Sandbox) addOpened(file, by, root string) {
	if below, ok := strings.CutPrefix(file, root+"/"); ok {
		file = "/" + below
	}
	s.opened.note(file, maxOpened, func(was string) string { return cmp.Or(was, by) })
}

// Executed returns the executed files since the container's start, sorted. The error is the reason if they are unknown
// or incomplete. It requires Runner.Watch.
func (s *Sandbox) Executed() ([]Executed, error) {
	all, err := s.executed.list()
	var out []Executed
	for e, times := range all {
		e.Times = times
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b Executed) int { return cmp.Or(cmp.Compare(a.By, b.By), cmp.Compare(a.File, b.File)) })
	return out, err
}

// Opened returns the opened files of the image since the container's start, sorted. The error is the reason if they are
// unknown or incomplete. It requires Runner.Watch. Files that are only examined (stat(2)), links, and the interpreter
// that the kernel itself opens for a program are not included.
func (s *Sandbox) Opened() ([]Opened, error) {
	all, err := s.opened.list()
	var out []Opened
	for _, file := range slices.Sorted(maps.Keys(all)) {
		out = append(out, Opened{file, all[file]})
	}
	return out, err
}
