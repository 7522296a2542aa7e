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
	output  string // the directory for screenshots
}

func (i inject) OnBefore(_ context.Context, c Call) (Call, Decision) {
	if c.Command.Name == "" {
		return c, Decision{}
	}
	path := ""
	if c.Command.Name == "screenshot" {
		c.shot = c.Command.Shot
		if c.shot == "" {
			c.shot = "screenshot-" + c.Received.UTC().Format("20060102T150405.000000000") + ".png"
		}
		path = filepath.Join(i.output, shotTmp(c))
		if ext := filepath.Ext(c.shot); c.Generation == policy.Native && (ext == ".jpg" || ext == ".jpeg") {
			c.Command.Options = append(c.Command.Options, "--screenshot-format", "jpeg")
		}
	}
	c.Run = append(forced(daemonName(c.SessionID), i.cdpPort, c.Generation), c.Command.Argv(path)...)
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

// shotName is where a screenshot is kept, below the output directory: each
// session has its own names. shotTmp is where agent-browser writes it first.
func shotName(c Call) string { return filepath.Join(daemonName(c.SessionID), c.shot) }
func shotTmp(c Call) string  { return filepath.Join(daemonName(c.SessionID), "."+c.shot) }
