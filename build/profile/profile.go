// Package profile reads a profile: the YAML file that says what the slim image is.
//
// The types are the format: one generic decoder, the merge of `extends` and the JSON Schema all read the struct tags.
//
//	yaml    the key; without "omitempty" the key must be there (in sections that `extends` merges: somewhere in the chain)
//	each    the key must be there in every file of the chain
//	check   the rule (rules.go) for the value, or for each item of a list or map
//	keys    the rule for the keys of a map
//	list    "min": not empty; "unique": no item twice
//	range   lowest and highest value of a number
//	oneof   exactly one key of the fields with the same word is set
//	needs   the key makes sense only beside this one
//	merge   how a list is merged: "key" (by name, path or glob) or "union"; without it the child's list replaces
package profile

// Profile is a profile after its `extends` chain was merged. docs/profile.md describes every key.
//
// A profile adds to the one it extends by these rules. Single values and maps: the child's wins, key by key (a server of
// `hub.servers` is one value). Lists: the child's list, even an empty one, replaces the parent's. Three kinds of lists
// differ: in `own`, `remove`, `needs` and those of `keep` the parent's items come first and then the child's, and a child's item
// takes the place of every parent's item with the same path or glob; in `overlays` one with the name of a parent's is merged
// with it, its files taking the place of those with the same path; `config.keepEnv` and the lists of `known` are the union of
// both.
// `version` and `name` are never inherited, and a name may appear only once in a chain.
type Profile struct {
	// Version is the version of the profile format: 1.
	Version int `yaml:"version" each:"file" range:"1,1"`
	// Name is what --profile takes for an embedded profile, and what labels and lock carry: [a-z0-9][a-z0-9._-]*.
	Name string `yaml:"name" each:"file" check:"name"`
	// Description is one sentence for `slimctl profile list`.
	Description string `yaml:"description,omitempty" check:"text"`
	// Extends names the profile that this one adds to: an embedded name, or a file relative to this one (anything with a
	// path separator or ending in .yaml or .yml).
	Extends string `yaml:"extends,omitempty" check:"text"`

	// Base is the image derived from.
	Base Base `yaml:"base"`
	// Platforms are the platforms that the image is built for.
	Platforms []Platform `yaml:"platforms" check:"platform" list:"min,unique"`
	// Payload is the agent-browser runtime.
	Payload Payload `yaml:"payload"`
	// Overlays are the trees of files laid on the base.
	Overlays []Overlay `yaml:"overlays,omitempty" merge:"key"`
	// Own names directories of which only what the profile lays and keeps stays; everything else of the base below goes.
	Own []Own `yaml:"own,omitempty" merge:"key"`
	// Remove takes paths away in the image's merged tree; the base's layers keep their digests.
	Remove []Removal `yaml:"remove,omitempty" merge:"key"`
	// Keep makes the base's layers anew, of what stays: the image gets small, and its layers have digests of their own.
	Keep *Keep `yaml:"keep,omitempty"`
	// Compression is that of the layers that a build makes: "gzip" (when absent) or "zstd".
	Compression string `yaml:"compression,omitempty" check:"compression"`
	// Privileged are absolute paths or globs of the files of the base that may keep setuid, setgid or file capabilities; every
	// other such file goes.
	Privileged []string `yaml:"privileged,omitempty" check:"glob" list:"unique"`
	// Needs are paths that the base must have, besides the programs that slimctl finds in supervisord.conf by itself.
	Needs []Need `yaml:"needs,omitempty" merge:"key"`
	// Config changes the image config; what is not named stays as the base has it, but for variables.
	Config Config `yaml:"config,omitempty"`
	// Hub is what mcp-hub.json and its template hold.
	Hub Hub `yaml:"hub"`
	// Policy changes single keys of the tool's policy file, and of the Chromium policy that goes with it.
	Policy Policy `yaml:"policy,omitempty"`
	// Expect is what may remain in the image.
	Expect Expect `yaml:"expect"`

	// Known is what the base is known to have of what goes; anything else that goes is reported as new upstream.
	Known Known `yaml:"known,omitempty"`

	// Chain lists what was read, the profile itself first, then what it extends: file names, or "embedded:l0.yaml".
	Chain []string `yaml:"-" json:"-" jsonschema:"-"`
}

