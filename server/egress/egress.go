// Package egress is the forward proxy for all traffic of the browser. Unlike a check of addresses, it is a boundary:
// for each request it resolves the name, checks every address and connects to one of those. So neither a redirect nor a
// name that changes its address gets past it.
package egress

import (
	"cmp"
	"context"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/slimctl/slimctl/internal/lazyregexp"
	"github.com/slimctl/slimctl/server/policy"
)

// Limits of one connection.
const (
	dialTime   = 10 * time.Second // for all addresses of a host together
	idleTime   = 5 * time.Minute  // without a byte from or to the site
	headerTime = 10 * time.Second // for a request's head to arrive
	keepTime   = 30 * time.Second // between two requests
	endTime    = 5 * time.Second  // for running requests when the proxy ends
	maxHeader  = 64 << 10         // of a request
	maxAnswer  = 256 << 10        // of the head of an answer
	maxTries   = 8                // attempted addresses of a host
	maxMethod  = 16               // bytes of a method in a Decision
)

// Decision describes one request. A refused request is reported once. An allowed one is reported before anything is
// sent, and again with Done set when it has ended.
type Decision struct {
	Time     time.Time
	Method   string // CONNECT or the method of a plain request
	Host     string // canonical; of a refused request as it is written, and empty if it named none
	Port     int
	Allowed  bool
	Rule     string     // of the refusal, or of the failure of an allowed request
	Address  netip.Addr // the site's; before Done the first one to try
	Private  bool       // egress.private_hosts names an address of the host
	Done     bool
	BytesIn  int64         // from the site, heads included
	BytesOut int64         // to the site
	Duration time.Duration // from the request to its end
}

// Proxy is a forward proxy for plain HTTP and CONNECT.
type Proxy struct {
	policy  atomic.Pointer[policy.Policy]
	network policy.Network // as passed to New
	record  func(Decision) error
	told    told
	plain   http.Handler
	// Pace limits the rate of allowed requests; nil means no limit. Set it before Serve.
	Pace *rate.Limiter
	// Sites maps hosts to handlers that serve them here: http requests, and the CONNECT of https ones. Set it before
	// Serve.
	Sites map[string]http.Handler
	// outgoing is the upstream proxy for all traffic, or nil.
	outgoing *Outgoing
	local    local
	listen   atomic.Pointer[netip.Addr] // own listening address
	active   atomic.Int64               // requests and tunnels
	clients  atomic.Int64               // connections that are not tunnels
	idle     time.Duration
	dial     time.Duration
	header   time.Duration
}

// New returns a proxy. It calls record for every decision, from many goroutines; while record fails, nothing gets out.
//
// If outgoing is not nil, all traffic goes through that proxy, which resolves names.
func New(p *policy.Policy, network policy.Network, outgoing *Outgoing, record func(Decision) error) *Proxy {
	network.Remote = outgoing != nil
	proxy := &Proxy{network: network, outgoing: outgoing, record: record, idle: idleTime, dial: dialTime, header: headerTime}
	proxy.plain = newPlain(outgoing)
	proxy.policy.Store(p)
	return proxy
}

// Reload replaces the policy for later requests; open tunnels stay.
func (p *Proxy) Reload(pol *policy.Policy) { p.policy.Store(pol) }

// request is a request in progress.
type request struct {
	*Proxy
	Decision
	policy *policy.Policy
	sites  policy.Network // the proxy's, as the policy has it for the host
	denied []netip.Prefix // by another proxy of ours
	addrs  []netip.Addr   // checked; no others may be dialled
	cancel func()         // ends the request
	asks   bool           // from another proxy of ours, which receives the reason for a refusal
	conn   atomic.Pointer[siteConn]
}

type requestKey struct{}

// tell is the value of policy.RefusalHeader in requests of slimctl's own proxies.
const tell = "tell"

