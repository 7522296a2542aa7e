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

// Headers by which the program in front names the caller. They are trusted on a unix socket only, whose directory
// limits access; on a port any client could send them.
const (
	headerRequest = "X-Request-Id"
	headerCaller  = "X-Browser-Shell-Caller"
	headerUntil   = "X-Browser-Shell-Until" // the end of the caller's token, in seconds since 1970; none for a key
)

var (
	requestID = lazyregexp.New(`^[A-Za-z0-9._-]{1,64}$`)
	subject   = lazyregexp.New(`^[!-~]{1,256}$`)
)

// identify leaves at most one id and one caller in a request, and removes untrusted headers.
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
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

type callerKey struct{}

func callerOf(h http.Header) audit.Caller {
	return audit.Caller{RequestID: h.Get(headerRequest), Subject: h.Get(headerCaller)}
}

// withCaller adds the caller to the context of a request: from its own headers, or for a transport without them from
// those of the stream.
func withCaller(ctx context.Context, req mcp.Request) context.Context {
	c, _ := ctx.Value(callerKey{}).(audit.Caller)
	if extra := req.GetExtra(); extra != nil && extra.Header != nil {
		c = callerOf(extra.Header)
	} else {
		c.RequestID = newRequestID() // a stream has many requests
	}
	if ss, ok := req.GetSession().(*mcp.ServerSession); ok {
		if isStateful(ss) { // without a session, the client chooses the id
			c.Session = hashSession(ss.ID())
		}
		if p := ss.InitializeParams(); p != nil && p.ClientInfo != nil {
			c.ClientName, c.ClientVersion = audit.BoundText(p.ClientInfo.Name), audit.BoundText(p.ClientInfo.Version)
		}
	}
	return context.WithValue(ctx, callerKey{}, c)
}

// hashSession returns a name for an MCP session, whose id is a credential; "" for none.
func hashSession(id string) string {
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

// calls holds the request ids of the running tool calls.
type calls struct {
	mu sync.Mutex
	by map[string]int
}

func (c *calls) beginCall(id string) (end func()) {
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

// Calls returns the request ids of the running tool calls, sorted.
func (h *Hub) Calls() []string {
	h.calls.mu.Lock()
	defer h.calls.mu.Unlock()
	return slices.Sorted(maps.Keys(h.calls.by))
}
