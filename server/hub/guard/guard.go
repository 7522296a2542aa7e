// Package guard decides which calls of tools a hub lets through to a server: tool security as data.
package guard

import (
	"encoding/json"
	"time"
)

// DefaultPath is where the image has its file.
const DefaultPath = "/etc/agent-browser/hub.policy.json"

// Policy is a read hub.policy.json.
type Policy struct {
	// CallTimeout is for a server that sets none.
	CallTimeout time.Duration
}

// Load reads a policy file. Only the default path may be missing: the built-in policy is taken then.
func Load(path string) (*Policy, error) { panic("not built") }

// Default is the built-in policy, the same as the image's file.
func Default() *Policy { panic("not built") }

// Call is one call of a tool.
type Call struct {
	Server, Tool string // Tool as the server names it; globs also match Alias
	Alias        string // as the hub names it
	Arguments    json.RawMessage
	Shell        bool // the server is marked so
}

// Denial says why a call is not let through. Its text never holds an argument.
type Denial struct {
	Rule    string // tool.blocked, arguments.size, arguments.path, arguments.injection
	Message string
}

// Check gives nil if the call may go on.
func (p *Policy) Check(c Call) *Denial { panic("not built") }

// Visible tells whether tools/list shows a tool: a call of a blocked one is denied, so it isn't shown.
func (p *Policy) Visible(server, tool, alias string) bool { panic("not built") }
