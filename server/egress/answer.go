package egress

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/slimctl/slimctl/server/policy"
)

var (
	tooMany = &policy.Refusal{
		Code: policy.BudgetExceeded, Rule: "egress.connections", Retryable: true,
		Message: "too many connections are open; close some pages or try again later",
	}
	unrecorded = &policy.Refusal{
		Code: policy.SandboxViolation, Rule: "egress.audit", Retryable: true,
		Message: "the proxy's log cannot be written or is full, so nothing goes out; tell the operator",
	}
	noNetwork         = failure("egress.network", false, "the browser's container has no network; start it with --network egress")
	unreachable       = failure("site.unreachable", true, "the site does not answer; try again later or open another site")
	connectionRefused = failure("site.refused", false, "the site refuses connections on this port; check the address")
	timedOut          = failure("site.timeout", true, "the site did not answer in time; try again later or open another site")
	reset             = failure("site.reset", true, "the site broke the connection off; try again or open another site")
)

func failure(rule string, retryable bool, message string) *policy.Refusal {
	return &policy.Refusal{Code: policy.Unreachable, Rule: rule, Retryable: retryable, Message: message}
}

// refusalFor returns the refusal that answers a failed connection.
func refusalFor(err error) *policy.Refusal {
	var (
		outside refusedOutside
		timeout net.Error
	)
	switch {
	case errors.As(err, &outside):
		return outside.Refusal
	case errors.Is(err, syscall.ECONNREFUSED):
		return connectionRefused
	case errors.As(err, &timeout) && timeout.Timeout():
		return timedOut
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return reset
	}
	return unreachable
}

func blocked(rule, format string, args ...any) *policy.Refusal {
	return &policy.Refusal{Code: policy.PolicyBlocked, Rule: rule, Message: fmt.Sprintf(format, args...)}
}

// sendRefusal sends a refusal. It has no header that would let a page of another origin read it, nothing to follow or to
// cache, and the connection ends. It has no body, which would be shown as the site's page; without one Chromium shows
// its own page and reports a failed navigation.
//
// The reason is in a header that no page can read: Chromium hides the answer to a CONNECT, and no page can send the
// Proxy- header that asks for the reason. Other clients, which may be a page's own script, get a number for Why. The
// number of a CONNECT is its target.
func (q *request) sendRefusal(w http.ResponseWriter, r *policy.Refusal) {
	h := w.Header()
	clear(h)
	switch {
	case q.asks:
		h.Set(policy.RefusalHeader, r.Header())
	case q.Method == http.MethodConnect:
		h.Set(policy.RefusalHeader, r.Header())
		q.told.keepRefusal(net.JoinHostPort(strings.Trim(q.Host, "[]"), strconv.Itoa(q.Port)), r)
	default:
		h.Set(policy.RefusalHeader, q.told.keepRefusal(rand.Text(), r))
	}
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	h.Set("Cache-Control", "no-store")
	h.Set("Connection", "close")
	h.Set("Content-Length", "0")
	w.WriteHeader(statusFor(r))
}

// told holds the last refusals that Chromium shows to nobody.
type told struct {
	mu   sync.Mutex
	last [256]struct {
		number string
		r      *policy.Refusal
	}
	next int
}

func (t *told) keepRefusal(number string, r *policy.Refusal) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.last { // of the same target only the last one
		if t.last[i].number == number {
			t.last[i].number = ""
		}
	}
	t.last[t.next].number, t.last[t.next].r = number, r
	t.next = (t.next + 1) % len(t.last)
	return number
}

// findRefusal returns the refusal with a number, or nil if it is no longer known.
func (t *told) findRefusal(number string) *policy.Refusal {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.last {
		if number != "" && l.number == number {
			return l.r
		}
	}
	return nil
}

// Why asks the proxy at addr for the refusal with the number from its answer. It returns nil if the proxy no longer
// knows it.
func Why(ctx context.Context, addr, number string) *policy.Refusal {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/", nil)
	if err != nil {
		return nil
	}
	r.Header.Set(policy.RefusalHeader, number)
	res, err := (&http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: maxAnswer}).RoundTrip(r)
	if err != nil {
		return nil
	}
	res.Body.Close()
	return policy.ParseRefusal(res.Header.Get(policy.RefusalHeader))
}

func statusFor(r *policy.Refusal) int {
	switch r.Rule {
	case "egress.form", "url.port":
		return http.StatusBadRequest
	case "egress.connections", "egress.audit":
		return http.StatusServiceUnavailable
	case "site.timeout", "timeout.resolve":
		return http.StatusGatewayTimeout
	}
	if r.Code == policy.Unreachable {
		return http.StatusBadGateway
	}
	return http.StatusForbidden
}
