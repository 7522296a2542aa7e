package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"github.com/slimctl/slimctl/inspect/sandbox"
	"github.com/slimctl/slimctl/inspect/sandbox/bridge"
	"github.com/slimctl/slimctl/internal/version"
	"github.com/slimctl/slimctl/slim"
)

// keyVariable is what the image takes its API key from.
const keyVariable = "SANDBOX_API_KEY"

// stopGrace is short since clients kill a server two to four seconds after its end of input, and the evidence has to be there
// by then. All that is to stay of a container is already on the disk.
const stopGrace = time.Second

type mcpFlags struct {
	runFlags
	idle time.Duration
}

func (a *app) mcp() *cobra.Command {
	f := &mcpFlags{runFlags: runFlags{settings: sandbox.Default()}}
	s := &f.settings
	s.Timeout = 0
	cmd := &cobra.Command{
		Use:   "mcp IMAGE",
		Short: "Serve the tool of an image to an MCP client, on stdio",
		Long: `Mcp is what the configuration of an MCP client starts: it answers MCP on
standard input and output. The first call of the tool boots IMAGE in a closed
container, as slimctl run does, and the end of input ends it. No port is opened
and no key is needed.

Evidence, screenshots and audit are in --artifacts, by default
~/.local/state/slimctl/mcp, in a directory for each container; screenshots come
there when the container ends. A container without calls ends after
--idle-timeout, and the next call boots another.`,
		Example: `  # In the configuration of Claude, Cursor or VS Code, as "browser":
  #   {"command": "slimctl", "args": ["mcp", "ghcr.io/you/browser-shell:l0"]}
  slimctl mcp ghcr.io/you/browser-shell:l0
  slimctl mcp oci:out --memory 2g --artifacts ~/browser`,
		Args: oneArg("the image"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.serveMCP(cmd.Context(), cmd.InOrStdin(), args[0], f)
		},
	}
	flags := cmd.Flags()
	f.addContainer(cmd)
	flags.Lookup("network").Usage = "egress or none (default: egress)"
	flags.StringVar(&s.Output, "artifacts", "", "`DIR` for evidence, screenshots and audit")
	flags.DurationVar(&s.Timeout, "timeout", 0, "end a container after this time; 0: never")
	flags.DurationVar(&f.idle, "idle-timeout", 15*time.Minute, "end a container this long after its last call; 0: never")
	return cmd
}

// serveMCP answers until the end of input. Standard output is the client's; words for a person go to standard error.
func (a *app) serveMCP(ctx context.Context, in io.Reader, reference string, f *mcpFlags) error {
	if err := f.parse(); err != nil {
		return usage(err)
	}
	if _, ok := f.settings.Env[keyVariable]; ok {
		return usage(fmt.Errorf("--env %s: slimctl mcp makes a key of its own for each container; leave it out", keyVariable))
	}
	if f.idle < 0 {
		return usage(fmt.Errorf("--idle-timeout %s: want 0 or more", f.idle))
	}
	if n := f.settings.Network; n != "" && n != sandbox.NetworkEgress && n != sandbox.NetworkNone {
		return usage(fmt.Errorf("--network %q: slimctl mcp reaches its tool with egress or none only", n))
	}
	if f.settings.Output == "" {
		dir, err := stateDir()
		if err != nil {
			return usage(fmt.Errorf("no place for evidence: %w; name one with --artifacts DIR", err))
		}
		f.settings.Output = filepath.Join(dir, "mcp")
	}
	// An answer names screenshots by this path, and the person who reads it may not know where the client started slimctl.
	dir, err := filepath.Abs(f.settings.Output)
	if err != nil {
		return err
	}
	f.settings.Output = dir
	openImage := func() (sandbox.Image, error) {
		access, err := a.access(f.registry, "")
		if err != nil {
			return sandbox.Image{}, err
		}
		src, err := slim.Open(ctx, access, reference)
		if err != nil {
			return sandbox.Image{}, err
		}
		img, err := sandbox.From(src)
		if err != nil {
			return img, err
		}
		if ours, err := img.Ours(); err != nil || !ours {
			return img, cmp.Or(err, fmt.Errorf("%s is not an image that slimctl built, so it has no tool; make one with `slimctl build`", reference))
		}
		return img, nil
	}
	var mu sync.Mutex
	var opened *sandbox.Image
	open := func() (sandbox.Image, error) { // an error is tried again: a laptop may come online later
		mu.Lock()
		defer mu.Unlock()
		if opened != nil {
			return *opened, nil
		}
		img, err := openImage()
		if err == nil {
			opened = &img
		}
		return img, err
	}
	return bridge.New(bridge.Config{
		Describe: func(ctx context.Context) (*mcp.Tool, error) {
			img, err := open()
			if err != nil {
				return nil, err
			}
			return bridge.Describe(ctx, img, a.cacheDir)
		},
		Boot: func(ctx context.Context, key string) (bridge.Container, error) {
			img, err := open()
			if err != nil {
				return nil, err
			}
			settings := f.settings
			settings.Env = map[string]string{keyVariable: key}
			for k, v := range f.settings.Env {
				settings.Env[k] = v
			}
			runner := f.runner(a)
			runner.StopGrace = stopGrace
			sb, err := runner.Start(ctx, img, settings)
			if err != nil {
				return nil, err
			}
			return mcpContainer{sb, filepath.Join(settings.Output, sb.ID)}, nil
		},
		Idle: f.idle, Version: version.Read("").Version,
		Say: func(format string, args ...any) {
			fmt.Fprintln(a.stderr, "slimctl: "+printable(strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ")))
		},
	}).Serve(ctx, in, a.stdout)
}

// mcpContainer is a bridge.Container.
type mcpContainer struct {
	*sandbox.Sandbox
	dir string
}

func (c mcpContainer) Directory() string { return c.dir }

// stateDir is where a user's programs keep what isn't configuration and can't be made again (XDG Base Directory).
func stateDir() (string, error) {
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "slimctl"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	if home == "/" || home == "" {
		return "", errors.New("HOME is not set")
	}
	if runtime.GOOS == "darwin" {
		return filepath.Join(home, "Library", "Application Support", "slimctl"), nil
	}
	return filepath.Join(home, ".local", "state", "slimctl"), nil
}
