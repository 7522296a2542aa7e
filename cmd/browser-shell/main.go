// Command browser-shell is the one tool of the slim image: it serves MCP over
// stdio (`mcp`) or streamable HTTP (`hub`).
//
// Exit codes: 0 done (end of input, SIGTERM), 1 could not start or serve,
// 2 wrong usage.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/server"
	"github.com/slimctl/slimctl/server/hub"
	"github.com/slimctl/slimctl/server/policy"
)

// version is set by the linker: -X main.version=v1.2.3.
var version string

const usage = `browser-shell drives the browser for an agent through one MCP tool.

  browser-shell mcp [--policy FILE]                       MCP over stdio
  browser-shell hub [--policy FILE] [--listen IP:PORT]    MCP over HTTP at /mcp
  browser-shell version

Flags of a command: browser-shell COMMAND -h
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	os.Exit(dispatch(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// errUsage is for a command line that was already explained on stderr.
var errUsage = errors.New("usage")

func dispatch(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return 2
	}
	var err error
	switch args[0] {
	case "mcp":
		err = runMCP(ctx, args[1:], stderr)
	case "hub":
		err = runHub(ctx, args[1:], stderr)
	case "version", "--version":
		fmt.Fprintln(stdout, "browser-shell", ownVersion())
	case "help", "-h", "--help":
		fmt.Fprint(stdout, usage)
	default:
		fmt.Fprintf(stderr, "browser-shell: no command %q\n%s", args[0], usage)
		return 2
	}
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		return 2
	}
	fmt.Fprintln(stderr, "browser-shell:", err)
	return 1
}

func ownVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

// parse reads the flags of one command, which takes no other arguments.
func parse(flags *flag.FlagSet, args []string, stderr io.Writer) error {
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

// open loads the policy and makes the server.
func open(path string, log *slog.Logger) (*server.Server, error) {
	p, err := policy.Load(path)
	if err != nil {
		return nil, err
	}
	return server.New(p, ownVersion(), log)
}

func runMCP(ctx context.Context, args []string, stderr io.Writer) error {
	flags := flag.NewFlagSet("mcp", flag.ContinueOnError)
	file := policyFlag(flags)
	if err := parse(flags, args, stderr); err != nil {
		return err
	}
	s, err := open(*file, nil)
	if err != nil {
		return err
	}
	defer s.Close()
	err = s.MCP().Run(ctx, &mcp.StdioTransport{})
	if ctx.Err() != nil || errors.Is(err, io.EOF) || errors.Is(err, mcp.ErrConnectionClosed) {
		return nil
	}
	return err
}

func runHub(ctx context.Context, args []string, stderr io.Writer) error {
	flags := flag.NewFlagSet("hub", flag.ContinueOnError)
	file := policyFlag(flags)
	listen := flags.String("listen", "127.0.0.1:8079", "`address` to listen on")
	remote := flags.Bool("allow-remote", false, "allow an address that is not loopback; the endpoint asks for no credentials")
	if err := parse(flags, args, stderr); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	l, err := hub.Listen(*listen, *remote)
	if err != nil {
		return err
	}
	s, err := open(*file, log)
	if err != nil {
		l.Close()
		return err
	}
	defer s.Close()
	fmt.Fprintf(stderr, "browser-shell: serving http://%s%s\n", l.Addr(), hub.Path)
	return hub.Serve(ctx, l, hub.Handler(s.MCP()), s.Close)
}
