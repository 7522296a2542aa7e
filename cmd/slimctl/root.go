package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/slimctl/slimctl/internal/progress"
	"github.com/slimctl/slimctl/internal/version"
)

// app is what every command shares.
type app struct {
	// stdout takes results: its first byte ends every progress that is shown. console is what it writes to.
	stdout, console, stderr io.Writer
	cacheDir                string
	temporary               string // the cache, where it goes with this run
	shown                   []progress.Reporter
}

// run is main without the process around it: it gives the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	a := &app{console: stdout, stderr: stderr}
	a.stdout = resultWriter{a}
	defer func() { _ = os.RemoveAll(a.temporary) }()
	root := a.root()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if ended := a.endProgress(); err == nil {
		err = ended
	}
	if err == nil {
		return exitOK
	}
	if ctx.Err() != nil && !errors.Is(err, statusError{code: exitInterrupted}) {
		err = errInterrupted
	}
	if status := (statusError{}); errors.As(err, &status) {
		return reportStatus(stderr, status)
	}
	return reportError(stderr, cmd.CommandPath(), err)
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "slimctl",
		Short: "Turn an all-in-one sandbox image into a slim, closed one",
		Long: `slimctl derives, from the AIO Sandbox image, one with a single job: an agent drives the
visible Chromium through one MCP tool, browser-shell. A profile says what is added to the
base and what of it stays; the rest is removed.

` + exitHelp,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs,
		SilenceUsage:  true,
		Version:       version.Read("").Version,
		RunE:          group,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			return a.chooseCache()
		},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage(err) })
	root.PersistentFlags().StringVar(&a.cacheDir, "cache-dir", defaultCache(), "`DIR` of the cache (default: slimctl in your cache directory)")
	root.PersistentFlags().Lookup("cache-dir").DefValue = "" // the help is the same for every user
	root.AddGroup(&cobra.Group{ID: "common", Title: "Common commands:"}, &cobra.Group{ID: "look", Title: "Looking at images:"}, &cobra.Group{ID: "parts", Title: "Parts of a build:"})
	for group, commands := range map[string][]*cobra.Command{
		"common": {a.build(), a.plan(), a.lock(), a.profile(), a.run(), a.mcp(), a.compose()},
		"look":   {a.inspect(), a.diff(), a.verify(), a.why()},
		"parts":  {a.llb(), a.dockerfile(), a.payload(), a.cache(), a.man(), a.standin(), a.version()},
	} {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	root.AddCommand(helpTopic("images", "How to name an image, a base and its platforms", imagesTopic))
	root.InitDefaultHelpCmd()
	if help, _, err := root.Find([]string{"help"}); err == nil {
		help.Args = knownCommand
	}
	addCompletions(root)
	fitHelp(root)
	return root
}

// commandGroup returns a command that has only subcommands.
func commandGroup(use, short string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: cobra.ArbitraryArgs, RunE: group}
	cmd.AddCommand(commands...)
	return cmd
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

// knownCommand refuses arguments of help that name no command, where cobra's help would print the root's and succeed.
func knownCommand(help *cobra.Command, args []string) error {
	cmd, rest, err := help.Root().Find(args)
	if err == nil && len(rest) > 0 {
		err = group(cmd, rest)
	}
	return err
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

// endProgress takes all progress off the terminal, so that nothing moves the cursor any more.
func (a *app) endProgress() error {
	var errs []error
	for _, r := range a.shown {
		errs = append(errs, r.Close())
	}
	a.shown = nil
	return errors.Join(errs...)
}

// resultWriter is standard output for results.
type resultWriter struct{ a *app }

func (w resultWriter) Write(p []byte) (int, error) {
	if err := w.a.endProgress(); err != nil {
		return 0, err
	}
	return w.a.console.Write(p)
}

// defaultCache is empty where the environment names no directory for caches.
func defaultCache() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "slimctl")
}

// chooseCache makes a cache for this run only where there is no other: nothing is written to the working directory.
func (a *app) chooseCache() (err error) {
	if a.cacheDir == "" {
		a.temporary, err = os.MkdirTemp("", "slimctl-cache-")
		a.cacheDir = a.temporary
	}
	return err
}
