package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/slimctl/slimctl/server/policy"
	"github.com/slimctl/slimctl/server/process"
)

// cli is the agent-browser program: where it is, which version, how it is called.
type cli struct {
	conf policy.AgentBrowser
	st   *state

	asking     turn
	generation policy.Generation // empty until a call asked successfully
}

// maxRaw bounds what is read from agent-browser, in bytes; a program that
// prints more is ended.
const maxRaw = 8 << 20

// versionTime bounds `agent-browser --version`.
const versionTime = 10 * time.Second

// ask gives the program's generation; it is asked for once, at the first call.
func (c *cli) ask(ctx context.Context) (policy.Generation, error) {
	if err := c.asking.take(ctx); err != nil {
		return "", errors.New("agent-browser --version takes its time; send the call again")
	}
	defer c.asking.give()
	if c.generation != "" {
		return c.generation, nil
	}
	ctx, cancel := context.WithTimeout(ctx, versionTime)
	defer cancel()
	res, err := c.run(ctx, "", []string{"--version"}, false)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("agent-browser is not at %s: install it there or set agent_browser.path in the policy file", c.conf.Path)
	case err != nil:
		return "", err
	case res.Killed || res.ExitCode != 0:
		return "", fmt.Errorf("agent-browser --version ended with %d; see that it runs by hand", res.ExitCode)
	}
	v, err := policy.ParseVersion(string(res.Stdout))
	if err != nil {
		return "", err
	}
	c.generation = v.Generation()
	return c.generation, nil
}

// run runs one command line of a session. daemon tells that it may start the
// session's daemon.
func (c *cli) run(ctx context.Context, session string, argv []string, daemon bool) (process.Result, error) {
	out, err := process.Run(ctx, process.Command{
		Path: c.conf.Path, Argv: argv, Env: c.st.env(c.conf.SearchPath, session), Dir: c.st.workDir(), MaxOutput: maxRaw, Daemon: daemon,
	})
	if err != nil {
		return out, fmt.Errorf("agent-browser cannot be started: %w", err)
	}
	return out, nil
}
