// Package policy decides which commands browser-shell passes to agent-browser: a positive grammar of argv (grammar.go),
// a check of addresses (url.go), and the policy file, which narrows or widens both within fixed bounds.
package policy

// DefaultPath is the path of the policy file in the image.
const DefaultPath = "/etc/agent-browser/browser-shell.policy.json"

// Policy is the content of the policy file. A missing key has the value of the image's own file.
//
// The tags of these types define a key's meaning (doc) and its values (least and most, enum, pattern, and must in
// words). The check of a file and its JSON Schema are both generated from them.
type Policy struct {
	Version      int          `json:"version" least:"1" most:"1" doc:"the version of this format"`
	ToolName     string       `json:"tool_name" enum:"browser-shell,sandbox_execute_bash" doc:"the one tool's name; the second for clients that know only that"`
	AgentBrowser AgentBrowser `json:"agent_browser" doc:"the program that runs and the Chromium that it drives"`
	Commands     []string     `json:"commands" doc:"the subcommands that may run; \"+read\" stands for get, is, scroll, back, forward and reload, and alone adds them to the default ones"`
	Open         Open         `json:"open" doc:"where open may go; public hosts only, whatever is written here"`
	Egress       Egress       `json:"egress" doc:"the forward proxy of every tab; it cannot be switched off"`
	Screenshot   Screenshot   `json:"screenshot" doc:"how screenshots come back"`
	Limits       Limits       `json:"limits" doc:"bounds of calls and sessions"`
	Redaction    Redaction    `json:"redaction" doc:"what is hidden besides the built-in rules, which cannot be switched off"`
	Audit        Audit        `json:"audit" doc:"the log of calls"`
	Cage         string       `json:"cage" enum:"available,required" doc:"whether the browser starts where the kernel lacks a part of its cage: available, it does with what there is; required, it does not"`
	ArtifactsDir string       `json:"artifacts_dir" pattern:"^(/|$)" must:"be an absolute path" doc:"absolute; empty: state_dir/artifacts"`
	StateDir     string       `json:"state_dir" pattern:"^(/|$)" must:"be an absolute path" doc:"absolute; empty: a private directory of this user under the temporary directory"`
}

// The possible names of the tool.
const (
	ToolName   = "browser-shell"
	CompatName = "sandbox_execute_bash"
)

// Egress configures the forward proxy for every request of a session's tab. It can't be switched off.
type Egress struct {
	Proxy          string   `json:"proxy" pattern:"^(127\\.[0-9.]+|\\[::1\\]):[0-9]+$" must:"be a loopback address and port, for instance 127.0.0.1:8118" doc:"loopback address and port, where browser-shell egress listens"`
	MaxConnections int      `json:"max_connections" least:"1" most:"4096" doc:"connections that may be open at a time"`
	AllowPorts     []int    `json:"allow_ports" least:"1" most:"65535" doc:"empty: any"`
	PrivateHosts   []string `json:"private_hosts" pattern:"^[a-z0-9_.-]+=[0-9a-f.:]+/[0-9]{1,3}$" must:"be NAME=RANGE, for instance wiki.corp.example=10.1.2.0/24" doc:"hosts of open.allow_hosts that may have private addresses, each with its range: \"wiki.corp.example=10.1.2.0/24\"; loopback, link-local and cloud metadata addresses stay refused; a public range is for hosts in a network that the machine is connected to"`
	DenyRanges     []string `json:"deny_ranges" pattern:"^[0-9a-f.:]+/[0-9]{1,3}$" must:"be a range, for instance 11.22.0.0/16" doc:"ranges whose addresses are refused for every host, whatever private_hosts says: \"11.22.0.0/16\""`
}

// Redaction adds patterns to hide in answers, errors and the audit log. The built-in rules can't be switched off.
type Redaction struct {
	Keys     []string `json:"keys" pattern:"." must:"not be empty" doc:"names whose values are hidden, in any case"`
	Patterns []string `json:"patterns" pattern:"." must:"not be empty" doc:"RE2 expressions; what they match is hidden"`
}

// Audit configures the log of calls.
type Audit struct {
	File     string `json:"file" pattern:"^(/|$)" must:"be an absolute path" doc:"absolute; empty: state_dir/audit.jsonl"`
	MaxBytes int64  `json:"max_bytes" least:"65536" most:"1073741824" doc:"a file that would grow beyond gets a number, and a new one begins; 64 KiB to 1 GiB"`
	Keep     int    `json:"keep" least:"1" most:"1000" doc:"files with a number"`
	WhenFull string `json:"when_full" enum:"stop,rotate" doc:"when there would be more: stop refuses calls until older files are taken away, rotate removes the oldest"`
}

// Rotate is the value of audit.when_full that deletes old lines. The default is "stop": otherwise a caller could remove
// the traces of his own calls.
const Rotate = "rotate"

