package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/internal/cache"
	"github.com/slimctl/slimctl/internal/nearest"
	"github.com/slimctl/slimctl/internal/progress"
	"github.com/slimctl/slimctl/internal/version"
	"github.com/slimctl/slimctl/slim"
)

// app holds the state that all commands share.
type app struct {
	// stdout is for results: its first byte ends the progress display. It writes to console.
	stdout, console, stderr io.Writer
	cacheDir                string
	temporary               string // a cache directory to remove at exit; "" for none
	shown                   []progress.Reporter
}

// run executes one command line and returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	a := &app{console: stdout, stderr: stderr}
	a.stdout = resultWriter{a}
	defer func() { _ = os.RemoveAll(a.temporary) }()
	root := a.root()
	root.SetArgs(args)
	help := &firstError{Writer: stdout} // cobra ignores write errors of its help
	root.SetOut(help)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	err = cmp.Or(err, a.endProgress(), help.err)
	if err == nil {
		if a.cacheDir != "" && a.temporary == "" && cmd.Name() != "mcp" { // whose processes outlive their client
			_ = cache.Prune(a.cacheDir, time.Now()) // the result stands without it
		}
		return exitOK
	}
	var status statusError
	if said := errors.As(err, &status) && status.code == exitInterrupted; ctx.Err() != nil && !said {
		err = errInterrupted
	}
	if errors.As(err, &status) {
		return reportStatus(stderr, status)
	}
	return reportError(stderr, cmd, err)
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "slimctl",
		Short: "Turn an all-in-one sandbox image into a slim, closed one",
		Long: `Slimctl derives a slim image from the AIO Sandbox. In it, an agent drives the visible Chromium
through one MCP tool, browser-shell. A profile names the added files and the files of the
base that stay. Everything else is removed.

` + exitHelp,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs,
		SilenceUsage:  true,
		Version:       version.Read().Version,
		RunE:          runGroup,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			return a.chooseCache()
		},
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if args := cmd.Flags().Args(); cmd.HasSubCommands() && len(args) > 0 { // the flag is one of a command that isn't there
			return runGroup(cmd, args)
		}
		return usageError(suggestFlag(cmd, err))
	})
	root.PersistentFlags().StringVar(&a.cacheDir, "cache-dir", findUserCache(), "`DIR` of the cache (default: ~/.cache/slimctl)")
	root.PersistentFlags().Lookup("cache-dir").DefValue = "" // keeps the help independent of the user
	root.AddGroup(&cobra.Group{ID: "common", Title: "Common commands:"}, &cobra.Group{ID: "look", Title: "Looking at images:"}, &cobra.Group{ID: "parts", Title: "Parts of a build:"})
	for group, commands := range map[string][]*cobra.Command{
		"common": {a.build(), a.plan(), a.lock(), a.profile(), a.run(), a.mcp(), a.compose()},
		"look":   {a.inspect(), a.diff(), a.verify(), a.why()},
		"parts":  {a.llb(), a.dockerfile(), a.payload(), a.man(), a.standin(), a.version()},
	} {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	root.AddCommand(helpTopic("images", "How to name an image, a base and its platforms", imagesTopic))
	root.InitDefaultHelpCmd()
	if help, _, err := root.Find([]string{"help"}); err == nil {
		help.Args = checkHelpArgs
	}
	addCompletions(root)
	fitHelp(root)
	return root
}

// commandGroup returns a command that has only subcommands.
func commandGroup(use, short string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: cobra.ArbitraryArgs, RunE: runGroup}
	cmd.AddCommand(commands...)
	return cmd
}

// runGroup runs a command that has only subcommands: it prints the help and refuses unknown subcommands.
func runGroup(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	err := fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())
	if instead, ok := removed[strings.TrimPrefix(cmd.CommandPath()+" "+args[0], "slimctl ")]; ok {
		return usageError(fmt.Errorf("%w: it was removed: %s", err, instead))
	}
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		err = fmt.Errorf("%w: did you mean %q?", err, near[0])
	}
	return usageError(err)
}

