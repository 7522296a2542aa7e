// Package admin is the hub's management API: a unix socket for those who run it.
package admin

import (
	"context"
	"time"

	"github.com/slimctl/slimctl/server/hub/upstream"
)

// Tool is a tool as the hub lists it.
type Tool struct {
	Name        string `json:"name"`   // as clients see it
	Server      string `json:"server"` // whose it is
	Description string `json:"description,omitempty"`
	Blocked     bool   `json:"blocked,omitempty"` // by hub.policy.json: clients don't see it
}

// Hub is what the API manages.
type Hub interface {
	Servers() []upstream.Status
	Server(name string) (upstream.Status, bool)
	Log(name string) []byte
	Start(name string) error
	Stop(ctx context.Context, name string) error
	Restart(ctx context.Context, name string) error
	Tools() []Tool
	Reload() error
	// Ready says what keeps the hub from serving, nil when every server runs.
	Ready() error
}

// Metrics counts what the hub does, as Prometheus text with the OTel MCP names.
type Metrics struct{}

// NewMetrics gives counters at 0.
func NewMetrics() *Metrics { panic("not built") }

// Operation is one request served (mcp.server.operation.duration) or made to a server (mcp.client.operation.duration).
// errorType is empty, "tool_error", or a JSON-RPC code as text.
func (m *Metrics) Operation(client bool, method, tool, errorType string, d time.Duration) {
	panic("not built")
}

// Denied counts a call that the guard denied.
func (m *Metrics) Denied(server, tool, rule string) { panic("not built") }
