package server

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/slimctl/slimctl/server/cdp"
	"github.com/slimctl/slimctl/server/egress"
	"github.com/slimctl/slimctl/server/policy"
)

// askTime limits the question to the egress proxy about a refusal.
const askTime = 5 * time.Second

// explainUnreachable returns why a page could not be opened: the egress proxy's refusal, or a fault of the site or the
// network. failed is the address whose error page the tab shows. explainUnreachable returns nil if there is none, unless
// nav failed for a known reason.
func (b *browser) explainUnreachable(ctx context.Context, nav cdp.Navigation, failed string) *policy.Refusal {
	number := nav.Header[strings.ToLower(policy.RefusalHeader)]
	if !strings.HasPrefix(nav.URL, "http:") {
		number = ""
	}
	if u, err := url.Parse(nav.URL); err == nil && nav.Error == "net::ERR_TUNNEL_CONNECTION_FAILED" { // Chromium hides the answer
		number = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443"))
	}
	if number != "" {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTime)
		defer cancel()
		return cmp.Or(egress.Why(ctx, b.chromium.proxy, number), siteGone)
	}
	if nav.Error == "net::ERR_HTTP_RESPONSE_CODE_FAILURE" {
		return faultRefusal("site.empty", false, "the site answered with status %d and no page; check the address", nav.Status)
	}
	for _, f := range faults {
		if slices.ContainsFunc(f.prefixes, func(prefix string) bool { return strings.HasPrefix(nav.Error, "net::"+prefix) }) {
			return faultRefusal(f.rule, f.retryable, "%s", f.message)
		}
	}
	if failed != "" {
		return faultRefusal("site.unreachable", true, "%s: the tab is blank now, open an address", cmp.Or(nav.Error, "the page could not be loaded"))
	}
	return nil
}

var siteGone = faultRefusal("site.unreachable", true, "the site does not answer; try again later or open another site")

func faultRefusal(rule string, retryable bool, format string, args ...any) *policy.Refusal {
	return &policy.Refusal{Code: policy.Unreachable, Rule: rule, Retryable: retryable, Message: fmt.Sprintf(format, args...)}
}

// faults lists Chromium's errors that the site or the network causes.
var faults = []struct {
	prefixes  []string
	rule      string
	retryable bool
	message   string
}{
	{[]string{"ERR_NAME_NOT_RESOLVED"}, "url.unresolved", false, "the host does not exist; check its spelling"},
	{[]string{"ERR_CONNECTION_REFUSED"}, "site.refused", false, "the site refuses connections on this port; check the address"},
	{[]string{"ERR_UNSAFE_PORT"}, "site.port", false, "the browser opens no page on this port; check the address"},
	{[]string{"ERR_CERT_", "ERR_SSL_"}, "site.tls", false, "the site has no valid certificate for this address or speaks no TLS here; check the address"},
	{[]string{"ERR_TOO_MANY_REDIRECTS"}, "site.redirects", false, "the site redirects without end; open another address"},
	{[]string{"ERR_TIMED_OUT", "ERR_CONNECTION_TIMED_OUT"}, "site.timeout", true, "the site did not answer in time; try again later or open another site"},
	{[]string{"ERR_CONNECTION_", "ERR_EMPTY_RESPONSE", "ERR_HTTP2_", "ERR_INCOMPLETE_", "ERR_CONTENT_LENGTH_MISMATCH", "ERR_INVALID_HTTP_RESPONSE"}, "site.reset", true, "the site broke the connection off; try again or open another site"},
	{[]string{"ERR_PROXY_CONNECTION_FAILED"}, "site.proxy", true, "the egress proxy does not answer, so no page can be opened; tell the operator"},
	{[]string{"ERR_ADDRESS_UNREACHABLE", "ERR_INTERNET_DISCONNECTED", "ERR_NETWORK_"}, "site.unreachable", true, "the site does not answer; try again later or open another site"},
}

// findNewTabs returns the addresses of the pages that are in after and not in before. opened holds the addresses that
// the page asked for; they serve for pages whose address is not known yet.
func findNewTabs(before, after []cdp.Page, opened []string) []string {
	var out []string
	for _, page := range after {
		if slices.ContainsFunc(before, func(old cdp.Page) bool { return old.ID == page.ID }) || len(out) == maxNewTabs {
			continue
		}
		address := page.URL
		if address == "about:blank" && len(opened) == 1 {
			address = opened[0]
		}
		out = append(out, address)
	}
	return out
}

// maxNewTabs limits the addresses in an answer.
const maxNewTabs = 10

// observed adds browser-shell's own observations to the data of a command.
type observed struct{ pass }

func (observed) OnAfter(_ context.Context, _ Call, r Result) Result {
	if r.ExitCode != 0 || r.Refusal != nil {
		return r
	}
	if r.status != 0 {
		r.Stdout = withField(r.Stdout, "status", r.status)
	}
	if len(r.newTabs) > 0 {
		r.Stdout = withField(r.Stdout, "new_tabs", r.newTabs)
	}
	if len(r.dialogs) > 0 {
		r.Stdout = withField(r.Stdout, "dialogs", r.dialogs)
	}
	return r
}

// withField adds a key to the data if that is an object.
func withField(data, key string, value any) string {
	var raw map[string]json.RawMessage
	if json.Unmarshal([]byte(data), &raw) != nil || raw == nil {
		return data
	}
	fields := map[string]any{}
	for k, v := range raw {
		fields[k] = v
	}
	fields[key] = value
	var out strings.Builder
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false) // agents expect addresses unescaped
	if enc.Encode(fields) != nil {
		return data
	}
	return out.String()
}
