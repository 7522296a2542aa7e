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
// A profile is merged with the one it extends by these rules. Single values and maps: the child's value wins, key by
// key. Lists: the child's list, even an empty one, replaces the parent's.
// Three kinds of lists differ. In `own`, `remove`, `needs` and the lists of `keep`, the parent's items come first, then
// the child's; a child's item replaces every parent's item with the same path or glob. In `overlays`, an item is merged
// with the parent's of the same name, and its files replace those with the same path. `config.keepEnv` and the lists of
// `known` are the union of both. `version` and `name` are never inherited, and a name may appear only once in a chain.
type Profile struct {
	// Version is the version of the profile format: 1.
	Version int `yaml:"version" each:"file" range:"1,1"`
	// Name is the profile's name in --profile (if embedded), labels and locks: [a-z0-9][a-z0-9._-]*.
	Name string `yaml:"name" each:"file" check:"name"`
	// Description is one sentence for `slimctl profile list`.
	Description string `yaml:"description,omitempty" check:"text"`
	// Extends names the profile that this one extends: an embedded name, or a file relative to this one (with a path
	// separator, or ending in .yaml or .yml).
	Extends string `yaml:"extends,omitempty" check:"text"`

	// Base is the image to derive from.
	Base Base `yaml:"base"`
	// Platforms are the platforms to build for.
	Platforms []Platform `yaml:"platforms" check:"platform" list:"min,unique"`
	// Payload is the agent-browser runtime.
	Payload Payload `yaml:"payload"`
	// Overlays are trees of files to add to the base.
	Overlays []Overlay `yaml:"overlays,omitempty" merge:"key"`
	// Own names directories that keep only what the profile writes there or keeps. Everything else in them is removed.
	Own []Own `yaml:"own,omitempty" merge:"key"`
	// Remove removes paths from the image's merged tree. The base's layers keep their digests.
	Remove []Removal `yaml:"remove,omitempty" merge:"key"`
	// Keep rebuilds the base's layers with only what stays. The image gets small, and its layers get new digests.
	Keep *Keep `yaml:"keep,omitempty"`
	// Privileged are absolute paths or globs of the base's files that may keep setuid, setgid or file capabilities.
	// Other such files are removed.
	Privileged []string `yaml:"privileged,omitempty" check:"glob" list:"unique"`
	// Needs are paths that the base must have. slimctl finds the programs in supervisord.conf by itself.
	Needs []Need `yaml:"needs,omitempty" merge:"key"`
	// Config changes the image config. Other settings stay as in the base, except variables.
	Config Config `yaml:"config,omitempty"`
	// Policy changes single keys of the tool's policy file, and of the Chromium policy made from it.
	Policy Policy `yaml:"policy,omitempty"`
	// Expect lists what may remain in the image.
	Expect Expect `yaml:"expect"`

	// Known lists what the base is known to have and is removed. Anything else that is removed is reported as new
	// upstream.
	Known Known `yaml:"known,omitempty"`

	// Chain lists the files that were read: the profile, then those it extends, as file names or "embedded:l0.yaml".
	Chain []string `yaml:"-" json:"-" jsonschema:"-"`
}

// Base is the image to derive from.
type Base struct {
	// Reference is a registry reference, such as ghcr.io/agent-infra/sandbox:latest, or another form that --base accepts.
	Reference string `yaml:"reference" check:"reference"`
	// Lines are the lines of the base that the profile was written for. The build of another one says so.
	Lines []Line `yaml:"lines" check:"line" list:"min,unique"`
	// AcceptUnknownLine is accepted for older profiles and has no effect: every line is accepted.
	AcceptUnknownLine bool `yaml:"acceptUnknownLine,omitempty" check:"true"`
}

// Line is the generation of the base's layout: A, B or C.
type Line string

// Platform is linux/amd64 or linux/arm64, for which the payload has binaries.
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

// Overlay is a named tree of files to add to the base.
type Overlay struct {
	// Name is the overlay's name in the recipe and for `extends`: [a-z0-9][a-z0-9._-]*.
	Name string `yaml:"name" check:"name"`
	// Why is the reason for the overlay.
	Why string `yaml:"why" check:"text"`
	// When restricts the overlay; otherwise it always applies.
	When When `yaml:"when,omitempty"`
	// Files are sorted by path, not in the order written. `extends` merges the files of overlays with equal names by
	// path.
	Files []File `yaml:"files" list:"min" merge:"key"`
	// Position is the place in the file.
	Position Position `yaml:"-" json:"-" jsonschema:"-"`
}

