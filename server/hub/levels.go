package hub

import (
	"context"
	"slices"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// verbosity orders the levels, the most verbose first.
var verbosity = []mcp.LoggingLevel{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// levels holds the log levels that clients of the older era requested.
type levels struct {
	mu sync.Mutex
	by map[*mcp.ServerSession]mcp.LoggingLevel
}

func (l *levels) setLevel(ss *mcp.ServerSession, level mcp.LoggingLevel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.by == nil {
		l.by = map[*mcp.ServerSession]mcp.LoggingLevel{}
	}
	l.by[ss] = level
}

func (l *levels) dropSession(ss *mcp.ServerSession) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.by, ss)
}

func (l *levels) levelOf(ss *mcp.ServerSession) mcp.LoggingLevel {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.by[ss]
}

// mostVerbose returns the most verbose requested level, or "" for none.
func (l *levels) mostVerbose(wanted mcp.LoggingLevel) mcp.LoggingLevel {
	l.mu.Lock()
	defer l.mu.Unlock()
	best := slices.Index(verbosity, wanted)
	for _, level := range l.by {
		if i := slices.Index(verbosity, level); i >= 0 && (best < 0 || i < best) {
			best = i
		}
	}
	if best < 0 {
		return ""
	}
	return verbosity[best]
}

// levelOf returns the log level that a request asks for.
func levelOf(meta mcp.Meta) mcp.LoggingLevel {
	switch level := meta[mcp.MetaKeyLogLevel].(type) {
	case mcp.LoggingLevel:
		return level
	case string:
		return mcp.LoggingLevel(level)
	}
	return ""
}

// setLevel sets the log level of a server of the older era, which has one level for all; go-sdk filters for each
// client.
func (h *Hub) setLevel(ctx context.Context, session *mcp.ClientSession, f *flight, meta mcp.Meta) {
	init := session.InitializeResult()
	if isNewer(session) || init.Capabilities == nil || init.Capabilities.Logging == nil {
		return
	}
	wanted := h.levels.mostVerbose(levelOf(meta))
	f.mu.Lock()
	same := wanted == "" || f.session == session && f.level == wanted
	f.session, f.level = session, wanted
	f.mu.Unlock()
	if same {
		return
	}
	if err := session.SetLoggingLevel(ctx, &mcp.SetLoggingLevelParams{Level: wanted}); err != nil {
		h.log.Warn("a server takes no logging level", "error", err)
	}
}
