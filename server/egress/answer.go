package egress

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"

	"github.com/slimctl/slimctl/server/policy"
)

var (
	unrecorded = &policy.Refusal{
		Code: policy.SandboxViolation, Rule: "egress.audit", Retryable: true,
		Message: "the proxy's log cannot be written or is full, so nothing goes out; tell the operator",
	}
	noNetwork = &policy.Refusal{
		Code: policy.Unreachable, Rule: "egress.network",
		Message: "the browser's container has no network; start it with --network egress",
	}
	unreachable = &policy.Refusal{
		Code: policy.Unreachable, Rule: "site.unreachable", Retryable: true,
		Message: "the site does not answer; try again later or open another site",
	}
	connectionRefused = &policy.Refusal{
		Code: policy.Unreachable, Rule: "site.refused",
		Message: "the site refuses connections on this port; check the address",
	}
	timedOut = &policy.Refusal{
		Code: policy.Unreachable, Rule: "site.timeout", Retryable: true,
		Message: "the site did not answer in time; try again later or open another site",
	}
	reset = &policy.Refusal{
		Code: policy.Unreachable, Rule: "site.reset", Retryable: true,
		Message: "the site broke the connection off; try again or open another site",
	}
)

// refusalFor returns the refusal that an error of connecting is answered with.
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

// answer is all that a refused request gets: no header that would let a page
// read it, nothing to follow, nothing to keep, and the connection ends. The
// words are in a header: a body would be shown as the site's page, and without
// one Chromium shows its own page and says that the navigation failed.
func answer(w http.ResponseWriter, r *policy.Refusal) {
	h := w.Header()
	clear(h)
	h.Set(policy.RefusalHeader, r.Header())
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	h.Set("Cache-Control", "no-store")
	h.Set("Connection", "close")
	h.Set("Content-Length", "0")
	w.WriteHeader(status(r))
}

func status(r *policy.Refusal) int {
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
