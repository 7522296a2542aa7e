package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"sync"
	"time"

	"github.com/slimctl/slimctl/server/policy"
)

// cli is the agent-browser program: where it is, which version, how it is called.
type cli struct {
	conf policy.AgentBrowser
	st   *state

	mu      sync.Mutex
	version *policy.Version // nil until a call asked successfully
}

// versionTime bounds `agent-browser --version`.
const versionTime = 10 * time.Second

// ask gives the program's version; it is asked for once, at the first call.
func (c *cli) ask(ctx context.Context) (policy.Version, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.version != nil {
		return *c.version, nil
	}
	ctx, cancel := context.WithTimeout(ctx, versionTime)
	defer cancel()
	res, err := run(ctx, c.conf.Path, []string{"--version"}, c.st.env(c.conf.SearchPath, ""), c.st.workDir())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return policy.Version{}, fmt.Errorf("agent-browser is not at %s: install it there or set agent_browser.path in the policy file", c.conf.Path)
	case err != nil:
		return policy.Version{}, fmt.Errorf("agent-browser cannot be started: %w", err)
	case res.killed || res.exitCode != 0:
		return policy.Version{}, fmt.Errorf("agent-browser --version ended with %d; see that it runs by hand", res.exitCode)
	}
	v, err := policy.ParseVersion(string(res.stdout))
	if err != nil {
		return policy.Version{}, err
	}
	c.version = &v
	return v, nil
}

// argv is the whole command line after the program's name. The forced options
// come first; the grammar let no other option through that could undo them.
func (c *cli) argv(v policy.Version, session string, cmd policy.Command, shot string) []string {
	argv := []string{"--session", session, "--cdp", strconv.Itoa(c.conf.CDPPort), "--json"}
	if v.PinsTabs() {
		argv = append(argv, "--pin-tab")
	}
	return append(argv, cmd.Argv(shot)...)
}

// call runs one command.
func (c *cli) call(ctx context.Context, v policy.Version, session string, cmd policy.Command, shot string) (runResult, error) {
	return run(ctx, c.conf.Path, c.argv(v, session, cmd, shot), c.st.env(c.conf.SearchPath, session), c.st.workDir())
}
