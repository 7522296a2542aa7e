// Command browser-shell is the one tool of the slim image: it serves MCP over stdio (`mcp`) or streamable HTTP (`serve`).
//
// Exit codes: 0 done (end of input, SIGTERM), 1 could not start or serve, 2 wrong usage, 78 wrong settings of the
// container (init).
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"

	"github.com/slimctl/slimctl/internal/rawname"
	"github.com/slimctl/slimctl/internal/version"
	"github.com/slimctl/slimctl/server"
	"github.com/slimctl/slimctl/server/egress"
	"github.com/slimctl/slimctl/server/policy"
	"github.com/slimctl/slimctl/server/process"
	"github.com/slimctl/slimctl/server/protocol"
)

// stdio holds the standard streams of a command.
type stdio struct {
	in       io.Reader
	out, err io.Writer
}

// command is a subcommand of the program.
type command struct {
	name, args, does string
	run              func(ctx context.Context, args []string, std stdio) error
}

func commands() []command {
	return []command{
		{"mcp", "[--policy FILE]", "MCP over stdio", runMCP},
		{"serve", "[--policy FILE] [--listen IP:PORT] [--gate FILE] [--egress]", "MCP over HTTP at /mcp, and what the image serves besides", runServe},
		{"explain", "[--policy FILE] [--generation 0.8|native] [--resolve HOST=ANSWER]...", "what would become of calls, without running them", runExplain},
		{"audit", "verify FILE... [--anchor SEQ:HASH] [--json]", "whether an audit log is as it was written", runAudit},
		{"egress", "[--policy FILE] [--listen IP:PORT]", "the proxy that the browser's traffic goes through", runEgress},
		{"chromium-policy", "[--policy FILE] [--format managed|flags]", "settings that make Chromium use the proxy, on stdout", runChromiumPolicy},
		{"init", "[--tether]", "the image's entry: prepares its directories and starts its programs", runInit},
		{"start", "PROGRAM [ARG]...", "become a program of the image, once it can start", runStart},
		{"health", "", "whether all programs of the image answer", runHealth},
		{"logs", "[PROGRAM]", "the end of what a program of the image printed, or which have a log", runLogs},
		{"version", "[--format text|json]", "version, commit and Go of this program", runVersion},
	}
}

func usageText() string {
	var b strings.Builder
	b.WriteString("browser-shell drives the browser for an agent through one MCP tool.\n\n")
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	for _, c := range commands() {
		fmt.Fprintf(w, "  browser-shell %s %s\t%s\n", c.name, c.args, c.does)
	}
	_ = w.Flush() // a Builder has no write errors
	b.WriteString("\nFlags of a command: browser-shell COMMAND -h\n")
	return b.String()
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	os.Exit(dispatch(ctx, os.Args[1:], stdio{os.Stdin, os.Stdout, os.Stderr}))
}

// errUsage reports a wrong command line; the explanation is already on stderr.
var errUsage = errors.New("usage")

func dispatch(ctx context.Context, args []string, std stdio) int {
	if len(args) == 0 {
		fmt.Fprint(std.err, usageText())
		return 2
	}
	switch args[0] {
	case "help", "-h", "--help":
		fmt.Fprint(std.out, usageText())
		return 0
	case "--version":
		args[0] = "version"
	}
	for _, c := range commands() {
		if c.name == args[0] {
			return reportExit(c.run(ctx, args[1:], std), std.err)
		}
	}
	fmt.Fprintf(std.err, "browser-shell: no command %q\n%s", args[0], usageText())
	return 2
}

func reportExit(err error, stderr io.Writer) int {
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		return 2
	}
	lines := strings.Split(err.Error(), "\n")
	for i := range lines {
		lines[i] = rawname.Line(lines[i])
	}
	fmt.Fprintln(stderr, "browser-shell:", strings.Join(lines, "\n"))
	var status exitStatus
	if errors.As(err, &status) {
		return status.code
	}
	if errors.Is(err, errConfig) {
		return 78
	}
	return 1
}

