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

// errReplaced is why the context of a desktop ends that a newer one takes the place of.
var errReplaced = errors.New("a newer desktop takes the place")

// places are the desktops that are open, oldest first. There is always room for one more, so nobody is kept out by
// however many others: the oldest of the same ticket goes if that has its share, otherwise the oldest of any ticket, and
// one that a key opened only when there is no other. So tickets take at most one place from keys.
type places struct {
	mu   sync.Mutex
	open []*place
}

type place struct {
	ticket string // empty: of a key
	end    context.CancelCauseFunc
	ended  chan struct{}
}

// take gives the context of a new desktop, and what gives its place back. It waits until the one that has to go has
// gone, which was told so and doesn't take long.
func (p *places) take(ctx context.Context, ticket string) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	own := &place{ticket, cancel, make(chan struct{})}
	p.mu.Lock()
	old := p.surplus(ticket)
	if old != nil {
		p.open = slices.DeleteFunc(p.open, func(o *place) bool { return o == old })
	}
	p.open = append(p.open, own)
	p.mu.Unlock()
	if old != nil {
		old.end(errReplaced)
		<-old.ended // whatever ctx says: who waits for us counts on it
	}
	return ctx, func() {
		p.mu.Lock()
		p.open = slices.DeleteFunc(p.open, func(o *place) bool { return o == own })
		p.mu.Unlock()
		cancel(nil)
		close(own.ended)
	}
}

// surplus gives the desktop that has to go before one more opens, or nil.
func (p *places) surplus(ticket string) *place {
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
