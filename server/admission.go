package server

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/slimctl/slimctl/server/policy"
)

// maxStarts is the number of sessions that start at a time. Each takes about two seconds of processor time, so more of
// them at once only make all of them late.
const maxStarts = 2

// admission lets sessions start a few at a time. Clients take turns: of those that wait, the one that was served
// longest ago is next.
type admission struct {
	mu      sync.Mutex
	running int
	waiting []*start
	served  map[string]int // when each client was served last, by its number; forgotten when nobody starts
	number  int
}

type start struct {
	owner string
	ready chan struct{}
}

// enter waits for a start's turn, and returns the function that ends it. If ctx ends first, it returns a refusal that
// names the place in the queue.
func (a *admission) enter(ctx context.Context, owner string) (leave func(), _ *policy.Refusal) {
	a.mu.Lock()
	s := &start{owner, make(chan struct{})}
	a.waiting = append(a.waiting, s)
	a.admitNext()
	a.mu.Unlock()
	select {
	case <-s.ready:
		return a.leave, nil
	case <-ctx.Done():
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	place := slices.Index(a.waiting, s)
	if place < 0 { // admitted at the last moment
		a.running--
		a.admitNext()
		return nil, unreadyRefusal()
	}
	a.waiting = slices.Delete(a.waiting, place, place+1)
	r := unreadyRefusal()
	r.RetryAfter = time.Duration(place+1) * time.Second
	r.Message = fmt.Sprintf("too many sessions start at the moment, and %d were ahead of this one; nothing was done: send the call again", place+a.running)
	return nil, r
}

func (a *admission) leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running--
	a.admitNext()
}

// admitNext admits those whose turn it is. The caller holds mu.
func (a *admission) admitNext() {
	for a.running < maxStarts && len(a.waiting) > 0 {
		next := 0
		for i, s := range a.waiting {
			if a.served[s.owner] < a.served[a.waiting[next].owner] {
				next = i
			}
		}
		s := a.waiting[next]
		a.waiting = slices.Delete(a.waiting, next, next+1)
		a.running++
		a.number++
		a.served[s.owner] = a.number
		close(s.ready)
	}
	if a.running == 0 {
		clear(a.served)
	}
}
