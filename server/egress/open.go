package egress

import (
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/slimctl/slimctl/server/policy"
)

// tooMany refuses a request if none of the open ones can be ended. It is also the cause for ending one.
var tooMany = &policy.Refusal{
	Code: policy.BudgetExceeded, Rule: "egress.connections", Retryable: true,
	Message: "too many connections are open; close some pages or try again later",
}

// openRequests holds the outgoing requests and tunnels.
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

// endQuietest ends a request to make room for another, and reports whether it found one. It ends the longest idle one
// of the network with the most requests. So a page that takes all connections loses its own, not those of other
// sessions.
func (o *openRequests) endQuietest() bool {
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

// destination returns the network of a request, or the host's last two labels if another proxy resolves. The owner of a
// site can have any number of names and neighbouring addresses.
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

// quiet returns the time since the last byte.
func (q *request) quiet() time.Duration {
	if c := q.conn.Load(); c != nil {
		return c.quiet()
	}
	return time.Since(q.Time)
}
