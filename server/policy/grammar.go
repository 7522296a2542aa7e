package policy

import "slices"

// This file is the whole grammar: nothing else can be run.
//
// A row reads: subcommand, its positionals, its options. A slot (slot.go) checks each positional and option value. An
// option that is not in the row is refused at any position, text positions included, because agent-browser reads
// options anywhere in argv and has no `--`.

// command is one row.
type command struct {
	name string
	off  bool // known, but not on the default allowlist
	read bool // off, and in the group Read

	args     []slot // positionals, in order
	optional int    // how many of args, from the end, may be missing
	repeat   int    // how many more times the last slot may follow

	options []option
	// oneForm requires exactly one of the positional and the options that are not modifiers.
	oneForm bool
	// denied maps options with a rule of their own.
	denied map[string]denial
}

// option is one flag that a row admits.
type option struct {
	long, short string
	value       slot       // nil: takes no value
	only        Generation // empty: both
	modifier    bool       // see command.oneForm
	withArgs    bool       // only together with a positional
}

type denial struct {
	code Code
	rule string
	why  string
}

var table = []command{
	// On by default.
	{name: "open", args: []slot{webURL}},
	{name: "snapshot", options: []option{
		{long: "--interactive", short: "-i"},
		{long: "--compact", short: "-c"},
		{long: "--depth", short: "-d", value: depth},
		{long: "--selector", short: "-s", value: selector},
		{long: "--urls", short: "-u", only: Native},
		{long: "--delta", only: Native},
		{long: "--full", only: Native},
	}},
	{name: "click", args: []slot{selector}},
	{name: "fill", args: []slot{selector, text}},
	{name: "type", args: []slot{selector, text}},
	{name: "press", args: []slot{key}},
	{
		name: "wait", args: []slot{waitTarget}, optional: 1, oneForm: true,
		options: []option{
			{long: "--text", value: filledText},
			{long: "--url", value: pattern},
			{long: "--load", value: oneOf("load", "domcontentloaded", "networkidle")},
			{long: "--timeout", value: millis, only: Native, modifier: true},
			{long: "--state", value: oneOf("visible", "hidden", "attached", "detached"), only: Native, modifier: true, withArgs: true},
		},
		denied: map[string]denial{
			"--fn":       {PolicyBlocked, "wait.script", "a wait for a script runs code in the page; wait for a selector, --text, --url, --load or milliseconds"},
			"-f":         {PolicyBlocked, "wait.script", "a wait for a script runs code in the page; wait for a selector, --text, --url, --load or milliseconds"},
			"--download": {SandboxViolation, "wait.download", "a wait for a download writes a file; downloads are not available"},
			"-d":         {SandboxViolation, "wait.download", "a wait for a download writes a file; downloads are not available"},
		},
	},
	// A selector, a bare file name, or both; browser-shell chooses the path.
	{name: "screenshot", args: []slot{shotTarget, shotTarget}, optional: 2, options: []option{
		{long: "--full", short: "-f"},
		{long: "--annotate", only: Native},
	}},
	{name: "close"},
	{name: "dblclick", args: []slot{selector}},
	{name: "hover", args: []slot{selector}},
	{name: "focus", args: []slot{selector}},
	{name: "check", args: []slot{selector}},
	{name: "uncheck", args: []slot{selector}},
	{name: "select", args: []slot{selector, text}, repeat: 15},

	// Read-only or harmless; off until the policy file names them.
	{name: "get", off: true, read: true, args: []slot{oneOf("url", "title")}},
	{name: "get", off: true, read: true, args: []slot{oneOf("text", "html", "value", "count", "box"), selector}},
	{name: "get", off: true, read: true, args: []slot{oneOf("attr"), selector, name}},
	{name: "is", off: true, read: true, args: []slot{oneOf("visible", "enabled", "checked"), selector}},
	{name: "scroll", off: true, read: true, args: []slot{oneOf("up", "down", "left", "right"), pixels}, optional: 1},
	{name: "back", off: true, read: true},
	{name: "forward", off: true, read: true},
	{name: "reload", off: true, read: true},
	// A bare file name; browser-shell chooses the path.
	{name: "pdf", off: true, args: []slot{pdfTarget}, optional: 1},
}

// aliases maps agent-browser's other names for allowed subcommands to the right name.
var aliases = map[string]string{
	"goto": "open", "navigate": "open", "key": "press", "quit": "close", "exit": "close",
}

// nearMisses maps frequent mistakes of agents, made of two words, to the right form.
var nearMisses = map[string]string{
	"get-title": `["get","title"]`, "title": `["get","title"]`,
	"get-url": `["get","url"]`, "url": `["get","url"]`,
	"get-text": `["get","text",SELECTOR]`, "get-html": `["get","html",SELECTOR]`, "get-value": `["get","value",SELECTOR]`,
}

// Read is the word in a policy's commands for a group of subcommands: those that are off by default and read the page
// or move in it.
const Read = "+read"

// expandRead replaces Read by its subcommands. If the list has nothing else, they are added to the default ones.
func expandRead(commands []string) []string {
	i := slices.Index(commands, Read)
	if i < 0 {
		return commands
	}
	rest := slices.Delete(slices.Clone(commands), i, i+1)
	if len(rest) == 0 {
		rest = defaultCommands()
	}
	for _, row := range table {
		if row.read && !slices.Contains(rest, row.name) {
			rest = append(rest, row.name)
		}
	}
	return rest
}

// Canonical returns argv with the right name of its subcommand, so that logs contain one name only.
func Canonical(argv []string) []string {
	if len(argv) > 0 && aliases[argv[0]] != "" {
		return append([]string{aliases[argv[0]]}, argv[1:]...)
	}
	return argv
}

// forced lists the options that browser-shell sets itself on every call.
var forced = map[string]bool{
	"--session": true, "--cdp": true, "--json": true, "--pin-tab": true, "--no-pin-tab": true,
}

// Limits on argv.
const (
	maxArgs     = 64
	maxArgBytes = 64 << 10
	maxArgvSize = 256 << 10
)
