package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/slimctl/slimctl/internal/version"
)

// app is what every command shares.
type app struct {
	stdout, stderr io.Writer
	cacheDir       string
}

// run is main without the process around it: it gives the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	a := &app{stdout: stdout, stderr: stderr}
	root := a.root()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	if ctx.Err() != nil {
		err = errInterrupted
	}
	if status := (statusError{}); errors.As(err, &status) {
		return reportStatus(stderr, status)
	}
	return reportError(stderr, err)
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "slimctl",
		Short: "Turn a huge all-in-one sandbox image into a slim, closed, provable one",
		Long: `slimctl derives, from the AIO Sandbox image, one with a single job: an agent drives the
visible Chromium through one MCP tool, browser-shell. A profile says what is laid on the
base, what is removed, and what may remain.

` + exitHelp,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs,
		SilenceUsage:  true,
		Version:       version.Read("").Version,
		RunE:          group,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage(err) })
	root.PersistentFlags().StringVar(&a.cacheDir, "cache-dir", defaultCache(), "directory for payloads, base indexes and stand-ins")
	root.AddGroup(&cobra.Group{ID: "common", Title: "Common commands:"}, &cobra.Group{ID: "look", Title: "Looking at images:"}, &cobra.Group{ID: "parts", Title: "Parts of a build:"})
	for group, commands := range map[string][]*cobra.Command{
		"common": {a.build(), a.plan(), a.lock(), a.profile(), a.run(), a.mcp(), a.compose()},
		"look":   {a.inspect(), a.diff(), a.verify(), a.why()},
		"parts":  {a.llb(), a.dockerfile(), a.payload(), a.standin(), a.version()},
	} {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	return root
}

// group runs a command that has only subcommands: it prints its help, and refuses what it doesn't know.
func group(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	err := fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		err = fmt.Errorf("%w: did you mean %q?", err, near[0])
	}
	return usage(err)
}

// noArgs and exactArgs are cobra's, as usage errors.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage(fmt.Errorf("%s takes no arguments, and got %q", cmd.CommandPath(), args))
	}
	return nil
}

func oneArg(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usage(fmt.Errorf("%s takes one argument, %s, and got %d", cmd.CommandPath(), what, len(args)))
		}
		return nil
	}
}

func defaultCache() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "slimctl")
}
