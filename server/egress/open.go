package egress

import (
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/slimctl/slimctl/server/policy"
)

// tooMany refuses a request for which none of the open ones can be ended, and is the end of one that was.
var tooMany = &policy.Refusal{
	Code: policy.BudgetExceeded, Rule: "egress.connections", Retryable: true,
	Message: "too many connections are open; close some pages or try again later",
}

// openRequests are the requests and tunnels that go out.
type openRequests struct {
	mu  sync.Mutex
	all map[*request]struct{}
}

func (o *openRequests) addRequest(q *request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = map[*request]struct{}{}
	}
	o.all[q] = struct{}{}
}

func (o *openRequests) removeRequest(q *request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.all, q)
}

// endOne ends a request to make room for another, and reports whether there was one: of the network that most of them go to
// the one that has been quiet for longest. A page that takes all connections loses its own, not those of other sessions.
func (o *openRequests) endOne() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	count := map[string]int{}
	for q := range o.all {
		count[q.destination()]++
	}
	var last *request
	var most int
	var quiet time.Duration
	for q := range o.all {
		n, d := count[q.destination()], q.quiet()
		if last == nil || n > most || n == most && d > quiet {
			last, most, quiet = q, n, d
		}
	}
	if last == nil {
		return false
	}
	delete(o.all, last)
	last.ended.Store(true)
	last.cancel()
	return true
}

// destination names the network that a request goes to, or the host's last two labels where another proxy resolves: one who
// has a site has as many names and neighbouring addresses as he likes.
func (q *request) destination() string {
	if bits := 24; q.Address.IsValid() {
		if q.Address.Is6() {
			bits = 48
		}
		return netip.PrefixFrom(q.Address, bits).Masked().String()
	}
	labels := strings.Split(q.Host, ".")
	return strings.Join(labels[max(0, len(labels)-2):], ".")
}

// quiet returns the time since a byte passed.
func (q *request) quiet() time.Duration {
	if c := q.conn.Load(); c != nil {
		return c.quiet()
	}
	return time.Since(q.Time)
}
