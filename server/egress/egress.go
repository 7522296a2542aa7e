// Package egress is the forward proxy that all traffic of the browser goes
// through. It is the boundary that a check of addresses is not: it resolves a
// name, checks every answer and connects to one of the checked addresses, in
// one step and for each request, so neither a redirect nor a name that changes
// its address gets past.
package egress

import (
	"cmp"
	"context"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/slimctl/slimctl/internal/lazyregexp"
	"github.com/slimctl/slimctl/server/policy"
)

// Bounds on one connection.
const (
	dialTime   = 10 * time.Second // for all addresses of a host together
	idleTime   = 5 * time.Minute  // without a byte from or to the site
	headerTime = 10 * time.Second // for a request's head to arrive
	keepTime   = 30 * time.Second // between two requests
	endTime    = 5 * time.Second  // for what runs when the proxy ends
	maxHeader  = 64 << 10         // of a request
	maxAnswer  = 256 << 10        // the head of an answer
	maxTries   = 8                // addresses of a host that are tried
	maxMethod  = 16               // bytes of a method in a Decision
)

// Decision tells about one request. A refused one is told once; an allowed
// one before anything is sent out, and again with Done when it has ended.
type Decision struct {
	Time     time.Time
	Method   string // CONNECT or the method of a plain request
	Host     string // canonical; empty when the request named none that can be read
	Port     int
	Allowed  bool
	Rule     string     // of the refusal, or of what went wrong with an allowed one
	Address  netip.Addr // the site's; before Done the first that will be tried
	Private  bool       // an address of the host is one that egress.private_hosts admits
	Done     bool
	BytesIn  int64         // from the site, heads included
	BytesOut int64         // to the site
	Duration time.Duration // from the request to its end
}

// Proxy is a forward proxy for plain http and CONNECT. It serves nothing else.
type Proxy struct {
	policy  atomic.Pointer[policy.Policy]
	network policy.Network // as it was given
	record  func(Decision) error
	told    told
	plain   http.Handler
	// Pace is waited for by each request that is let out; nil: none waits. It is set before Serve.
	Pace *rate.Limiter
	// Sites are served here instead of going out, by host: http requests, and the CONNECT of an https one. It is set before Serve.
	Sites map[string]http.Handler
	// outgoing is the proxy that everything goes through, or nil.
	outgoing *Outgoing
	local    localAddresses
	listen   atomic.Pointer[netip.Addr] // where it listens
	active   atomic.Int64               // requests and tunnels
	open     openRequests
	clients  atomic.Int64 // connections that are not tunnels
	running  sync.WaitGroup
	idle     time.Duration
	dial     time.Duration
	header   time.Duration
}

// New makes a proxy. record is told every decision, from many goroutines; while
// it fails nothing gets out.
//
// With an outgoing proxy, which may be nil, everything goes through that, and
// it resolves names.
func New(p *policy.Policy, network policy.Network, outgoing *Outgoing, record func(Decision) error) *Proxy {
	network.Remote = outgoing != nil
	proxy := &Proxy{network: network, outgoing: outgoing, record: record, idle: idleTime, dial: dialTime, header: headerTime}
	proxy.plain = newPlain(outgoing)
	proxy.policy.Store(p)
	return proxy
}

// Reload makes p the policy of all later requests; tunnels that are open stay.
func (p *Proxy) Reload(pol *policy.Policy) { p.policy.Store(pol) }

// request is one request on its way.
type request struct {
	*Proxy
	Decision
	sites  policy.Network // the proxy's, with the private addresses that the policy has for the host
	addrs  []netip.Addr   // checked; the only ones that may be dialled
	cancel func()         // ends the request
	asks   bool           // it is another proxy's, which is told why it is refused
	conn   atomic.Pointer[siteConn]
	ended  atomic.Bool // for a later request
}

type requestKey struct{}

// tell is what slimctl's own proxies send in policy.RefusalHeader.
const tell = "tell"

