package hub

import (
	"context"
	"encoding/json"
	"maps"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/server/audit"
)

// newEra is the revision that has no sessions any more.
const newEra = "2026-07-28"

func older(ss *mcp.ServerSession) bool {
	p := ss.InitializeParams()
	return p != nil && p.ProtocolVersion < newEra
}

func newer(session *mcp.ClientSession) bool {
	r := session.InitializeResult()
	return r != nil && r.ProtocolVersion >= newEra
}

// upstreamMeta is a request's _meta for the server: in the newer era each
// request says who the client is and what it can do. A program that the hub
// started is told who calls, a server elsewhere is not.
func (h *Hub) upstreamMeta(ctx context.Context, s *server, session *mcp.ClientSession, ss *mcp.ServerSession, meta mcp.Meta) mcp.Meta {
	m := maps.Clone(meta)
	if m == nil {
		m = mcp.Meta{}
	}
	delete(m, audit.MetaCaller) // a client does not say who it is
	if s.config.Command != "" {
		// Each end is told once. A program that doesn't hear of one bounds the idle time of what it has.
		ended, ends := h.web.sessions.endedSince(s.toldEnds.Load())
		s.toldEnds.Store(ends)
		m[audit.MetaCaller] = callerFrom(ctx).MetaWith(ended)
	}
	if p := ss.InitializeParams(); older(ss) {
		m[mcp.MetaKeyClientCapabilities] = capabilitiesOf(p)
		if p.ClientInfo != nil {
			m[mcp.MetaKeyClientInfo] = p.ClientInfo
		}
		if level := h.levels.of(ss); level != "" {
			m[mcp.MetaKeyLogLevel] = level
		}
	}
	if newer(session) {
		m[mcp.MetaKeyProtocolVersion] = session.InitializeResult().ProtocolVersion
	}
	return m
}

// strip removes what a server of the older era would take for the newer one.
func strip(session *mcp.ClientSession, m mcp.Meta) mcp.Meta {
	if !newer(session) {
		for _, key := range []string{mcp.MetaKeyProtocolVersion, mcp.MetaKeyClientInfo, mcp.MetaKeyClientCapabilities, mcp.MetaKeyLogLevel} {
			delete(m, key)
		}
	}
	return m
}

// capabilitiesOf gives a client's capabilities as they go over the wire, which
// go-sdk's type does not of itself: it always has roots.
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
