// Package guard decides which tool calls a hub forwards to a server, by rules in a file.
//
// It checks names and arguments only. It can't know what a server does with them: if a server must not read a file, its
// user and file system must prevent that.
package guard

import (
	"encoding/json"
	"fmt"
	"time"
)

// DefaultPath is the path of the file in the image.
const DefaultPath = "/etc/agent-browser/hub.policy.json"

// The rules in a Denial.
const (
	RuleBlocked   = "tool.blocked"        // by allow or block, or by a name that no glob can match
	RuleSize      = "arguments.size"      // more bytes than max_argument_bytes
	RuleJSON      = "arguments.json"      // not a JSON object, nested too deep, a number out of range
	RulePath      = "arguments.path"      // one of sensitive_paths, or a forbidden directory
	RuleInjection = "arguments.injection" // a character with a meaning to a shell
)

// Policy is a parsed hub.policy.json. It is immutable, so calls may be checked concurrently.
type Policy struct {
	// CallTimeout is the timeout for a server without its own.
	CallTimeout time.Duration

	named    []string // servers with an entry in the file
	base     rules
	servers  map[string]rules
	timeouts map[string]time.Duration // of servers whose entry sets one
}

// rules holds the rules for one server. The tags define a key's meaning (doc) and its values (least and most, pattern,
// and must in words). The check of a file and its JSON Schema are both generated from them.
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

// builtin is the policy without a file. The shell characters are those that POSIX.1-2024 (XCU 2.2) requires to be
// quoted, except blanks, ^, -, ",", = and %, which neither begin nor end a command. The browser tool types an agent's
// text into pages, so a password is not a path there. That tool ends calls after 120 s with a better error, so the hub
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

// Default returns the built-in policy, which equals the image's file.
func Default() *Policy {
	p, err := Parse([]byte("{}"))
	if err != nil {
		panic(err) // tests read it
	}
	return p
}

// Servers returns the names that have an entry in the file, in its order. Report an unknown one: it may be misspelt,
// and then its entry has no effect.
func (p *Policy) Servers() []string { return p.named }

// ChecksArguments reports whether the hub checks calls to a server against the tool's inputSchema.
func (p *Policy) ChecksArguments(server string) bool { return p.rules(server).CheckArguments }

// Timeout returns the limit for a call to a server: from its entry, otherwise configured (from mcp-hub.json; 0: none),
// otherwise the default. It is at most 10 minutes.
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
	Server, Tool string // Tool is the server's name for it; globs also match Alias
	Alias        string // the hub's name for it
	Arguments    json.RawMessage
	ReadOnly     bool // the tool's readOnlyHint
	Shell        bool // the server's entry sets shell
}

// Denial is the reason for denying a call. Its text never contains an argument.
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

// Check returns nil if the call is allowed. Its time is linear in the size of the arguments.
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
	return s.checkArguments(c.Arguments)
}

// CheckText checks text outside tool calls: the URI of resources/read, the arguments of prompts/get. It looks for paths
// unless path_tools is empty; marked has the meaning of Call.Shell.
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
		if d := s.checkText(t, false); d != nil {
			return d
		}
	}
	return nil
}

// Visible reports whether tools/list shows a tool; blocked ones are hidden. readOnly is the tool's readOnlyHint.
func (p *Policy) Visible(server, tool, alias string, readOnly bool) bool {
	r := p.rules(server)
	return (readOnly || !r.ReadOnly) && checkNames(server, tool, alias) && !matchesAny(r.Block, names(server, tool, alias)) && matchesExact(r.Allow, server, tool, alias)
}
