package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/internal/lazyregexp"
	"github.com/slimctl/slimctl/server/audit"
	"github.com/slimctl/slimctl/server/output"
	"github.com/slimctl/slimctl/server/policy"
)

// record writes the audit log: one line per call, before its answer leaves. It contains no arguments.
type record struct {
	log      *audit.Log
	redactor *output.Redactor
}

func newRecord(o Options) (*record, error) {
	redactor, err := output.NewRedactor(nil, nil, output.Secrets(os.Environ()))
	if err != nil {
		return nil, err
	}
	log, err := audit.Open(o.Audit, cmp.Or(o.AuditLimits, audit.Limits{MaxBytes: 16 << 20, Keep: 7}))
	if err != nil {
		return nil, err
	}
	return &record{log, redactor}, nil
}

// recordEvent records an event that is not a call.
func (r *record) recordEvent(event, what string) error {
	return r.log.Finish(audit.Record{Event: event, Note: what})
}

// line is the record of a running call.
type line struct {
	record *record
	since  time.Time
	audit.Record
}

// traceparent is version-trace-parent-flags (W3C Trace Context, section 3.2).
var traceparent = lazyregexp.New(`^[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}$`)

// beginLine starts the record of a call; server is nil for an unknown tool.
func (r *record) beginLine(ctx context.Context, ss *mcp.ServerSession, s *server, meta mcp.Meta) *line {
	l := &line{record: r, since: time.Now()}
	c := callerFrom(ctx)
	l.RequestID, l.Subject = c.RequestID, c.Subject // from the gate, so not redacted: for instance key:1a2b3c4d
	l.ClientName, l.ClientVersion = r.redactor.String(c.ClientName), r.redactor.String(c.ClientVersion)
	if s != nil {
		l.Note = "server " + s.config.Name
	}
	if p := ss.InitializeParams(); p != nil {
		l.Protocol = r.redactor.String(p.ProtocolVersion)
	}
	l.Session = hashSession(ss.ID())
	if s, ok := meta["traceparent"].(string); ok {
		if m := traceparent.FindStringSubmatch(s); m != nil {
			l.TraceID = m[1]
		}
	}
	return l
}

// writeLine writes the line. It returns err, or the error of writing.
func (l *line) writeLine(res *mcp.CallToolResult, rule string, err error) error {
	l.Event, l.Decision, l.Rule = audit.ToolFinished, "allow", rule
	l.DurationMS = time.Since(l.since).Milliseconds()
	if rule != "" {
		l.Event, l.Decision, l.Refused = audit.PolicyBlocked, "deny", true
		l.ExitCode = policy.PolicyBlocked.ExitCode()
	}
	l.Events = []string{audit.ToolCall, l.Event}
	var known *jsonrpc.Error
	switch {
	case errors.As(err, &known):
		l.ErrorName, l.ExitCode = fmt.Sprint(known.Code), 1
	case err != nil:
		l.ErrorName, l.ExitCode = "CANCELLED", 1
	case res != nil && res.IsError:
		l.ErrorName = "tool_error"
		l.ExitCode = max(l.ExitCode, 1)
		if name, ok := res.Meta["name"].(string); ok && (rule != "" || res.Meta["rule"] != nil) {
			l.ErrorName = l.record.redactor.String(fmt.Sprintf("%.64s", name))
			l.Refused = true // by the server, whose own line has the details
		}
	}
	if res != nil {
		l.BytesOut = textSize(res)
	}
	write := l.record.log.Finish
	if l.Refused {
		write = l.record.log.Write
	}
	if e := write(l.Record); e != nil {
		return e
	}
	return err
}

// textSize returns the approximate length of a result's text.
func textSize(res *mcp.CallToolResult) int {
	n := 0
	for _, c := range res.Content {
		switch c := c.(type) {
		case *mcp.TextContent:
			n += len(c.Text)
		case *mcp.ImageContent:
			n += len(c.Data)
		case *mcp.AudioContent:
			n += len(c.Data)
		}
	}
	return n
}