// Base is the image derived from.
type Base struct {
	// Reference is a registry reference, such as ghcr.io/agent-infra/sandbox:latest, or one of the forms --base takes.
	Reference string `yaml:"reference" check:"reference"`
	// Lines are the base lines that the profile was written for; any other stops the build unless AcceptUnknownLine is set.
	Lines []Line `yaml:"lines" check:"line" list:"min,unique"`
	// AcceptUnknownLine builds on a base of another line, or of none that is known, when it has all that the image needs; the
	// one value is true.
	AcceptUnknownLine bool `yaml:"acceptUnknownLine,omitempty" check:"true"`
}

// Line is the generation of the base's layout: A, B or C.
type Line string

// Platform is linux/amd64 or linux/arm64: what the payload has binaries for.
type Platform string

// Payload is the agent-browser runtime.
type Payload struct {
	// AgentBrowser pins the npm package agent-browser.
	AgentBrowser AgentBrowser `yaml:"agentBrowser"`
}

// AgentBrowser pins the npm package agent-browser.
type AgentBrowser struct {
	// Version is a plain version, such as 0.8.10: no range, no tag.
	Version string `yaml:"version" check:"version"`
	// Integrity is npm's: "sha512-" and base64.
	Integrity string `yaml:"integrity" check:"integrity"`
}

// Overlay is a named tree of files laid on the base.
type Overlay struct {
	// Name is the overlay's name in the recipe and for `extends`: [a-z0-9][a-z0-9._-]*.
	Name string `yaml:"name" check:"name"`
	// Why is the reason for laying the overlay.
	Why string `yaml:"why" check:"text"`
	// When restricts the overlay; without it the overlay is always laid.
	When When `yaml:"when,omitempty"`
	// Files are laid in the order of their paths, not in the order written. Those of an overlay that `extends` names again
	// are merged by path.
	Files []File `yaml:"files" list:"min" merge:"key"`
	// Position is where the overlay was written.
	Position Position `yaml:"-" json:"-" jsonschema:"-"`
}

// File is one item of an overlay: exactly one of Source, Content, Link and Dir is set.
type File struct {
	// Path is the absolute path in the image.
	Path string `yaml:"path" check:"path"`
	// Source is asset:NAME (a file below assets/, embedded) or a path relative to the profile file that wrote it, which
	// Load makes absolute; it stays below that file's directory, also through symbolic links.
	Source string `yaml:"source,omitempty" check:"source" oneof:"content"`
	// Content is the content itself; it may be empty.
	Content *string `yaml:"content,omitempty" check:"any" oneof:"content"`
	// Link makes a symbolic link with this target.
	Link string `yaml:"link,omitempty" check:"target" oneof:"content"`
	// Dir makes an empty directory; the one value is true.
	Dir bool `yaml:"dir,omitempty" check:"true" oneof:"content"`
	// Mode is octal, "0644" when absent ("0755" for a directory).
	Mode Mode `yaml:"mode,omitempty" check:"mode"`
	// Owner is UID:GID in numbers, "0:0" when absent.
	Owner string `yaml:"owner,omitempty" check:"owner"`
	// Why is the reason for this file, where the overlay's own does not cover it.
	Why string `yaml:"why,omitempty" check:"text"`
	// When restricts the file, beside what restricts its overlay.
	When When `yaml:"when,omitempty"`
	// Written is Source relative to the directory of the profile that was loaded: what Marshal shows.
	Written string `yaml:"-" json:"-" jsonschema:"-"`
	// Position is where the file was written.
	Position Position `yaml:"-" json:"-" jsonschema:"-"`
}

