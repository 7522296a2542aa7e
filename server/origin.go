package server

import (
	"regexp"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// traceparent is version-trace-parent-flags (W3C Trace Context, section 3.2).
var traceparent = regexp.MustCompile(`^[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}$`)

// origin reads who called: from the session's initialize, or in the stateless
// era from the request's own _meta. All of it is what the client says.
func origin(req *mcp.CallToolRequest) Origin {
	var o Origin
	if req.Session != nil {
		if init := req.Session.InitializeParams(); init != nil {
			o.Protocol = init.ProtocolVersion
			if init.ClientInfo != nil {
				o.ClientName, o.ClientVersion = init.ClientInfo.Name, init.ClientInfo.Version
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
		o.ClientName, _ = info["name"].(string)
		o.ClientVersion, _ = info["version"].(string)
	}
	return o
}
