package server

import (
	"context"
	"path/filepath"
	"strconv"

	"github.com/slimctl/slimctl/server/policy"
)

// inject builds the command line. The forced options come first; the grammar admits no option that could override them.
type inject struct {
	pass
	cdpPort int
	output  string // the directory for artifacts
}

func (i inject) OnBefore(_ context.Context, c Call) (Call, Decision) {
	if c.Command.Name == "" {
		return c, Decision{}
	}
	path := ""
	if ending := artifactEnding[c.Command.Name]; ending != "" {
		c.file = c.Command.File
		if c.file == "" {
			c.file = c.Command.Name + "-" + c.Received.UTC().Format("20060102T150405.000000000") + ending
		}
		path = filepath.Join(i.output, fileTmp(c))
		if ext := filepath.Ext(c.file); c.Generation == policy.Native && (ext == ".jpg" || ext == ".jpeg") {
			c.Command.Options = append(c.Command.Options, "--screenshot-format", "jpeg")
		}
	}
	c.Run = append(forcedOptions(daemonName(c.key()), i.cdpPort, c.Generation), c.Command.Argv(path)...)
	return c, Decision{}
}

// forcedOptions returns the options of every run.
func forcedOptions(name string, cdpPort int, gen policy.Generation) []string {
	argv := []string{"--session", name, "--cdp", strconv.Itoa(cdpPort), "--json"}
	if gen == policy.Native {
		argv = append(argv, "--pin-tab")
	}
	return argv
}

// artifactEnding maps the subcommands that write a file to the ending of the default file name.
var artifactEnding = map[string]string{"screenshot": ".png", "pdf": ".pdf"}

// fileName returns the path of an artifact below the output directory; each session has its own directory. fileTmp
// returns the path to which agent-browser writes it first.
func fileName(c Call) string { return filepath.Join(daemonName(c.key()), c.file) }
func fileTmp(c Call) string  { return filepath.Join(daemonName(c.key()), "."+c.file) }
