package hub

import (
	"context"
	"encoding/json"
	"maps"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/server/audit"
)

// newEra is the first revision without sessions.
const newEra = "2026-07-28"

func isOlder(ss *mcp.ServerSession) bool {
	p := ss.InitializeParams()
	return p != nil && p.ProtocolVersion < newEra
}

func isNewer(session *mcp.ClientSession) bool {
	r := session.InitializeResult()
	return r != nil && r.ProtocolVersion >= newEra
}

// upstreamMeta returns a request's _meta for the server: in the newer era each request describes the client and its
// capabilities. Only a program that the hub started learns the caller.
func (h *Hub) upstreamMeta(ctx context.Context, s *server, session *mcp.ClientSession, ss *mcp.ServerSession, meta mcp.Meta) mcp.Meta {
	m := maps.Clone(meta)
	if m == nil {
		m = mcp.Meta{}
	}
	delete(m, audit.MetaCaller) // clients can't name the caller
	if s.config.Command != "" {
		// Each end is reported once. A program that misses one limits the idle time of its sessions.
		ended, ends := h.web.sessions.endedSince(s.toldEnds.Load())
		s.toldEnds.Store(ends)
		m[audit.MetaCaller] = callerFrom(ctx).MetaWith(ended)
	}
	if p := ss.InitializeParams(); isOlder(ss) {
		m[mcp.MetaKeyClientCapabilities] = capabilitiesOf(p)
		if p.ClientInfo != nil {
			m[mcp.MetaKeyClientInfo] = p.ClientInfo
		}
		if level := h.levels.levelOf(ss); level != "" {
			m[mcp.MetaKeyLogLevel] = level
		}
	}
	if isNewer(session) {
		m[mcp.MetaKeyProtocolVersion] = session.InitializeResult().ProtocolVersion
	}
	return m
}

// stripNewEra removes fields that would make a server of the older era assume the newer one.
func stripNewEra(session *mcp.ClientSession, m mcp.Meta) mcp.Meta {
	if !isNewer(session) {
		for _, key := range []string{mcp.MetaKeyProtocolVersion, mcp.MetaKeyClientInfo, mcp.MetaKeyClientCapabilities, mcp.MetaKeyLogLevel} {
			delete(m, key)
		}
	}
	return m
}

// capabilitiesOf returns a client's capabilities in wire form; go-sdk's type always includes roots.
func capabilitiesOf(p *mcp.InitializeParams) map[string]any {
	m := map[string]any{}
	if p.Capabilities == nil {
		return m
	}
	if text, err := json.Marshal(p.Capabilities); err == nil {
		_ = json.Unmarshal(text, &m) // it is an object
	}
	delete(m, "roots")
	if p.Capabilities.RootsV2 != nil {
		m["roots"] = p.Capabilities.RootsV2
	}
	return m
}
