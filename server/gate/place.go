package gate

import (
	"context"
	"errors"
	"slices"
	"sync"
)

const (
	maxClients   = 32 // desktops open at once
	maxPerTicket = 8  // of them with one ticket
)

// errReplaced ends the context of a desktop that a newer one replaces.
var errReplaced = errors.New("a newer desktop replaced this one")

// places holds the open desktops, oldest first. There is always room for one more, so nobody can be kept out. The
// oldest desktop of the same ticket goes if that ticket has its share, otherwise the oldest of any ticket. One opened
// with a key goes only if there is no other. So tickets take at most one place from keys.
type places struct {
	mu   sync.Mutex
	open []*place
}

type place struct {
	ticket string // empty: opened with a key
	end    context.CancelCauseFunc
	ended  chan struct{}
}

// takePlace returns the context of a new desktop, and a function that frees its place. It waits until the replaced
// desktop has ended, which is immediately told to.
func (p *places) takePlace(ctx context.Context, ticket string) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	own := &place{ticket, cancel, make(chan struct{})}
	p.mu.Lock()
	old := p.findSurplus(ticket)
	if old != nil {
		p.open = slices.DeleteFunc(p.open, func(o *place) bool { return o == old })
	}
	p.open = append(p.open, own)
	p.mu.Unlock()
	if old != nil {
		old.end(errReplaced)
		<-old.ended // regardless of ctx: a newer desktop may wait for us
	}
	return ctx, func() {
		p.mu.Lock()
		p.open = slices.DeleteFunc(p.open, func(o *place) bool { return o == own })
		p.mu.Unlock()
		cancel(nil)
		close(own.ended)
	}
}

// findSurplus returns the desktop that must end before one more opens, or nil.
func (p *places) findSurplus(ticket string) *place {
	of := func(is func(string) bool) (first *place, n int) {
		for _, o := range p.open {
			if is(o.ticket) {
				if n++; first == nil {
					first = o
				}
			}
		}
		return first, n
	}
	if first, n := of(func(s string) bool { return s == ticket }); ticket != "" && n >= maxPerTicket {
		return first
	}
	if len(p.open) < maxClients {
		return nil
	}
	if first, n := of(func(s string) bool { return s != "" }); n > 0 {
		return first
	}
	return p.open[0]
}
