package hub

import (
	"context"
	"slices"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// verbosity orders the levels, the most verbose one first.
var verbosity = []mcp.LoggingLevel{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// levels are what clients of the older era want to be logged.
type levels struct {
	mu sync.Mutex
	by map[*mcp.ServerSession]mcp.LoggingLevel
}

func (l *levels) set(ss *mcp.ServerSession, level mcp.LoggingLevel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.by == nil {
		l.by = map[*mcp.ServerSession]mcp.LoggingLevel{}
	}
	l.by[ss] = level
}

func (l *levels) drop(ss *mcp.ServerSession) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.by, ss)
}

func (l *levels) of(ss *mcp.ServerSession) mcp.LoggingLevel {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.by[ss]
}

// most gives the most verbose level that anybody wants, "" if nobody does.
func (l *levels) most(wanted mcp.LoggingLevel) mcp.LoggingLevel {
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

// levelOf is what a request wants to be logged.
func levelOf(meta mcp.Meta) mcp.LoggingLevel {
	switch level := meta[mcp.MetaKeyLogLevel].(type) {
	case mcp.LoggingLevel:
		return level
	case string:
		return mcp.LoggingLevel(level)
	}
	return ""
}

// setLevel tells a server of the older era, which has one level for all, what
// to log; go-sdk leaves out what a client doesn't want.
func (h *Hub) setLevel(ctx context.Context, session *mcp.ClientSession, f *flight, meta mcp.Meta) {
	init := session.InitializeResult()
	if newer(session) || init.Capabilities == nil || init.Capabilities.Logging == nil {
		return
	}
	wanted := h.levels.most(levelOf(meta))
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
