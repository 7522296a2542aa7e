// Package guard decides which calls of tools a hub lets through to a server: tool security as data.
//
// It looks at names and at arguments. It can't know what a server does with either: a server that may not read a file
// has to be kept from it by its user and its file system. The guard is what comes before that.
package guard

import (
	"encoding/json"
	"fmt"
	"time"
)

// DefaultPath is where the image has its file.
const DefaultPath = "/etc/agent-browser/hub.policy.json"

// The rules that a Denial names.
const (
	RuleBlocked   = "tool.blocked"        // by allow or block, or by a name that no glob can speak of
	RuleSize      = "arguments.size"      // more bytes than max_argument_bytes
	RuleJSON      = "arguments.json"      // no JSON object, nested too deep, a number out of range
	RulePath      = "arguments.path"      // one of sensitive_paths, or a directory that may not be used
	RuleInjection = "arguments.injection" // a character with a meaning to a shell
)

// Policy is a read hub.policy.json. It does not change, so calls may be checked at the same time.
type Policy struct {
	// CallTimeout is for a server that sets none.
	CallTimeout time.Duration

	named    []string // servers that the file speaks of
	base     rules
	servers  map[string]rules
	timeouts map[string]time.Duration // of servers whose entry sets one
}

// rules are what holds for one server. The tags say what a key means (doc) and may hold (least and most, pattern and
// what it must be in words); the check of a file and its JSON Schema are both made from them.
type rules struct {
	Allow              []string `json:"allow" pattern:"^[!-~]{1,256}$" must:"be 1 to 256 visible ASCII characters" doc:"globs (* and ?) of tools that may be called and are listed; exact case. With a / it is matched with server/tool, without one with the tool's own name and its alias"`
	Block              []string `json:"block" pattern:"^[!-~]{1,256}$" must:"be 1 to 256 visible ASCII characters" doc:"globs of tools that may not, whatever allow says; any case, matched with the tool's own name, its alias and server/tool. A server's are added to the default's"`
	ReadOnly           bool     `json:"read_only" doc:"true: of what allow admits only tools whose readOnlyHint is true. The hint is the server's own word: use it for servers that you trust"`
	MaxArgumentBytes   int      `json:"max_argument_bytes" least:"64" most:"16777216" doc:"of one call's arguments as JSON; 64 bytes to 16 MiB"`
	CallTimeoutSec     int      `json:"call_timeout_sec" least:"1" most:"600" doc:"how long a call may run, in seconds; at most 10 minutes"`
	CheckArguments     bool     `json:"check_arguments" doc:"whether arguments are checked against the tool's inputSchema before the server gets them; false for a server that explains it better"`
	PathTools          []string `json:"path_tools" pattern:"^[!-~]{1,256}$" must:"be 1 to 256 visible ASCII characters" doc:"globs of tools whose arguments may not hold one of sensitive_paths, matched like block; leave out those that take prose"`
	SensitivePaths     []string `json:"sensitive_paths" pattern:"^[!-~]{3,256}$" must:"be 3 to 256 visible ASCII characters" doc:"what no string may hold: anywhere in it, in any case, also when percent-encoded or folded"`
	DeniedDirectories  []string `json:"denied_directories" pattern:"^/[!-~]{1,255}$" must:"be absolute directories" doc:"a string that is a path in one of these is denied, for path_tools; also relative ones that lead there from /"`
	AllowedDirectories []string `json:"allowed_directories" pattern:"^/[!-~]{1,255}$" must:"be absolute directories" doc:"if there are any: a string that is an absolute path, or begins with ~ or .., must be in one of these, for path_tools"`
	Shell              bool     `json:"shell" doc:"true: its arguments reach a shell. A server marked so in mcp-hub.json is one already"`
	ShellCharacters    string   `json:"shell_characters" pattern:"^[!-/:-@\\[-\u0060{-~]+$" must:"be ASCII punctuation" doc:"what no string of a call to such a server may hold, besides control characters"`
}

// builtin is the policy without a file. The shell characters are those that POSIX.1-2024 (XCU 2.2) wants quoted, but
// for blanks, ^, -, ",", = and %, which begin no command and end none. The browser types what an agent gives it
// into pages, so a password there is no path; its tool ends calls after 120 s by itself and knows better why, so the hub
// waits a little longer.
const builtin = `{
  "default": {
    "allow": ["*"],
    "block": [],
    "read_only": false,
    "max_argument_bytes": 1048576,
    "call_timeout_sec": 30,
    "check_arguments": true,
    "path_tools": ["*"],
    "sensitive_paths": [".ssh", ".gnupg", ".aws", "credentials", ".env", "password", "secret"],
    "denied_directories": ["/etc", "/proc", "/sys", "/dev", "/root", "/boot", "/run"],
    "allowed_directories": [],
    "shell": false,
    "shell_characters": "|&;<>()$` + "`" + `\\\"'*?[]{}!#~"
  },
  "servers": {
    "browser_shell": {"allow": ["browser-shell", "sandbox_execute_bash"], "call_timeout_sec": 130, "check_arguments": false, "path_tools": []}
  }
}`