// removed maps the commands and flags of earlier versions to what replaces them.
var removed = map[string]string{
	"cache":                 "slimctl removes what it did not use for 30 days; delete the directory to remove everything",
	"payload list":          "a profile may name any version from 0.20.0 on; write it with `slimctl payload update VERSION`",
	"profile schema":        "the schema is profiles/schema.json in slimctl's source, and docs/profile.md lists the keys",
	"--accept-unknown-line": "leave it out: a base of any line builds",
	"--ca-file":             "set SSL_CERT_FILE=FILE",
	"--cache-from":          "omit it: the BuildKit daemon runs nothing that a cache would save",
	"--cache-to":            "omit it: the BuildKit daemon runs nothing that a cache would save",
	"--compression":         "omit it: new layers are gzip",
	"--llb-form":            "render another form with `slimctl llb --form FORM`",
	"--registry-timeout":    "omit it: a registry may stay silent for " + image.DefaultIdleTimeout.String(),
	"--tlscacert":           certificatesInstead,
	"--tlscert":             certificatesInstead,
	"--tlsdir":              certificatesInstead,
	"--tlskey":              certificatesInstead,
	"--tlsservername":       "connect by the name in the daemon's certificate",
	"--whiteouts":           "omit it, or build the image with slimctl build",
}

const certificatesInstead = "set BUILDKIT_TLS_DIR=DIR to the directory with ca.pem, cert.pem and key.pem"

// checkHelpArgs refuses arguments of `help` that name no command. cobra would print the root's help and succeed.
func checkHelpArgs(help *cobra.Command, args []string) error {
	cmd, rest, err := help.Root().Find(args)
	if err == nil && len(rest) > 0 {
		err = runGroup(cmd, rest)
	}
	return err
}

// noArgs refuses arguments like cobra.NoArgs, as a usage error that suggests the flag for the value.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := fmt.Errorf("%s takes no arguments, and got %q", cmd.CommandPath(), args)
	if flag := guessFlag(cmd, args[0]); flag != "" {
		err = fmt.Errorf("%w: did you mean %s %s?", err, flag, args[0])
	}
	return usageError(err)
}

// guessFlag returns the flag of cmd for which arg looks like a value, or "".
func guessFlag(cmd *cobra.Command, arg string) string {
	flag := ""
	if builtin, err := slim.Profiles(); profile.IsFile(arg) || err == nil && slices.ContainsFunc(builtin, func(p profile.Summary) bool { return p.Name == arg }) {
		flag = "profile"
	}
	if slices.ContainsFunc(imageForms, func(form string) bool { return strings.HasPrefix(arg, form) }) {
		flag = "base"
	}
	if cmd.Flags().Lookup(flag) == nil {
		return ""
	}
	return "--" + flag
}

// suggestFlag adds the flag with the nearest name to the error of an unknown flag.
func suggestFlag(cmd *cobra.Command, err error) error {
	unknown := new(pflag.NotExistError)
	if !errors.As(err, &unknown) {
		return err
	}
	if instead, ok := removed["--"+unknown.GetSpecifiedName()]; ok {
		return fmt.Errorf("%w: it was removed: %s", err, instead)
	}
	var flags []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			flags = append(flags, f.Name)
		}
	})
	given := cmp.Or(unknown.GetSpecifiedShortnames(), unknown.GetSpecifiedName()) // pflag reads -profile as -p -r …
	if near := nearest.Word(given, flags); near != "" {
		return fmt.Errorf("%w: did you mean --%s?", err, near)
	}
	return err
}

func oneArg(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usageError(fmt.Errorf("%s takes one argument, %s, and got %d", cmd.CommandPath(), what, len(args)))
		}
		return nil
	}
}

// endProgress closes all progress displays, so that nothing moves the cursor afterwards.
func (a *app) endProgress() error {
	var errs []error
	for _, r := range a.shown {
		errs = append(errs, r.Close())
	}
	a.shown = nil
	return errors.Join(errs...)
}

// firstError is a writer that keeps its first error.
type firstError struct {
	io.Writer
	err error
}

func (w *firstError) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	w.err = cmp.Or(w.err, err)
	return n, err
}

// resultWriter is standard output for results. It ends the progress display first.
type resultWriter struct{ a *app }

func (w resultWriter) Write(p []byte) (int, error) {
	if err := w.a.endProgress(); err != nil {
		return 0, err
	}
	return w.a.console.Write(p)
}

// findUserCache returns the cache directory of the user, or "" if the environment names none.
func findUserCache() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "slimctl")
}

// chooseCache creates a temporary cache if the user has none. Nothing is ever written to the working directory.
func (a *app) chooseCache() (err error) {
	if a.cacheDir == "" {
		a.temporary, err = os.MkdirTemp("", "slimctl-cache-")
		a.cacheDir = a.temporary
	}
	return err
}
