package hub

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/internal/lazyregexp"
	"github.com/slimctl/slimctl/server/audit"
)

// Headers by which the program in front tells who asks. They count on a unix socket alone, whose directory says who may
// connect; on a port any client could send them.
const (
	headerRequest = "X-Request-Id"
	headerCaller  = "X-Browser-Shell-Caller"
	headerUntil   = "X-Browser-Shell-Until" // the end of the caller's token, in seconds since 1970; none for a key
)

var (
	requestID = lazyregexp.New(`^[A-Za-z0-9._-]{1,64}$`)
	subject   = lazyregexp.New(`^[!-~]{1,256}$`)
)

// identify leaves a request one id and at most one caller, and drops what can't be believed.
func identify(r *http.Request) *http.Request {
	ids, callers, ends := r.Header.Values(headerRequest), r.Header.Values(headerCaller), r.Header.Values(headerUntil)
	header := r.Header.Clone()
	header.Del(headerCaller)
	header.Del(headerUntil)
	header.Set(headerRequest, newRequestID())
	if addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && addr.Network() == "unix" {
		if len(ids) == 1 && requestID.MatchString(ids[0]) {
			header.Set(headerRequest, ids[0])
		}
		if len(callers) == 1 && subject.MatchString(callers[0]) {
			header.Set(headerCaller, callers[0])
		}
		if len(ends) > 0 {
			header.Set(headerUntil, ends[0])
		}
	}
	out := *r
	out.Header = header
	return out.WithContext(context.WithValue(r.Context(), callerKey{}, callerOf(header)))
}

func newRequestID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never an error
	return hex.EncodeToString(b[:])
}

type callerKey struct{}

func callerOf(h http.Header) audit.Caller {
	return audit.Caller{RequestID: h.Get(headerRequest), Subject: h.Get(headerCaller)}
}

// withCaller keeps who makes a request: its own headers say so, or for a transport that hands none on those of the stream.
func withCaller(ctx context.Context, req mcp.Request) context.Context {
	c, _ := ctx.Value(callerKey{}).(audit.Caller)
	if extra := req.GetExtra(); extra != nil && extra.Header != nil {
		c = callerOf(extra.Header)
	} else {
		c.RequestID = newRequestID() // a stream has many
	}
	if ss, ok := req.GetSession().(*mcp.ServerSession); ok {
		if stateful(ss) { // of a request without a session the id is what the client says
			c.Session = hashOf(ss.ID())
		}
		if p := ss.InitializeParams(); p != nil && p.ClientInfo != nil {
			c.ClientName, c.ClientVersion = audit.BoundText(p.ClientInfo.Name), audit.BoundText(p.ClientInfo.Version)
		}
	}
	return context.WithValue(ctx, callerKey{}, c)
}

// hashOf names an MCP session, whose id is a credential. "" is for none.
func hashOf(id string) string {
	if id == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:8])
}

func callerFrom(ctx context.Context) audit.Caller {
	c, _ := ctx.Value(callerKey{}).(audit.Caller)
	return c
}

// calls are the ids of the requests whose tool calls run now.
type calls struct {
	mu sync.Mutex
	by map[string]int
}

func (c *calls) begin(id string) (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by == nil {
		c.by = map[string]int{}
	}
	c.by[id]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.by[id]--; c.by[id] == 0 {
			delete(c.by, id)
		}
	}
}

// Calls lists the request ids of the tool calls that run now, sorted.
func (h *Hub) Calls() []string {
	h.calls.mu.Lock()
	defer h.calls.mu.Unlock()
	return slices.Sorted(maps.Keys(h.calls.by))
}