// File is one item of an overlay. Exactly one of Source, Content, Link and Dir is set.
type File struct {
	// Path is the absolute path in the image.
	Path string `yaml:"path" check:"path"`
	// Source is asset:NAME, for an embedded file below assets/, or a path relative to the profile file. Load makes it
	// absolute. The file must lie below that profile's directory, also after following symbolic links.
	Source string `yaml:"source,omitempty" check:"source" oneof:"content"`
	// Content is the file's content, which may be empty.
	Content *string `yaml:"content,omitempty" check:"any" oneof:"content"`
	// Link makes a symbolic link with this target.
	Link string `yaml:"link,omitempty" check:"target" oneof:"content"`
	// Dir makes an empty directory. The only value is true.
	Dir bool `yaml:"dir,omitempty" check:"true" oneof:"content"`
	// Mode is octal, by default "0644", or "0755" for a directory.
	Mode Mode `yaml:"mode,omitempty" check:"mode"`
	// Owner is UID:GID in numbers, by default "0:0".
	Owner string `yaml:"owner,omitempty" check:"owner"`
	// Why is the reason for this file, where the overlay's doesn't cover it.
	Why string `yaml:"why,omitempty" check:"text"`
	// When restricts the file, in addition to the overlay's conditions.
	When When `yaml:"when,omitempty"`
	// Written is Source relative to the directory of the loaded profile, as Marshal shows it.
	Written string `yaml:"-" json:"-" jsonschema:"-"`
	// Position is the place in the file.
	Position Position `yaml:"-" json:"-" jsonschema:"-"`
}

// Mode is a file mode, written in octal and quoted: "0644". It is 1 to 07777; 0 is an absent one.
type Mode int64

// Own is a directory that keeps only what the profile writes there or keeps. A directory below it without kept files is
// removed whole; if an overlay writes below, it is created again, owned by root with mode 0755 unless the overlay sets
// these.
type Own struct {
	// Path is absolute. The base need not have it; a symlink in its place is removed.
	Path string `yaml:"path" check:"path"`
	// Keep are absolute paths or globs below Path that stay, with everything below them.
	Keep []string `yaml:"keep,omitempty" check:"glob" list:"min,unique"`
	// Why is the reason that nothing else may be there.
	Why string `yaml:"why" check:"text"`
	// Position is the place in the file.
	Position Position `yaml:"-" json:"-" jsonschema:"-"`
}

// Need is a file or directory that the base must have.
type Need struct {
	// Path is absolute; symlinks are followed.
	Path string `yaml:"path" check:"path"`
	// Why is the reason: what needs the path.
	Why string `yaml:"why" check:"text"`
	// Position is the place in the file.
	Position Position `yaml:"-" json:"-" jsonschema:"-"`
}

// Known lists what the base is known to have and is removed.
type Known struct {
	// Files are absolute paths or globs; each covers everything below it, too.
	Files []string `yaml:"files,omitempty" check:"glob" list:"unique" merge:"union"`
	// Env are names of variables.
	Env []string `yaml:"env,omitempty" check:"envName" list:"unique" merge:"union"`
	// MCPServers are names of servers in the base's hub configuration.
	MCPServers []string `yaml:"mcpServers,omitempty" check:"text" list:"unique" merge:"union"`
}

// Removal removes a path, or everything that a glob matches. Exactly one of Path and Glob is set.
type Removal struct {
	// Path is absolute.
	Path string `yaml:"path,omitempty" check:"path" oneof:"what"`
	// Glob is an absolute pattern with *, ?, [..], {a,b} and **, where ** stands alone between two slashes.
	Glob string `yaml:"glob,omitempty" check:"glob" oneof:"what"`
	// Except are patterns of paths that the glob spares.
	Except []string `yaml:"except,omitempty" check:"glob" list:"min,unique" needs:"glob"`
	// Why is the reason for the removal.
	Why string `yaml:"why" check:"text"`
	// When restricts the removal; otherwise it always applies.
	When When `yaml:"when,omitempty"`
	// IfMissing is "fail" (the default) or "ignore": whether a removal that matches nothing is an error.
	IfMissing string `yaml:"ifMissing,omitempty" check:"ifMissing"`
	// Position is the place in the file, for errors and for `slimctl plan`.
	Position Position `yaml:"-" json:"-" jsonschema:"-"`
}