// Default is the built-in policy, the same as the image's file.
func Default() *Policy {
	p, err := Parse([]byte("{}"))
	if err != nil {
		panic(err) // tests read it
	}
	return p
}

// Servers gives the names that the file has an entry for, in its order. One that the hub does not know may be misspelt,
// and then nothing of the entry holds: say so.
func (p *Policy) Servers() []string { return p.named }

// ChecksArguments reports whether calls to a server are checked against the tool's inputSchema.
func (p *Policy) ChecksArguments(server string) bool { return p.rules(server).CheckArguments }

// Timeout gives how long a call to a server may run: as long as its entry here says, otherwise configured (what
// mcp-hub.json says; 0: nothing), otherwise the default. It is never more than 10 minutes.
func (p *Policy) Timeout(server string, configured time.Duration) time.Duration {
	if t, ok := p.timeouts[server]; ok {
		return t
	}
	if configured > 0 {
		return min(configured, maxTimeout)
	}
	return p.CallTimeout
}

const maxTimeout = 10 * time.Minute

// Call is one call of a tool.
type Call struct {
	Server, Tool string // Tool as the server names it; globs also match Alias
	Alias        string // as the hub names it
	Arguments    json.RawMessage
	ReadOnly     bool // the tool's readOnlyHint
	Shell        bool // the server is marked so
}

// Denial says why a call is not let through. Its text never holds an argument.
type Denial struct {
	Rule    string // one of the Rule constants
	Message string
}

func deny(rule, format string, args ...any) *Denial {
	return &Denial{rule, fmt.Sprintf(format, args...)}
}

func (p *Policy) rules(server string) rules {
	if r, ok := p.servers[server]; ok {
		return r
	}
	return p.base
}

// Check gives nil if the call may go on. It takes time in proportion to the arguments.
func (p *Policy) Check(c Call) *Denial {
	r := p.rules(c.Server)
	if !p.Visible(c.Server, c.Tool, c.Alias, c.ReadOnly) {
		return deny(RuleBlocked, "the hub's policy does not allow the tool %q; use one of tools/list", c.Alias)
	}
	if len(c.Arguments) > r.MaxArgumentBytes {
		return deny(RuleSize, "the arguments have %d bytes, more than the %d that the hub's policy allows; send less in one call", len(c.Arguments), r.MaxArgumentBytes)
	}
	var s scan
	if matchesAny(r.PathTools, names(c.Server, c.Tool, c.Alias)) {
		s.paths, s.denied, s.allowed = r.SensitivePaths, r.DeniedDirectories, r.AllowedDirectories
	}
	if c.Shell || r.Shell {
		s.shell = r.ShellCharacters
	}
	return s.arguments(c.Arguments)
}

// CheckText is for what reaches a server otherwise than by a call of a tool: the URI of resources/read, the arguments of
// prompts/get. Paths are looked for unless path_tools is empty; marked says that the server is marked as Call.Shell does.
func (p *Policy) CheckText(server string, marked bool, texts ...string) *Denial {
	r := p.rules(server)
	var s scan
	if len(r.PathTools) > 0 {
		s.paths, s.denied, s.allowed = r.SensitivePaths, r.DeniedDirectories, r.AllowedDirectories
	}
	if marked || r.Shell {
		s.shell = r.ShellCharacters
	}
	for _, t := range texts {
		if len(t) > r.MaxArgumentBytes {
			return deny(RuleSize, "a value has %d bytes, more than the %d that the hub's policy allows; send less", len(t), r.MaxArgumentBytes)
		}
		if d := s.text(t, false); d != nil {
			return d
		}
	}
	return nil
}

// Visible tells whether tools/list shows a tool: a call of a blocked one is denied, so it isn't shown. readOnly is the
// tool's readOnlyHint.
func (p *Policy) Visible(server, tool, alias string, readOnly bool) bool {
	r := p.rules(server)
	return (readOnly || !r.ReadOnly) && wellFormed(server, tool, alias) && !matchesAny(r.Block, names(server, tool, alias)) && allowed(r.Allow, server, tool, alias)
}