// Mode is a file mode, written in octal and quoted: "0644". It is 1 to 07777; 0 is an absent one.
type Mode int64

// Own is a directory of which only what the profile lays and keeps stays. A directory of it that keeps nothing goes whole, and
// is made anew where an overlay lays something in it: root's, mode 0755, unless the overlay says otherwise.
type Own struct {
	// Path is absolute. A base that has no such directory is fine; a symlink in its place goes.
	Path string `yaml:"path" check:"path"`
	// Keep are absolute paths or globs below Path: what of the base stays, with all that lies below it.
	Keep []string `yaml:"keep,omitempty" check:"glob" list:"min,unique"`
	// Why is the reason that nothing else may be there.
	Why string `yaml:"why" check:"text"`
	// Position is where it was written.
	Position Position `yaml:"-" json:"-" jsonschema:"-"`
}

// Need is a file or directory of the base that the image can't work without.
type Need struct {
	// Path is absolute; symlinks are followed.
	Path string `yaml:"path" check:"path"`
	// Why names what needs it.
	Why string `yaml:"why" check:"text"`
	// Position is where it was written.
	Position Position `yaml:"-" json:"-" jsonschema:"-"`
}

// Known is what the base is known to have of what goes.
type Known struct {
	// Files are absolute paths or globs; each covers what lies below it too.
	Files []string `yaml:"files,omitempty" check:"glob" list:"unique" merge:"union"`
	// Env are names of variables.
	Env []string `yaml:"env,omitempty" check:"envName" list:"unique" merge:"union"`
	// MCPServers are names of servers in the base's configuration of its hub.
	MCPServers []string `yaml:"mcpServers,omitempty" check:"text" list:"unique" merge:"union"`
}

// Removal takes a path, or everything that a glob matches, away from the base: exactly one of Path and Glob is set.
type Removal struct {
	// Path is absolute.
	Path string `yaml:"path,omitempty" check:"path" oneof:"what"`
	// Glob is an absolute pattern with *, ?, [..], {a,b} and **, where ** stands alone between two slashes.
	Glob string `yaml:"glob,omitempty" check:"glob" oneof:"what"`
	// Except keeps what it matches from a glob.
	Except []string `yaml:"except,omitempty" check:"glob" list:"min,unique" needs:"glob"`
	// Why is the reason for the removal.
	Why string `yaml:"why" check:"text"`
	// When restricts the removal; without it the removal always holds.
	When When `yaml:"when,omitempty"`
	// IfMissing says what a removal that matches nothing is: "fail" (when absent) or "ignore".
	IfMissing string `yaml:"ifMissing,omitempty" check:"ifMissing"`
	// Position is where the removal was written, for errors and for `slimctl plan`.
	Position Position `yaml:"-" json:"-" jsonschema:"-"`
}

// When restricts an overlay, a file or a removal; all the conditions that are set must hold.
type When struct {
	// Line lists the base lines for which it holds.
	Line []Line `yaml:"line,omitempty" check:"line" list:"min,unique"`
	// Platform lists the platforms for which it holds.
	Platform []Platform `yaml:"platform,omitempty" check:"platform" list:"min,unique"`
	// Exists is an absolute path that the base must have.
	Exists string `yaml:"exists,omitempty" check:"path"`
	// Missing is an absolute path that the base must not have.
	Missing string `yaml:"missing,omitempty" check:"path"`
}