// When restricts an overlay, a file or a removal. All conditions that are set must hold.
type When struct {
	// Line lists the lines of the base for which it holds.
	Line []Line `yaml:"line,omitempty" check:"line" list:"min,unique"`
	// Platform lists the platforms for which it holds.
	Platform []Platform `yaml:"platform,omitempty" check:"platform" list:"min,unique"`
	// Exists is an absolute path that the base must have.
	Exists string `yaml:"exists,omitempty" check:"path"`
	// Missing is an absolute path that the base must not have.
	Missing string `yaml:"missing,omitempty" check:"path"`
}

// Config changes the image config. Other settings stay as in the base, except variables.
type Config struct {
	// Env sets variables. A variable of the base is removed unless Env or KeepEnv names it.
	Env map[string]string `yaml:"env,omitempty" keys:"setEnv" check:"value"`
	// KeepEnv names variables that stay as in the base.
	KeepEnv []string `yaml:"keepEnv,omitempty" check:"setEnv" list:"unique" merge:"union"`
	// Labels sets image labels.
	Labels map[string]string `yaml:"labels,omitempty" keys:"label" check:"value"`
	// WorkingDir is the absolute directory in which the image starts.
	WorkingDir string `yaml:"workingDir,omitempty" check:"dir"`
	// User is a name or number, optionally followed by :GROUP.
	User string `yaml:"user,omitempty" check:"user"`
	// ExposedPorts replaces the base's ports: "8080" or "8080/tcp", in quotes. An empty list exposes none.
	ExposedPorts []string `yaml:"exposedPorts,omitempty" check:"port" list:"unique"`
	// Entrypoint replaces the base's.
	Entrypoint []string `yaml:"entrypoint,omitempty" check:"arg"`
	// Cmd replaces the base's.
	Cmd []string `yaml:"cmd,omitempty" check:"arg"`
	// Healthcheck replaces the base's.
	Healthcheck *Healthcheck `yaml:"healthcheck,omitempty"`
}

// Healthcheck is Docker's HEALTHCHECK. Times are Go durations of at least 1ms.
type Healthcheck struct {
	// Test is ["CMD", program, argument...], ["CMD-SHELL", line] or ["NONE"].
	Test []string `yaml:"test" check:"arg" list:"min"`
	// Interval is the time between two tests.
	Interval Duration `yaml:"interval,omitempty" check:"duration"`
	// Timeout is the longest duration of one test.
	Timeout Duration `yaml:"timeout,omitempty" check:"duration"`
	// StartPeriod is the time after the start in which failures don't count.
	StartPeriod Duration `yaml:"startPeriod,omitempty" check:"duration"`
	// Retries is the number of consecutive failures after which the container is unhealthy: 1 to 1000.
	Retries int `yaml:"retries,omitempty" range:"1,1000"`
}

// Policy changes single keys of the tool's policy file, browser-shell.policy.json. For more changes, write the file in
// an overlay.
type Policy struct {
	// AllowHosts replaces open.allow_hosts: "example.com", "*.example.com" (every host below it) or "*" (any public host).
	AllowHosts []string `yaml:"allowHosts,omitempty" check:"host" list:"min,unique"`
}

// Expect lists what may remain in the image. Anything else is a finding.
type Expect struct {
	// Programs are the supervisord programs that may remain.
	Programs []string `yaml:"programs" check:"text" list:"unique"`
	// Routes are the nginx routes that may answer.
	Routes []string `yaml:"routes" check:"text" list:"unique"`
	// MCPServers are the servers of mcp-hub.json: browser_shell.
	MCPServers []string `yaml:"mcpServers" check:"mcpServer" list:"min,unique"`
	// Tools are the tools that /mcp lists: browser-shell, or sandbox_execute_bash if the policy's tool_name is that.
	Tools []string `yaml:"tools" check:"tool" list:"min,unique"`
	// Listeners are the allowed listening addresses: "*:8080", "[::1]:8080", "127.0.0.1:5900", "unix:/run/x.sock". By
	// default there are none. "*" is every IPv4 address, "[::]" every IPv6 one.
	Listeners []string `yaml:"listeners,omitempty" check:"listener" list:"unique"`
	// Upstreams are the addresses that nginx's routes may lead to: "unix:/run/x.sock", "127.0.0.1:3000". The browser's
	// debugging port, the egress proxy, the desktop and the management sockets can't be among them.
	Upstreams []string `yaml:"upstreams,omitempty" check:"upstream" list:"unique"`
	// Switches are the environment variables that may change the image's behaviour. By default there are none.
	Switches []string `yaml:"switches,omitempty" check:"envName" list:"unique"`
}

// Position is a place in a profile file; Line and Column count from 1.
type Position struct {
	File         string
	Line, Column int
}
