package server

import (
	"context"
	"path/filepath"
	"strconv"

	"github.com/slimctl/slimctl/server/policy"
)

// inject makes the command line. The forced options come first; the grammar
// let no other option through that could undo them.
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
	c.Run = append(forced(daemonName(c.key()), i.cdpPort, c.Generation), c.Command.Argv(path)...)
	return c, Decision{}
}

// forced are the options of every run.
func forced(name string, cdpPort int, gen policy.Generation) []string {
	argv := []string{"--session", name, "--cdp", strconv.Itoa(cdpPort), "--json"}
	if gen == policy.Native {
		argv = append(argv, "--pin-tab")
	}
	return argv
}

// artifactEnding has the subcommands that write a file, with the ending of the
// name that it has unless the caller chose one.
var artifactEnding = map[string]string{"screenshot": ".png", "pdf": ".pdf"}

// fileName is where an artifact is kept, below the output directory: each
// session has its own names. fileTmp is where agent-browser writes it first.
func fileName(c Call) string { return filepath.Join(daemonName(c.key()), c.file) }
func fileTmp(c Call) string  { return filepath.Join(daemonName(c.key()), "."+c.file) }
