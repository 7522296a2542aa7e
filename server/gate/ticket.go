package gate

import (
	"crypto/sha256"
	"sync"
	"time"

	"github.com/google/uuid"
)

// maxTickets bounds the memory. Only holders of a key get tickets, so when there are more, the oldest goes: a new ticket
// always works, and who is on the desktop already stays.
const maxTickets = 1024

// tickets are those that still count. They are kept as SHA-256, so a look-up tells no ticket by its time. One is good for
// any number of uses: noVNC uses it for its page and again for its socket.
type tickets struct {
	ttl time.Duration
	now func() time.Time

	mu    sync.Mutex
	until map[[sha256.Size]byte]time.Time
	order [][sha256.Size]byte // oldest first, which is also the order in which they end
}

func newTickets(ttl time.Duration) tickets {
	return tickets{ttl: ttl, now: time.Now, until: map[[sha256.Size]byte]time.Time{}}
}

// issue makes a ticket, a random UUID of 122 bits.
func (t *tickets) issue() string {
	ticket := uuid.NewString()
	sum := sha256.Sum256([]byte(ticket))
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	for len(t.order) > 0 && (len(t.order) >= maxTickets || !now.Before(t.until[t.order[0]])) {
		delete(t.until, t.order[0])
		t.order = t.order[1:]
	}
	t.until[sum] = now.Add(t.ttl)
	t.order = append(t.order, sum)
	return ticket
}

func (t *tickets) valid(ticket string) bool {
	sum := sha256.Sum256([]byte(ticket))
	t.mu.Lock()
	defer t.mu.Unlock()
	until, ok := t.until[sum]
	return ok && t.now().Before(until)
}