// ServeHTTP answers one request to the proxy.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.running.Add(1)
	defer p.running.Done()
	q := &request{Proxy: p, Decision: Decision{Time: time.Now(), Method: r.Method[:min(len(r.Method), maxMethod)]}}
	if number := r.Header.Get(policy.RefusalHeader); number == tell {
		q.asks = true
	} else if number != "" && r.URL.Host == "" && r.Method == http.MethodGet {
		if refusal := p.told.find(number); refusal != nil {
			w.Header().Set(policy.RefusalHeader, refusal.Header())
		}
		w.WriteHeader(http.StatusNoContent)
		return
	}
	pol, active := p.policy.Load(), p.active.Add(1)
	defer p.active.Add(-1)
	if active > int64(pol.Egress.MaxConnections) && !p.open.endOne() {
		q.deny(w, tooMany)
		return
	}
	if refusal := q.check(r, pol); refusal != nil {
		q.deny(w, refusal)
		return
	}
	if p.Pace != nil && p.Pace.Wait(r.Context()) != nil {
		return // the client has gone
	}
	q.Allowed = true
	if len(q.addrs) > 0 {
		q.Address = q.addrs[0]
	}
	if q.record(q.Decision) != nil {
		q.answer(w, unrecorded)
		return
	}
	defer q.done()
	if site := q.site(); site != nil {
		site.ServeHTTP(w, r)
		return
	}
	ctx, cancel := context.WithCancel(context.WithValue(r.Context(), requestKey{}, q))
	defer cancel()
	q.cancel, r = cancel, r.WithContext(ctx)
	p.open.addRequest(q)
	defer p.open.removeRequest(q)
	if r.Method == http.MethodConnect {
		q.tunnel(w, r)
		return
	}
	q.forward(w, r)
}

// authority is held so narrow that no two parsers read a different host.
var authority = lazyregexp.New(`^([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?$`)

// check reads where a request wants to go, holds it against the policy and
// finds the addresses for it.
func (q *request) check(r *http.Request, pol *policy.Policy) *policy.Refusal {
	scheme, host, refusal := q.target(r)
	if refusal != nil {
		return refusal
	}
	if !slices.Contains(pol.Open.AllowSchemes, scheme) {
		return blocked("url.scheme", "the policy does not allow %s", scheme)
	}
	if host, refusal = pol.CheckHost(strings.ToLower(host)); refusal != nil {
		return refusal
	}
	q.Host = host
	if ports := pol.Egress.AllowPorts; len(ports) > 0 && !slices.Contains(ports, q.Port) {
		return blocked("egress.port", "the policy does not allow this port")
	}
	q.sites = pol.NetworkFor(q.network, host)
	if q.site() != nil {
		return nil
	}
	sites := q.sites
	sites.Public = q.mayDial
	addrs, refusal := sites.Lookup(r.Context(), host)
	q.addrs = addrs[:min(len(addrs), maxTries)]
	q.Private = slices.ContainsFunc(q.addrs, func(a netip.Addr) bool { return !q.network.IsPublic(a) })
	return refusal
}

// site gives what serves a request here.
func (q *request) site() http.Handler { return q.Sites[q.Host] }

// target reads a request's port, host and what it must be for: a tunnel carries
// https.
func (q *request) target(r *http.Request) (scheme, host string, refusal *policy.Refusal) {
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
	q.Port, _ = strconv.Atoi(cmp.Or(m[2], defaultPort)) // none: 0
	if q.Port < 1 || q.Port > 65535 {
		return "", "", blocked("url.port", "the port must lie between 1 and 65535")
	}
	return scheme, m[1], nil
}

// deny records a refusal and answers with it.
func (q *request) deny(w http.ResponseWriter, r *policy.Refusal) {
	q.Rule, q.Duration = r.Rule, time.Since(q.Time)
	if q.record(q.Decision) != nil {
		r = unrecorded
	}
	q.answer(w, r)
}

// done records the end of a request that was let out. There is nobody left to
// tell when that fails; the next request will be refused for it.
func (q *request) done() {
	q.Done, q.Duration = true, time.Since(q.Time)
	if q.ended.Load() {
		q.Rule = tooMany.Rule
	}
	if c := q.conn.Load(); c != nil {
		c.Close()
		q.Address, q.BytesIn, q.BytesOut = c.addr, c.in.Load(), c.out.Load()
	}
	_ = q.record(q.Decision)
}