// Config changes the image config; what is not named stays as the base has it, but for variables.
type Config struct {
	// Env sets variables. Every variable of the base that neither Env nor KeepEnv names goes.
	Env map[string]string `yaml:"env,omitempty" keys:"envName" check:"value"`
	// KeepEnv names the variables that stay as the base has them.
	KeepEnv []string `yaml:"keepEnv,omitempty" check:"envName" list:"unique" merge:"union"`
	// Labels sets image labels.
	Labels map[string]string `yaml:"labels,omitempty" keys:"label" check:"value"`
	// WorkingDir is the absolute directory that the image starts in.
	WorkingDir string `yaml:"workingDir,omitempty" check:"dir"`
	// User is a name or number, with :group if wanted.
	User string `yaml:"user,omitempty" check:"user"`
	// ExposedPorts takes the place of the base's ports: "8080" or "8080/tcp", quoted. An empty list exposes none.
	ExposedPorts []string `yaml:"exposedPorts,omitempty" check:"port" list:"unique"`
	// Entrypoint takes the place of the base's.
	Entrypoint []string `yaml:"entrypoint,omitempty" check:"arg"`
	// Cmd takes the place of the base's.
	Cmd []string `yaml:"cmd,omitempty" check:"arg"`
	// Healthcheck takes the place of the base's.
	Healthcheck *Healthcheck `yaml:"healthcheck,omitempty"`
}

// Healthcheck is Docker's HEALTHCHECK; times are Go durations of at least 1ms.
type Healthcheck struct {
	// Test is ["CMD", program, argument...], ["CMD-SHELL", line] or ["NONE"].
	Test []string `yaml:"test" check:"arg" list:"min"`
	// Interval is the time between two tests.
	Interval Duration `yaml:"interval,omitempty" check:"duration"`
	// Timeout is how long one test may take.
	Timeout Duration `yaml:"timeout,omitempty" check:"duration"`
	// StartPeriod is how long failures do not count after the start.
	StartPeriod Duration `yaml:"startPeriod,omitempty" check:"duration"`
	// Retries is how many failures in a row make the container unhealthy: 1 to 1000.
	Retries int `yaml:"retries,omitempty" range:"1,1000"`
}

// Hub is what mcp-hub.json and its template hold.
type Hub struct {
	// Servers holds exactly one server, browser_shell.
	Servers map[string]Server `yaml:"servers" keys:"hubServer" list:"min"`
}

// Server is one stdio MCP server of the hub.
type Server struct {
	// Command is the absolute path of the program.
	Command string `yaml:"command" check:"path"`
	// Args are the program's arguments; no shell reads them.
	Args []string `yaml:"args,omitempty" check:"arg"`
	// Env is added to the environment that the hub gives the program.
	Env map[string]string `yaml:"env,omitempty" keys:"envName" check:"value"`
}

// Policy changes single keys of the tool's policy file, browser-shell.policy.json; a profile that changes more lays its own.
type Policy struct {
	// AllowHosts takes the place of open.allow_hosts: "example.com", "*.example.com" (every host below it) or "*" (any
	// public host).
	AllowHosts []string `yaml:"allowHosts,omitempty" check:"host" list:"min,unique"`
}

// Expect is what may remain: anything else is a finding.
type Expect struct {
	// Programs are the supervisord programs that may remain.
	Programs []string `yaml:"programs" check:"text" list:"unique"`
	// Routes are the nginx routes that may answer.
	Routes []string `yaml:"routes" check:"text" list:"unique"`
	// MCPServers are the servers of mcp-hub.json: browser_shell.
	MCPServers []string `yaml:"mcpServers" check:"hubServer" list:"min,unique"`
	// Tools are the tools that /mcp lists: browser-shell, or sandbox_execute_bash where the policy's tool_name says so.
	Tools []string `yaml:"tools" check:"tool" list:"min,unique"`
	// Listeners are the addresses that may be listened on: "*:8080", "[::1]:8080", "127.0.0.1:5900", "unix:/run/x.sock";
	// none when absent. "*" is every IPv4 address, "[::]" every IPv6 one.
	Listeners []string `yaml:"listeners,omitempty" check:"listener" list:"unique"`
	// Switches are the environment variables that may change what the image does; none when absent.
	Switches []string `yaml:"switches,omitempty" check:"envName" list:"unique"`
}

// Position is a place in a profile file; Line and Column count from 1.
type Position struct {
	File         string
	Line, Column int
}
