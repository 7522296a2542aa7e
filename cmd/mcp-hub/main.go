// Mcp-hub runs several MCP servers on a host and serves them at one address, or on stdio.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/slimctl/slimctl/hub"
	"github.com/slimctl/slimctl/internal/version"
	"github.com/slimctl/slimctl/server/audit"
	"github.com/slimctl/slimctl/server/strictjson"
)

// Limits for clients; a call's duration is limited elsewhere.
const (
	headerTime = 5 * time.Second  // for a request's headers to arrive
	readTime   = 30 * time.Second // for all of it
	leaveTime  = 2 * time.Second  // for running calls at the end
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process immediately
	if err := newRoot(os.Stdout, os.Stderr).ExecuteContext(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "error: %v\n", err)
		os.Exit(1)
	}
}

// files holds the flags that serve and stdio share.
type files struct {
	config []string
	audit  string
}

func newRoot(stdout, stderr io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:           "mcp-hub",
		Short:         "Run several MCP servers and serve them at one address",
		Version:       version.Read().Version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.AddCommand(newServe(stderr), newStdio(stderr), newVerify())
	return root
}

func newServe(stderr io.Writer) *cobra.Command {
	var f files
	var listen, tokenFile string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve MCP and the management API over HTTP",
		Example: `  mcp-hub serve --config mcp_server.json
  curl http://127.0.0.1:8787/v1/mcp/servers`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			token, err := readToken(tokenFile)
			if err != nil {
				return err
			}
			at, err := netip.ParseAddrPort(listen)
			if err != nil || !at.Addr().Unmap().IsLoopback() {
				return fmt.Errorf("--listen %s: want a loopback address and a port, for instance 127.0.0.1:8787", listen)
			}
			l, err := net.Listen("tcp", listen)
			if err != nil {
				return err
			}
			h, err := f.open(stderr)
			if err != nil {
				return errors.Join(err, l.Close())
			}
			fmt.Fprintf(stderr, "mcp-hub: serving http://%s/mcp\n", l.Addr())
			return errors.Join(serveHTTP(cmd.Context(), l, h.Handler(token)), h.Close())
		},
	}
	f.addFlags(cmd)
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:8787", "loopback `ADDRESS` to serve on")
	cmd.Flags().StringVar(&tokenFile, "token-file", "", "require the token in this `FILE` as Bearer")
	return cmd
}

func newStdio(stderr io.Writer) *cobra.Command {
	var f files
	cmd := &cobra.Command{
		Use:   "stdio",
		Short: "Serve one MCP client on standard input and output",
		Example: `  # In the configuration of an MCP client:
  #   {"command": "mcp-hub", "args": ["stdio", "--config", "/home/you/mcp_server.json"]}`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := f.open(stderr)
			if err != nil {
				return err
			}
			err = h.ServeStdio(cmd.Context())
			if cmd.Context().Err() != nil {
				err = nil
			}
			return errors.Join(err, h.Close())
		},
	}
	f.addFlags(cmd)
	return cmd
}

func newVerify() *cobra.Command {
	return &cobra.Command{
		Use:   "verify FILE...",
		Short: "Verify the chain of an audit log",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := audit.Verify("", args...)
			if err == nil && r.Break != nil {
				err = fmt.Errorf("%s:%d: %s", r.Break.File, r.Break.Line, r.Break.Text)
			}
			if err == nil {
				fmt.Fprintf(cmd.OutOrStdout(), "%d lines, unbroken\n", r.Lines)
			}
			return err
		},
	}
}

func (f *files) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.config, "config", []string{"mcp_server.json"}, "configuration `FILE`; repeat for several")
	cmd.Flags().StringVar(&f.audit, "audit", defaultAudit(), "audit log `FILE`")
	cmd.Flags().Lookup("audit").DefValue = "~/.local/state/mcp-hub/security_audit.jsonl"
}

// open starts the hub.
func (f *files) open(stderr io.Writer) (*hub.Hub, error) {
	config, err := hub.LoadConfig(f.config...)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(f.audit), 0o700); err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	return hub.New(hub.Options{Config: config, Audit: f.audit, Version: version.Read().Version, Log: slog.New(slog.NewTextHandler(stderr, nil))})
}

// defaultAudit returns the path of the audit log in the user's state directory (XDG Base Directory).
func defaultAudit() string {
	dir := os.Getenv("XDG_STATE_HOME")
	if home, err := os.UserHomeDir(); dir == "" && err == nil {
		dir = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(dir, hub.Name, "security_audit.jsonl")
}

// readToken returns the token of a file, or "" for none.
func readToken(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	text, err := strictjson.Read(path, 4096)
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if len(token) < 16 {
		return "", fmt.Errorf("--token-file %s: the token has fewer than 16 characters; make one with `openssl rand -hex 32`", path)
	}
	return token, nil
}

// serveHTTP serves until ctx ends.
func serveHTTP(ctx context.Context, l net.Listener, h http.Handler) error {
	srv := &http.Server{Handler: h, ReadHeaderTimeout: headerTime, ReadTimeout: readTime}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(l) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
	defer cancel()
	if srv.Shutdown(ctx) != nil { // streams never end by themselves
		return srv.Close()
	}
	return nil
}
