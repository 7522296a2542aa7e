package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"github.com/slimctl/slimctl/inspect/sandbox"
	"github.com/slimctl/slimctl/inspect/sandbox/bridge"
	"github.com/slimctl/slimctl/internal/rawname"
	"github.com/slimctl/slimctl/internal/version"
)

// keyVariable is the environment variable from which the image reads its API key.
const keyVariable = "SANDBOX_API_KEY"

// servingVariable is the environment variable of a process that detach started.
const servingVariable = "SLIMCTL_MCP_SERVING"

// openPatience is the time for which a slow registry may delay the first answer.
const openPatience = 5 * time.Second

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
		Long: `Mcp serves the tool of an image to an MCP client on stdin and stdout. Name it in the
client's configuration. The first call boots IMAGE in a closed container, as slimctl run
does, and the end of stdin ends it. Mcp opens no port and needs no key.

--artifacts holds evidence, screenshots and audit, in a directory for each container. The
default is ~/.local/state/slimctl/mcp. A call's files are there before its answer. A
container without calls ends after --idle-timeout, and the next call boots another.`,
		Example: `  # In the configuration of Claude, Cursor or VS Code, as "browser":
  #   {"command": "slimctl", "args": ["mcp", "ghcr.io/you/browser-shell:l0"]}
  slimctl mcp ghcr.io/you/browser-shell:l0
  slimctl mcp oci:out --memory 2g --artifacts ~/browser`,
		Args: oneArg("the image"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.serveMCP(cmd, args[0], f)
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

// serveMCP serves MCP until the end of input. Standard output belongs to the client; messages for people go to standard
// error.
func (a *app) serveMCP(cmd *cobra.Command, reference string, f *mcpFlags) error {
	ctx := cmd.Context()
	if err := f.parse(); err != nil {
		return usageError(err)
	}
	if _, ok := f.settings.Env[keyVariable]; ok {
		return usageError(fmt.Errorf("--env %s: slimctl mcp makes a key of its own for each container; leave it out", keyVariable))
	}
	if f.idle < 0 {
		return usageError(fmt.Errorf("--idle-timeout %s: want 0 or more", f.idle))
	}
	if n := f.settings.Network; n != "" && n != sandbox.NetworkEgress && n != sandbox.NetworkNone {
		return usageError(fmt.Errorf("--network %q: want egress or none", n))
	}
	if f.settings.Output == "" {
		dir, err := findStateDir()
		if err != nil {
			return usageError(fmt.Errorf("no place for evidence: %w; name one with --artifacts DIR", err))
		}
		f.settings.Output = filepath.Join(dir, "mcp")
	}
	// Answers name screenshots by this path. The user may not know slimctl's working directory.
	dir, err := filepath.Abs(f.settings.Output)
	if err != nil {
		return err
	}
	f.settings.Output = dir
	unread := make(chan os.Signal, 1) // if the client was killed, SIGPIPE must not prevent the container's removal
	signal.Notify(unread, syscall.SIGPIPE)
	defer signal.Stop(unread)
	if os.Getenv(servingVariable) == "" {
		return a.detach(ctx, cmd.InOrStdin())
	}
	served := os.NewFile(3, "served")
	syscall.CloseOnExec(3)
	openImage := func() (sandbox.Image, error) {
		access, err := a.access(f.registry, "")
		if err != nil {
			return sandbox.Image{}, err
		}
		img, err := openBootable(ctx, access, reference)
		if err != nil {
			return img, err
		}
		if ours, err := img.Ours(); err != nil || !ours {
			return img, cmp.Or(err, usageError(fmt.Errorf("%s is not an image that slimctl built, so it has no tool; make one with `slimctl build`", reference)))
		}
		return img, nil
	}
	var mu sync.Mutex
	var opened *sandbox.Image
	open := func() (sandbox.Image, error) { // keeps no error: a laptop may come online later
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
	found := make(chan error, 1)
	go func() {
		_, err := open()
		found <- err
	}()
	select {
	case err := <-found: // a registry that isn't reached now may be at the first call
		if code, _ := classifyError(cmd, err); err != nil && code != exitRegistry {
			return err
		}
	case <-time.After(openPatience):
	case <-ctx.Done():
		return nil
	}
	return bridge.New(bridge.Config{
		Describe: func(ctx context.Context) (*mcp.Tool, error) {
			img, err := open()
			if err != nil {
				return nil, err
			}
			return bridge.Describe(ctx, img, f.settings.Policy, a.cacheDir)
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
			sb, err := f.runner(a).Start(ctx, img, settings)
			if err != nil {
				return nil, err
			}
			return mcpContainer{sb, filepath.Join(settings.Output, sb.ID)}, nil
		},
		Served: func() {
			os.Stdout.Close()
			_, _ = served.Write([]byte{0}) // fails if the client's process is gone
		},
		Idle: f.idle, Version: version.Read().Version,
		Say: func(format string, args ...any) {
			fmt.Fprintln(a.stderr, "slimctl: "+rawname.Line(strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ")))
		},
	}).Serve(ctx, cmd.InOrStdin(), a.stdout)
}

// detach runs this command in a process of a session of its own, and passes the client's streams on until the service
// has ended. Clients kill the process that they started within seconds; the container's end takes longer, and goes on.
func (a *app) detach(ctx context.Context, in io.Reader) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	served, tell, err := os.Pipe()
	if err != nil {
		return err
	}
	defer served.Close()
	child := exec.Command(program, os.Args[1:]...)
	child.Args[0], child.Env = os.Args[0], append(os.Environ(), servingVariable+"=1")
	child.SysProcAttr, child.ExtraFiles = &syscall.SysProcAttr{Setsid: true}, []*os.File{tell}
	child.Stderr = struct{ io.Writer }{a.stderr} // a client waits until nobody has the file itself
	stdin, err := child.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := child.StdoutPipe()
	if err != nil {
		return err
	}
	if err := child.Start(); err != nil {
		return err
	}
	tell.Close()
	context.AfterFunc(ctx, func() { _ = child.Process.Signal(syscall.SIGTERM) }) // fails if it has ended
	go func() {
		_, _ = io.Copy(stdin, in)
		stdin.Close()
	}()
	_, _ = io.Copy(a.stdout, stdout) // fails if the client has left
	stdout.Close()
	if n, _ := served.Read(make([]byte, 1)); n == 1 {
		return nil
	}
	err = child.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return statusError{code: max(exit.ExitCode(), 1)} // it has said why
	}
	return err
}

// mcpContainer implements bridge.Container.
type mcpContainer struct {
	*sandbox.Sandbox
	dir string
}

func (c mcpContainer) Directory() string { return c.dir }

// findStateDir returns the directory for slimctl's state files (XDG Base Directory; on macOS, Application Support).
func findStateDir() (string, error) {
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