// ServeHTTP answers one request to the proxy.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := &request{Proxy: p, Decision: Decision{Time: time.Now(), Method: r.Method[:min(len(r.Method), maxMethod)]}}
	if number := r.Header.Get(policy.RefusalHeader); number == tell {
		q.asks = true
	} else if number != "" && r.URL.Host == "" && r.Method == http.MethodGet {
		if refusal := p.told.findRefusal(number); refusal != nil {
			w.Header().Set(policy.RefusalHeader, refusal.Header())
		}
		w.WriteHeader(http.StatusNoContent)
		return
	}
	pol := p.policy.Load()
	p.active.Add(1)
	defer p.active.Add(-1)
	if refusal := q.checkTarget(r, pol); refusal != nil {
		q.denyRequest(w, refusal)
		return
	}
	if p.Pace != nil && p.Pace.Wait(r.Context()) != nil {
		return // the client has left
	}
	q.Allowed = true
	if len(q.addrs) > 0 {
		q.Address = q.addrs[0]
	}
	if q.record(q.Decision) != nil {
		q.sendRefusal(w, unrecorded)
		return
	}
	defer q.recordEnd()
	if site := q.findSite(); site != nil {
		site.ServeHTTP(w, r)
		return
	}
	ctx, cancel := context.WithCancel(context.WithValue(r.Context(), requestKey{}, q))
	defer cancel()
	q.cancel, r = cancel, r.WithContext(ctx)
	if r.Method == http.MethodConnect {
		q.tunnel(w, r)
		return
	}
	q.forward(w, r)
}

// authority is so narrow that all parsers read the same host.
var authority = lazyregexp.New(`^([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?$`)

// checkTarget parses the target of a request, checks it against the policy and resolves its addresses.
func (q *request) checkTarget(r *http.Request, pol *policy.Policy) *policy.Refusal {
	scheme, host, refusal := q.parseTarget(r)
	if refusal != nil {
		return refusal
	}
	if q.denied, refusal = readDenied(r.Header); refusal != nil {
		return refusal
	}
	if !slices.Contains(pol.Open.AllowSchemes, scheme) {
		return blocked("url.scheme", "the policy does not allow %s", scheme)
	}
	q.Host = strings.ToLower(host)
	if q.active.Load() > int64(pol.Egress.MaxConnections) {
		return tooMany
	}
	if host, refusal = pol.CheckHost(q.Host); refusal != nil {
		return refusal
	}
	q.Host = host
	if ports := pol.Egress.AllowPorts; len(ports) > 0 && !slices.Contains(ports, q.Port) {
		return blocked("egress.port", "the policy does not allow this port")
	}
	q.policy, q.sites = pol, pol.NetworkFor(q.network, host)
	if q.findSite() != nil {
		return nil
	}
	sites := q.sites
	sites.Refuse = q.checkAddress
	addrs, refusal := sites.Lookup(r.Context(), host)
	q.addrs = addrs[:min(len(addrs), maxTries)]
	q.Private = slices.ContainsFunc(q.addrs, func(a netip.Addr) bool { return pol.Opens(host, a) })
	return refusal
}

// findSite returns the handler that serves the request here, or nil.
func (q *request) findSite() http.Handler { return q.Sites[q.Host] }

// parseTarget parses a request's port and host. It returns the scheme that the request implies: https for a tunnel.
func (q *request) parseTarget(r *http.Request) (scheme, host string, refusal *policy.Refusal) {
	scheme, target, defaultPort := "http", r.URL.Host, "80"
	if r.Method == http.MethodConnect {
		scheme, target, defaultPort = "https", r.RequestURI, ""
		if r.ContentLength != 0 {
			return "", "", blocked("egress.form", "a CONNECT request has no body")
		}
	} else if r.URL.Scheme != "http" || r.URL.Opaque != "" || r.URL.User != nil {
		return "", "", blocked("egress.form", "this is a forward proxy: send http://host/path, or CONNECT host:port")
	}
	m := authority.FindStringSubmatch(target)
	if m == nil {
		return "", "", blocked("egress.form", "the request must name host and port plainly")
	}
	q.Port, _ = strconv.Atoi(cmp.Or(m[2], defaultPort)) // 0 if there is none
	if q.Port < 1 || q.Port > 65535 {
		return "", "", blocked("url.port", "the port must lie between 1 and 65535")
	}
	return scheme, m[1], nil
}

// denyRequest records a refusal and sends it.
func (q *request) denyRequest(w http.ResponseWriter, r *policy.Refusal) {
	q.Rule, q.Duration = r.Rule, time.Since(q.Time)
	if q.record(q.Decision) != nil {
		r = unrecorded
	}
	q.sendRefusal(w, r)
}

// recordEnd records the end of an allowed request. If that fails, later requests are refused.
func (q *request) recordEnd() {
	q.Done, q.Duration = true, time.Since(q.Time)
	if c := q.conn.Load(); c != nil {
		c.Close()
		q.Address, q.BytesIn, q.BytesOut = c.addr, c.in.Load(), c.out.Load()
	}
	_ = q.record(q.Decision)
}