func runVersion(_ context.Context, args []string, std stdio) error {
	flags := flag.NewFlagSet("version", flag.ContinueOnError)
	format := flags.String("format", "text", "text or json")
	if err := parseFlags(flags, args, std.err); err != nil {
		return err
	}
	info := version.Read()
	switch *format {
	case "text":
		_, err := fmt.Fprintln(std.out, "browser-shell", info)
		return err
	case "json":
		return json.NewEncoder(std.out).Encode(info)
	}
	fmt.Fprintf(std.err, "browser-shell version: --format %q: use text or json\n", *format)
	return errUsage
}

func ownVersion() string { return version.Read().Version }

// parseFlags parses the flags of a command that takes no arguments.
func parseFlags(flags *flag.FlagSet, args []string, stderr io.Writer) error {
	flags.SetOutput(stderr)
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return errUsage
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "browser-shell %s: unexpected argument %q\n", flags.Name(), flags.Arg(0))
		return errUsage
	}
	return nil
}

func policyFlag(flags *flag.FlagSet) *string {
	return flags.String("policy", policy.DefaultPath, "policy `file`; only the default one may be missing")
}

// serving is a running server with the reloading of its policy.
type serving struct {
	*server.Server
	egress *egressProxy // nil: none; its policy is reloaded, too

	path    string // of the policy
	hangups <-chan os.Signal
}

// openServer opens the server for a policy file.
func openServer(path string, stderr io.Writer) (*serving, error) {
	hangups, err := hardenProcess()
	if err != nil {
		return nil, err
	}
	p, err := policy.Load(path)
	if err != nil {
		return nil, err
	}
	outgoing, err := egress.LoadOutgoing(outgoingFile)
	if err != nil {
		return nil, err
	}
	sites := network
	sites.Remote = sites.Remote || outgoing != nil
	s, err := server.New(server.Config{
		Policy: p, Version: ownVersion(), Network: sites,
		Log: slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return nil, err
	}
	s.MCP().AddReceivingMiddleware(protocol.Middleware())
	return &serving{Server: s, path: path, hangups: hangups}, nil
}

// watchHangups reads the policy file again at each SIGHUP, until the returned function is called. If the file is
// invalid, the error is printed and the old policy stays.
func (s *serving) watchHangups(stderr io.Writer) (stop func()) {
	return onHangup(s.hangups, stderr, reloadPolicy(s.path, func(p *policy.Policy) error {
		if err := s.Reload(p); err != nil || s.egress == nil {
			return err
		}
		return s.egress.Reload(p)
	}))
}

// Close ends the server.
func (s *serving) Close() {
	s.Server.Close()
	process.EndChildren()
}

// hardenProcess prepares a long-running process: nobody can trace it, and SIGHUP doesn't end it. It returns a channel
// of the SIGHUPs from then on. Call it before reading the policy: a SIGHUP that arrives early waits.
func hardenProcess() (<-chan os.Signal, error) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	return hangups, process.Harden()
}

// onHangup calls reload at each SIGHUP, until the returned function is called.
func onHangup(hangups <-chan os.Signal, stderr io.Writer, reload func() error) func() {
	stop := make(chan struct{})
	go func() {
		for {
			select {
			case <-stop: // ignored during shutdown
				return
			case <-hangups:
			}
			if err := reload(); err != nil {
				fmt.Fprintf(stderr, "browser-shell: the policy was not reloaded, the old one stays: %s\n", err)
				continue
			}
			fmt.Fprintln(stderr, "browser-shell: policy reloaded")
		}
	}()
	return sync.OnceFunc(func() { close(stop) })
}

// reloadPolicy returns a function that reads a policy file and passes the policy to reload.
func reloadPolicy(path string, reload func(*policy.Policy) error) func() error {
	return func() error {
		p, err := policy.Load(path)
		if err != nil {
			return err
		}
		return reload(p)
	}
}

// network is the network outside; tests replace it by a local site.
var network policy.Network

// outgoingFile names the file with the outgoing proxy. Without the file there is none.
var outgoingFile = egress.DefaultOutgoing

func runMCP(ctx context.Context, args []string, std stdio) error {
	flags := flag.NewFlagSet("mcp", flag.ContinueOnError)
	file := policyFlag(flags)
	if err := parseFlags(flags, args, std.err); err != nil {
		return err
	}
	s, err := openServer(*file, std.err)
	if err != nil {
		return err
	}
	defer s.Close()
	defer s.watchHangups(std.err)()
	return protocol.Serve(ctx, s.MCP(), std.in, std.out)
}