// AgentBrowser configures the program to run and the Chromium that it drives.
type AgentBrowser struct {
	Path       string `json:"path" pattern:"^/" must:"be an absolute path" doc:"absolute path of the program"`
	SearchPath string `json:"search_path" pattern:"^(/[^:]*(:/[^:]*)*)?$" must:"hold absolute directories only" doc:"its PATH, absolute directories; 0.8 to 0.19 look for node there"`
	CDPPort    int    `json:"cdp_port" least:"1" most:"65535" doc:"Chromium's DevTools port on this machine"`
}

// Screenshot configures the form in which screenshots are returned.
type Screenshot struct {
	ReturnImage   bool `json:"return_image" doc:"whether they come as image content besides the JSON"`
	MaxImageBytes int  `json:"max_image_bytes" least:"0" most:"16777216" doc:"a larger one is kept but not returned; at most 16 MiB"`
}

// Limits limits calls and sessions.
type Limits struct {
	TimeoutSec    int `json:"timeout_sec" least:"1" most:"120" doc:"when the call names none; at most max_timeout_sec"`
	MaxTimeoutSec int `json:"max_timeout_sec" least:"1" most:"120" doc:"what a call may ask for"`
	OutputBytes   int `json:"output_bytes" least:"1024" most:"1048576" doc:"of stdout and of stderr in a result, more is cut; 1 KiB to 1 MiB"`
	MaxSessions   int `json:"max_sessions" least:"1" most:"64" doc:"open at a time; always 1 with agent-browser 0.8 to 0.19"`
	MaxCalls      int `json:"max_calls" least:"1" most:"1024" doc:"calls that run or wait at a time; one client may have half of them"`
	SessionQueue  int `json:"session_queue" least:"1" most:"1024" doc:"the same in one session; at most max_calls"`
	RatePerSec    int `json:"rate_per_sec" least:"1" most:"1000" doc:"calls a second over time of one session that has a page; all other calls of a client share one such rate; a call with long arguments counts for each KiB"`
	RateBurst     int `json:"rate_burst" least:"1" most:"10000" doc:"calls at once after a pause, of the same"`

	SessionCalls   int   `json:"session_calls" least:"1" most:"1000000" doc:"calls of one session"`
	SessionBytes   int64 `json:"session_bytes" least:"65536" most:"17179869184" doc:"answered to one session; 64 KiB to 16 GiB"`
	SessionIdleSec int   `json:"session_idle_sec" least:"10" most:"86400" doc:"a session without calls is closed after so long"`
	SessionHoldSec int   `json:"session_hold_sec" least:"10" most:"86400" doc:"a session may be kept for so long while another client waits for one, and a fifth of it without a call"`
	ArtifactBytes  int64 `json:"artifact_bytes" least:"1048576" most:"17179869184" doc:"of all screenshots and PDFs of one run; 1 MiB to 16 GiB"`
}

// Default returns the policy of a browser-shell without a policy file, on a developer's machine. forImage returns the
// values of keys that a file omits.
func Default() *Policy {
	return &Policy{
		Version:  1,
		ToolName: ToolName, Cage: "available",
		AgentBrowser: AgentBrowser{
			Path:       "/usr/local/bin/agent-browser",
			SearchPath: "/usr/local/bin:/usr/bin:/bin",
			CDPPort:    9222,
		},
		Commands:   defaultCommands(),
		Open:       Open{AllowSchemes: []string{"https", "http"}, AllowHosts: []string{AnyHost}, AllowHostSuffixes: []string{}},
		Egress:     Egress{Proxy: "127.0.0.1:8118", MaxConnections: 256, AllowPorts: []int{}, PrivateHosts: []string{}, DenyRanges: []string{}},
		Screenshot: Screenshot{ReturnImage: true, MaxImageBytes: 2 << 20},
		Limits: Limits{
			TimeoutSec: 30, MaxTimeoutSec: 120, OutputBytes: 30000, MaxSessions: 8,
			MaxCalls: 64, SessionQueue: 16, RatePerSec: 20, RateBurst: 100,
			SessionCalls: 5000, SessionBytes: 64 << 20, SessionIdleSec: 600, SessionHoldSec: 300, ArtifactBytes: 256 << 20,
		},
		Redaction: Redaction{Keys: []string{}, Patterns: []string{}},
		Audit:     Audit{MaxBytes: 16 << 20, Keep: 7, WhenFull: "stop"},
	}
}

// imageDefault returns the policy of the image's own file, assets/policy/browser-shell.policy.json: Default with the
// image's directories.
func imageDefault() *Policy {
	p := Default()
	p.ArtifactsDir, p.StateDir = "/output", "/var/lib/browser-shell/state"
	p.Audit.File = "/var/log/browser-shell/audit/audit.jsonl" // a volume may be mounted on its grandparent
	return p
}

func defaultCommands() []string {
	var names []string
	for _, row := range table {
		if !row.off {
			names = append(names, row.name)
		}
	}
	return names
}
