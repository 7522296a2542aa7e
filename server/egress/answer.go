package egress

import (
	"fmt"
	"io"
	"net/http"

	"github.com/slimctl/slimctl/server/policy"
)

var (
	unrecorded = &policy.Refusal{
		Code: policy.SandboxViolation, Rule: "egress.audit", Retryable: true,
		Message: "the audit log cannot be written, so nothing goes out; tell the operator",
	}
	unreachable = &policy.Refusal{
		Code: policy.PolicyBlocked, Rule: "egress.unreachable", Retryable: true,
		Message: "the site does not answer; try again later or open another site",
	}
)

func blocked(rule, format string, args ...any) *policy.Refusal {
	return &policy.Refusal{Code: policy.PolicyBlocked, Rule: rule, Message: fmt.Sprintf(format, args...)}
}

// answer is all that a refused request gets: no header that would let a page
// read it, nothing to follow, nothing to keep, and the connection ends.
func answer(w http.ResponseWriter, r *policy.Refusal) {
	h := w.Header()
	clear(h)
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	h.Set("Cache-Control", "no-store")
	h.Set("Connection", "close")
	h.Set(statusHeader, r.Rule)
	w.WriteHeader(status(r))
	_, _ = io.WriteString(w, r.Error()+"\n") // who asked may be gone
}

func status(r *policy.Refusal) int {
	switch r.Rule {
	case "egress.form", "url.port":
		return http.StatusBadRequest
	case "egress.connections", "egress.audit":
		return http.StatusServiceUnavailable
	case "egress.unreachable", "url.unresolved":
		return http.StatusBadGateway
	case "timeout.resolve":
		return http.StatusGatewayTimeout
	}
	return http.StatusForbidden
}
