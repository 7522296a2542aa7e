package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/slimctl/slimctl/server/policy"
	"github.com/slimctl/slimctl/server/process"
)

// cli is the agent-browser program: its path, version and command line.
type cli struct {
	conf policy.AgentBrowser
	st   *state

	asking     *semaphore.Weighted
	generation policy.Generation // empty until the version is known
}

// maxRaw limits the output of agent-browser, in bytes; a program that prints more is killed.
const maxRaw = 8 << 20

// versionTime limits the run of `agent-browser --version`.
const versionTime = 10 * time.Second

// readGeneration returns the program's generation. It runs the program once, at the first call.
func (c *cli) readGeneration(ctx context.Context) (policy.Generation, error) {
	if err := c.asking.Acquire(ctx, 1); err != nil {
		return "", errors.New("agent-browser --version has not answered yet; send the call again")
	}
	defer c.asking.Release(1)
	if c.generation != "" {
		return c.generation, nil
	}
	ctx, cancel := context.WithTimeout(ctx, versionTime)
	defer cancel()
	res, err := c.runLine(ctx, "", []string{"--version"}, false)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("agent-browser is not at %s: install it there or set agent_browser.path in the policy file", c.conf.Path)
	case err != nil:
		return "", err
	case res.Killed || res.ExitCode != 0:
		return "", fmt.Errorf("agent-browser --version ended with %d; run it by hand to see why", res.ExitCode)
	}
	v, err := policy.ParseVersion(string(res.Stdout))
	if err != nil {
		return "", err
	}
	c.generation = v.Generation()
	return c.generation, nil
}

// runLine runs one command line of a session. daemon states that it may start the session's daemon.
func (c *cli) runLine(ctx context.Context, session string, argv []string, daemon bool) (process.Result, error) {
	out, err := process.Run(ctx, process.Command{
		Path: c.conf.Path, Argv: argv, Env: c.st.buildEnv(c.conf.SearchPath, session), Dir: c.st.workDir(), MaxOutput: maxRaw, Daemon: daemon,
	})
	if err != nil {
		return out, fmt.Errorf("agent-browser cannot be started: %w", err)
	}
	return out, nil
}
