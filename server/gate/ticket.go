package gate

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"
)

// maxTickets limits memory. Only holders of a key get tickets. Beyond the limit the oldest ticket is removed: a new
// ticket always works, and open desktops stay.
const maxTickets = 1024

// errTicketEnded ends the context of a ticket's desktops together with the ticket.
var errTicketEnded = errors.New("the ticket has ended")

// Names of an Event.
const (
	InputGranted = "DESKTOP_INPUT_GRANTED" // a ticket with input was issued
	InputBegan   = "DESKTOP_INPUT_BEGAN"   // its first input
	InputEnded   = "DESKTOP_INPUT_ENDED"   // a ticket used for input has ended
)

// Event is an event of a ticket with input. A ticket has at most three, however its holder behaves.
type Event struct {
	Name     string     `json:"-"`
	Subject  string     `json:"-"`                  // owner of the key or token
	Ticket   string     `json:"ticket"`             // the first 16 hexadecimal digits of the ticket's SHA-256
	Until    time.Time  `json:"until"`              // its end, unless revoked
	Messages int        `json:"messages,omitempty"` // of InputEnded: keys, pointer moves and clipboards
	First    *time.Time `json:"first,omitempty"`
	Last     *time.Time `json:"last,omitempty"`
}

// ticket opens the desktop until its context ends.
type ticket struct {
	id      string
	subject string
	input   bool
	until   time.Time
	ctx     context.Context
	end     context.CancelCauseFunc
	log     func(Event) error

	mu          sync.Mutex
	messages    int
	first, last time.Time
}

func (t *ticket) newEvent(name string) Event {
	return Event{Name: name, Subject: t.subject, Ticket: t.id, Until: t.until.UTC().Truncate(time.Second)}
}

// countInput counts an input message. It returns an error if the ticket has ended, or if its first use can't be logged.
func (t *ticket) countInput() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ctx.Err() != nil {
		return errTicketEnded
	}
	now := time.Now()
	if t.messages == 0 {
		if err := t.log(t.newEvent(InputBegan)); err != nil {
			return err
		}
		t.first = now
	}
	t.messages++
	t.last = now
	return nil
}

// close logs the use of a ticket that has ended.
func (t *ticket) close() {
	t.end(nil) // stops its timer
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.messages == 0 {
		return
	}
	e := t.newEvent(InputEnded)
	first, last := t.first.UTC(), t.last.UTC()
	e.Messages, e.First, e.Last = t.messages, &first, &last
	_ = t.log(e) // too late to refuse anything
}

// tickets holds the valid tickets. The map's key is their SHA-256, so the time of a look-up reveals no ticket. A ticket
// has any number of uses: noVNC uses it for its page and again for its socket.
type tickets struct {
	ttl    time.Duration
	log    func(Event) error
	ctx    context.Context // ends all
	cancel context.CancelFunc

	running sync.WaitGroup // tickets that have not been closed

	mu    sync.Mutex
	by    map[[sha256.Size]byte]*ticket
	order [][sha256.Size]byte // oldest first
}

func newTickets(ttl time.Duration, log func(Event) error) *tickets {
	ctx, cancel := context.WithCancel(context.Background())
	return &tickets{ttl: ttl, log: log, ctx: ctx, cancel: cancel, by: map[[sha256.Size]byte]*ticket{}}
}

// issue creates a ticket, a random UUID of 122 bits. It ends no later than the credential of its owner, whose end is
// zero if it has none.
func (ts *tickets) issue(who holder, input bool) (string, *ticket, error) {
	text := newUUID()
	sum := sha256.Sum256([]byte(text))
	t := &ticket{id: hex.EncodeToString(sum[:8]), subject: who.subject, input: input, until: time.Now().Add(ts.ttl), log: ts.log}
	if !who.until.IsZero() && who.until.Before(t.until) {
		t.until = who.until
	}
	if input {
		if err := ts.log(t.newEvent(InputGranted)); err != nil {
			return "", nil, err
		}
	}
	ctx, end := context.WithCancelCause(ts.ctx)
	ctx, stop := context.WithDeadlineCause(ctx, t.until, errTicketEnded)
	t.ctx, t.end = ctx, func(cause error) { end(cause); stop() }
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if len(ts.order) >= maxTickets {
		ts.remove(ts.order[0])
	}
	ts.by[sum] = t
	ts.order = append(ts.order, sum)
	ts.running.Add(1)
	context.AfterFunc(t.ctx, func() {
		defer ts.running.Done()
		ts.mu.Lock()
		ts.remove(sum)
		ts.mu.Unlock()
		t.close()
	})
	return text, t, nil
}

// newUUID returns a random UUID (RFC 9562, version 4).
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// remove removes a ticket if it exists; ts.mu is held.
func (ts *tickets) remove(sum [sha256.Size]byte) {
	if _, ok := ts.by[sum]; !ok {
		return
	}
	delete(ts.by, sum)
	for i, s := range ts.order {
		if s == sum {
			ts.order = append(ts.order[:i], ts.order[i+1:]...)
			return
		}
	}
}

// find returns a ticket that has not ended, or nil.
func (ts *tickets) find(text string) *ticket {
	sum := sha256.Sum256([]byte(text))
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t := ts.by[sum]; t != nil && t.ctx.Err() == nil && time.Now().Before(t.until) {
		return t
	}
	return nil
}

// close ends all tickets, and returns when that is logged.
func (ts *tickets) close() {
	ts.cancel()
	ts.running.Wait()
}
