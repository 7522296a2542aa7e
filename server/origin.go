package server

import (
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/internal/lazyregexp"
	"github.com/slimctl/slimctl/server/audit"
)

// traceparent matches version-trace-parent-flags (W3C Trace Context, section 3.2).
var traceparent = lazyregexp.New(`^[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}$`)

// readOrigin returns the caller's identity, from the session's initialize or, in the stateless protocol, from the
// request's _meta. All of it is the client's claim.
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
	if caller, ok := meta[audit.MetaCaller]; ok { // the client is the hub, which names its own client
		o.Caller, o.ended = audit.CallerOf(caller), audit.EndedOf(caller)
	}
	return o
}
