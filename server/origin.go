package server

import (
	"maps"
	"slices"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/internal/lazyregexp"
	"github.com/slimctl/slimctl/server/audit"
	"github.com/slimctl/slimctl/server/front"
)

// traceparent matches version-trace-parent-flags (W3C Trace Context, section 3.2).
var traceparent = lazyregexp.New(`^[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}$`)

// readOrigin returns the caller's identity. Over HTTP the front has named the subject; what the client says of itself is
// in the session's initialize or, in the stateless protocol, in the request's _meta.
func readOrigin(req *mcp.CallToolRequest) Origin {
	var o Origin
	if req.Session != nil {
		if init := req.Session.InitializeParams(); init != nil {
			o.Protocol = init.ProtocolVersion
			if init.ClientInfo != nil {
				o.ClientName, o.ClientVersion = audit.BoundText(init.ClientInfo.Name), audit.BoundText(init.ClientInfo.Version)
			}
		}
	}
	meta := req.Params.Meta
	if s, ok := meta["traceparent"].(string); ok {
		if m := traceparent.FindStringSubmatch(s); m != nil {
			o.TraceID = m[1]
		}
	}
	if s, ok := meta["io.modelcontextprotocol/protocolVersion"].(string); ok {
		o.Protocol = s
	}
	if info, ok := meta["io.modelcontextprotocol/clientInfo"].(map[string]any); ok {
		name, _ := info["name"].(string)
		version, _ := info["version"].(string)
		o.ClientName, o.ClientVersion = audit.BoundText(name), audit.BoundText(version)
	}
	if req.Extra != nil && req.Extra.Header != nil {
		by := front.CallerOf(req.Extra.Header)
		o.RequestID, o.Subject, o.Session = by.RequestID, by.Subject, by.Session
	}
	return o
}

// running holds the request ids of the running calls.
type running struct {
	mu sync.Mutex
	by map[string]int
}

func (c *running) beginCall(id string) (end func()) {
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

// Calls returns the request ids of the running calls, sorted.
func (s *Server) Calls() []string {
	s.running.mu.Lock()
	defer s.running.mu.Unlock()
	return slices.Sorted(maps.Keys(s.running.by))
}
