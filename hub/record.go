package hub

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/server/audit"
)

// exitBlocked is the exit_code of a denied call, as browser-shell has it.
const exitBlocked = 126

// record writes the audit log: one line per call, before its answer leaves, and one per change of a server's state. It
// contains no arguments.
type record struct {
	log *audit.Log
	all bool // also calls that are allowed and succeed
}

func openRecord(path string, all bool) (*record, error) {
	log, err := audit.Open(path, audit.Limits{MaxBytes: 16 << 20, Keep: 7, Rotate: true})
	return &record{log, all}, err
}

// writeState records that a server runs, was stopped or ended.
func (r *record) writeState(server string, to State, err error) {
	note := "server " + server
	if err != nil {
		note += ": " + oneLine(err.Error())
	}
	_ = r.log.Finish(audit.Record{Event: "SERVER_" + map[State]string{Running: "RUNNING", Stopped: "STOPPED", Failed: "ERROR"}[to], Note: note}) // the next line counts it as missing
}

// line is the record of a running call.
type line struct {
	record *record
	since  time.Time
	audit.Record
}

// begin starts the record of a call; t is nil for an unknown tool.
func (r *record) begin(client *mcp.ServerSession, name string, t *tool) *line {
	l := &line{record: r, since: time.Now()}
	l.Tool = audit.BoundText(name)
	if t != nil {
		l.Tool, l.Note = Dotted.alias(t.server.Name, t.tool.Name), "server "+t.server.Name
	}
	if p := client.InitializeParams(); p != nil {
		l.Protocol = audit.BoundText(p.ProtocolVersion)
		if p.ClientInfo != nil {
			l.ClientName, l.ClientVersion = audit.BoundText(p.ClientInfo.Name), audit.BoundText(p.ClientInfo.Version)
		}
	}
	if id := client.ID(); id != "" {
		sum := sha256.Sum256([]byte(id)) // whoever reads the log can't take over the session
		l.Session = hex.EncodeToString(sum[:8])
	}
	return l
}

// write writes the line of a call that returned res or err.
func (l *line) write(res *mcp.CallToolResult, rule string, err error) error {
	l.Event, l.Decision, l.Rule = audit.ToolFinished, "allow", rule
	l.DurationMS = time.Since(l.since).Milliseconds()
	var known *jsonrpc.Error
	switch {
	case rule != "":
		l.Event, l.Decision, l.Refused, l.ExitCode, l.ErrorName = audit.PolicyBlocked, "deny", true, exitBlocked, "POLICY_BLOCKED"
	case errors.As(err, &known):
		l.ErrorName, l.ExitCode = fmt.Sprint(known.Code), 1
	case err != nil:
		l.ErrorName, l.ExitCode = "CANCELLED", 1
	case res != nil && res.IsError:
		l.ErrorName, l.ExitCode = "tool_error", 1
		if name, ok := res.Meta["name"].(string); ok && res.Meta["rule"] != nil { // the hub's, or browser-shell's
			l.ErrorName = audit.BoundText(name)
		}
	case !l.record.all:
		return nil
	}
	l.Events = []string{audit.ToolCall, l.Event}
	if res != nil {
		for _, c := range res.Content {
			switch c := c.(type) {
			case *mcp.TextContent:
				l.BytesOut += len(c.Text)
			case *mcp.ImageContent:
				l.BytesOut += len(c.Data)
			case *mcp.AudioContent:
				l.BytesOut += len(c.Data)
			}
		}
	}
	write := l.record.log.Finish
	if l.Refused {
		write = l.record.log.Write
	}
	return write(l.Record)
}
