package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/inspect/sandbox"
	"github.com/slimctl/slimctl/internal/progress"
	"github.com/slimctl/slimctl/internal/rawname"
	"github.com/slimctl/slimctl/server/egress"
	"github.com/slimctl/slimctl/slim"
)

// Exit codes of run beside the container's own; the values are those of docker run and timeout(1).
const (
	exitTimeout   = 124
	exitUnhealthy = 1   // the image never became healthy and exited with 0
	exitNoStart   = 125 // 126 and 127 come from sandbox.StartError
)

// statusError is a container's exit status, which becomes slimctl's. Empty words print nothing: a container that exits
// by itself has printed its own message.
type statusError struct {
	code  int
	words string
}

func (e statusError) Error() string { return e.words }

type runFlags struct {
	settings                    sandbox.Settings
	memory, shm                 string
	env                         []string
	runtime, evidence, progress string
	outgoing                    egress.Outgoing
	outgoingFile                string
	strict                      bool
	registry                    registryFlags
}

func (a *app) run() *cobra.Command {
	f := &runFlags{settings: sandbox.Default()}
	s := &f.settings
	cmd := &cobra.Command{
		Use:   "run IMAGE [-- COMMAND...]",
		Short: "Run an image in a closed container and keep evidence of it",
		Long: `Run starts an image in a closed container: a read-only root, limits, and only the capabilities
that the closed image needs. It uses Docker if Docker answers, and otherwise runc, which
needs root on Linux.

The container has no network but loopback. If --network is egress, slimctl carries the
browser's connections to public addresses that the image's policy allows. It refuses private
ranges at the connection. That is the default for an image that slimctl built; any other has
--network none. -p reaches port 8080 either way.

--policy replaces the image's policy. Only such a file can allow private hosts.

An image that slimctl built is ready when stderr has the line "slimctl: ready".

Stdout, stderr and the exit status are the container's. Status 124 means --timeout; 125 to
127 mean that the container didn't start. The container is always removed.

--artifacts writes /output, audit/, logs/, events.jsonl and, last, evidence.json to DIR/ID.
--audit keeps the audit log in DIR/ID. Both also work after Ctrl-C, --timeout and a kill.
Check a log with browser-shell audit verify DIR/ID/audit.jsonl. See slimctl help images for
the forms of IMAGE.`,
		Example: `  # The closed image until Ctrl-C, at http://127.0.0.1:8080/mcp and /vnc/.
  slimctl run oci:out -p 127.0.0.1:8080:8080 \
    -e SANDBOX_API_KEY="$(openssl rand -hex 16)" --timeout 0
  # One program of a base that boots.
  slimctl run standin-live:B --work . --artifacts artifacts -- /usr/bin/env`,
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				s.Command, args = args[dash:], args[:dash]
			}
			return oneArg("the image")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error { return a.runImage(cmd.Context(), args[0], f) },
	}
	flags := cmd.Flags()
	f.addContainer(cmd)
	flags.StringArrayVarP(&s.Publish, "publish", "p", nil, "publish a port: PORT or [ADDRESS:]PORT:PORT, on 127.0.0.1 (repeatable)")
	flags.DurationVar(&s.Timeout, "timeout", s.Timeout, "how long it may run; 0 for ever")
	flags.StringVar(&s.Output, "artifacts", "", "`DIR` for /output, the programs' logs and the evidence")
	flags.StringVar(&s.Audit, "audit", "", "`DIR` to keep the image's audit log in")
	flags.StringVar(&f.evidence, "evidence", "", "write the evidence to this `FILE`, too")
	f.progress = progress.Quiet
	addChoice(flags, &f.progress, "progress", "", progress.Modes...)
	return cmd
}

// addContainer adds the flags of the commands that run an image.
func (f *runFlags) addContainer(cmd *cobra.Command) {
	s, flags := &f.settings, cmd.Flags()
	flags.StringVar(&s.Network, "network", s.Network, "egress, none, path:FILE, or a Docker network (default: egress)")
	flags.StringVar(&s.Policy, "policy", "", "browser-shell policy `FILE`, in the place of the image's")
	flags.StringVar(&f.outgoing.Proxy, "outgoing-proxy", "", "`URL` of a proxy to go out through, as http://HOST:PORT")
	flags.StringVar(&f.outgoingFile, "outgoing-proxy-file", "", "`FILE` with that URL, as http://USER:PASSWORD@HOST:PORT")
	flags.StringArrayVarP(&f.env, "env", "e", nil, "set NAME=VALUE, or pass NAME on (repeatable)")
	flags.StringVarP(&f.memory, "memory", "m", "1024m", "memory limit, in bytes or with k, m or g; 0 for none")
	flags.Float64Var(&s.CPUs, "cpus", s.CPUs, "number of cores; 0 for no limit")
	flags.Int64Var(&s.PIDs, "pids-limit", s.PIDs, "number of processes and threads; 0 for no limit")
	flags.StringVar(&f.shm, "shm-size", "256m", "size of /dev/shm")
	flags.StringVar(&s.Work, "work", "", "`DIR` to mount at /work, read-only")
	flags.StringVarP(&s.User, "user", "u", "", "user, as USER[:GROUP] (default: the image's)")
	flags.BoolVar(&s.ReadOnly, "read-only", s.ReadOnly, "make the root file system read-only")
	flags.StringSliceVar(&s.CapAdd, "cap-add", s.CapAdd, "capabilities to keep")
	flags.StringArrayVar(&s.Tmpfs, "tmpfs", s.Tmpfs, "mount a tmpfs, as PATH[:OPTIONS] (default: /run, /tmp and others)")
	flags.Lookup("tmpfs").DefValue = "[]" // the usage text lists the default
	addRuntime(flags, &f.runtime, "")
	flags.BoolVar(&f.strict, "strict", false, "refuse to run where a limit can't be set")
	f.registry.addTo(cmd)
}

// runner returns the runner that the flags ask for.
func (f *runFlags) runner(a *app) sandbox.Runner {
	r := sandbox.Runner{Runtime: f.runtime, CacheDir: a.cacheDir, Strict: f.strict}
	if f.outgoing.Proxy != "" {
		r.Outgoing = &f.outgoing
	}
	return r
}

func (a *app) runImage(ctx context.Context, reference string, f *runFlags) (err error) {
	ctx, stop := stopWithReader(ctx)
	defer stop()
	if err := f.parse(); err != nil {
		return usageError(err)
	}
	access, err := a.access(f.registry, f.progress)
	if err != nil {
		return err
	}
	img, err := openBootable(ctx, access, reference)
	if err != nil {
		return err
	}
	runner := f.runner(a)
	runner.Stdout, runner.Stderr, runner.Progress = filterForTerminal(a.console), filterForTerminal(a.stderr), access.Progress
	sb, err := runner.Start(ctx, img, f.settings)
	if err := errors.Join(err, a.endProgress()); err != nil {
		return convertStartError(err)
	}
	later := context.WithoutCancel(ctx) // the end of ctx stops the container; its remaining output and evidence are still collected
	defer func() { _, _ = sb.Stop(later) }()
	if sb.Tethered() {
		fmt.Fprintln(a.stderr, "slimctl: network "+describeNetwork(sb.Evidence().Settings.Network))
	}
	for _, p := range sb.Published() {
		fmt.Fprintln(a.stderr, "slimctl: "+describePort(p))
	}
	unhealthy := a.watchStart(ctx, sb, f)
	st, err := sb.Wait(later)
	trouble := <-unhealthy
	ev := sb.Evidence()
	for _, limit := range ev.NotApplied {
		fmt.Fprintln(a.stderr, "slimctl: did not apply: "+rawname.Line(limit))
	}
	if f.settings.Audit != "" && (err == nil || len(ev.Audit) > 0) {
		describeAudit(a.stderr, ev)
	}
	if f.evidence != "" {
		err = errors.Join(err, image.WriteFile(f.evidence, 0o644, ev.Write))
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return statusError{exitInterrupted, err.Error()}
	case err != nil:
		return err
	case ctx.Err() != nil:
		return statusError{code: exitInterrupted} // Ctrl-C is the usual end of a run
	case st.TimedOut && trouble != nil:
		return statusError{exitTimeout, fmt.Sprintf("the container ran for %s, its --timeout, and was ended; %v", f.settings.Timeout, trouble)}
	case st.TimedOut:
		return statusError{exitTimeout, fmt.Sprintf("the container ran for %s, its --timeout, and was ended", f.settings.Timeout)}
	case st.OOMKilled:
		return statusError{st.ExitCode, fmt.Sprintf("the container ran out of memory: --memory is %s", f.memory)}
	case trouble != nil:
		return statusError{max(st.ExitCode, exitUnhealthy), trouble.Error()}
	case st.ExitCode != 0 && len(f.settings.Command) == 0:
		return statusError{st.ExitCode, fmt.Sprintf("the container ended with exit status %d", st.ExitCode)}
	case st.ExitCode != 0:
		return statusError{code: st.ExitCode}
	}
	return nil
}

// openBootable opens an image to run on this machine.
func openBootable(ctx context.Context, access slim.Access, reference string) (sandbox.Image, error) {
	if line, ok := strings.CutPrefix(reference, "standin:"); ok {
		return sandbox.Image{}, usageError(fmt.Errorf("standin:%s has no program to run; use standin-live:%s", line, line))
	}
	src, err := slim.Open(ctx, access, reference)
	if err != nil {
		return sandbox.Image{}, err
	}
	img, err := sandbox.From(src)
	return img, cmp.Or(err, slim.CheckBoots(reference, src))
}

// stopWithReader returns a context that ends at SIGPIPE, when nobody reads standard output or error any more. By
// default that signal would end slimctl immediately and leave its container running.
func stopWithReader(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, syscall.SIGPIPE)
}

// watchStart stops the container of an image that can't become healthy. Once it has stopped, the channel receives the
// reason, or nil if it was healthy. With a user's command, health isn't checked.
func (a *app) watchStart(ctx context.Context, sb *sandbox.Sandbox, f *runFlags) <-chan error {
	result := make(chan error, 1)
	if len(f.settings.Command) > 0 {
		result <- nil
		return result
	}
	go func() {
		err := sb.AwaitHealthy(ctx)
		if err != nil {
			_, _ = sb.Stop(context.WithoutCancel(ctx)) // Wait returns the same error
		} else if sb.Evidence().Health != "" {
			fmt.Fprintln(a.stderr, "slimctl: ready")
		}
		result <- err
	}()
	return result
}

// describeNetwork returns a sentence about the destinations that a container in the network reaches.
func describeNetwork(network string) string {
	switch network {
	case sandbox.NetworkEgress:
		return "egress: the browser reaches public addresses that the policy allows; nothing else has a network"
	case sandbox.NetworkNone:
		return "none: nothing outside is reached"
	}
	return network
}

// describePort returns the URLs of a published port.
func describePort(p sandbox.Publication) string {
	if p.Port == sandbox.PublicPort {
		return fmt.Sprintf("MCP http://%[1]s/mcp · desktop http://%[1]s/vnc/", p.Host)
	}
	return fmt.Sprintf("port %d at %s", p.Port, p.Host)
}

// describeAudit prints the collected audit logs and whether their chains are intact.
func describeAudit(w io.Writer, ev sandbox.Evidence) {
	if len(ev.Audit) == 0 {
		fmt.Fprintf(w, "slimctl: warning: the container left no audit log in %s\n", sandbox.AuditDir)
	}
	for _, l := range ev.Audit {
		text := fmt.Sprintf("%s: %s, whole, head %s", filepath.Join(ev.AuditDir, l.File), english.Plural(l.Lines, "line", ""), l.Head)
		if l.Break != "" {
			text = fmt.Sprintf("%s: broken: %s; before it %s", filepath.Join(ev.AuditDir, l.File), l.Break, english.Plural(l.Lines, "line holds", "lines hold"))
		}
		fmt.Fprintln(w, "slimctl: audit: "+rawname.Line(text))
	}
}

// convertStartError converts the error of an image that can't be started to docker run's exit code.
func convertStartError(err error) error {
	var start *sandbox.StartError
	if errors.As(err, &start) {
		return statusError{start.Code, err.Error()}
	}
	if code, _ := classifyError(&cobra.Command{}, err); err != nil && code == exitError {
		return statusError{exitNoStart, err.Error()}
	}
	return err
}

// parse checks the flags and converts those that hold text.
func (f *runFlags) parse() error {
	var err error
	if f.settings.Memory, err = parseBytes(f.memory); err != nil {
		return fmt.Errorf("--memory %q: %w", f.memory, err)
	}
	if f.settings.ShmSize, err = parseBytes(f.shm); err != nil {
		return fmt.Errorf("--shm-size %q: %w", f.shm, err)
	}
	f.settings.Env = parseEnv(f.env)
	if err := f.parseOutgoing(); err != nil {
		return err
	}
	return f.settings.Check()
}

// parseOutgoing reads and checks the outgoing proxy. Its errors contain no password.
func (f *runFlags) parseOutgoing() error {
	if f.outgoingFile != "" {
		if f.outgoing.Proxy != "" {
			return errors.New("--outgoing-proxy and --outgoing-proxy-file: give one of them")
		}
		text, err := os.ReadFile(f.outgoingFile)
		if err != nil {
			return fmt.Errorf("--outgoing-proxy-file: %w", err)
		}
		if f.outgoing.Proxy = strings.TrimSpace(string(text)); f.outgoing.Proxy == "" {
			return fmt.Errorf("--outgoing-proxy-file: %s is empty; write http://USER:PASSWORD@HOST:PORT into it", f.outgoingFile)
		}
	}
	switch p := f.outgoing.Proxy; {
	case p == "":
		return nil
	case strings.HasPrefix(p, "unix:"):
		return fmt.Errorf("--outgoing-proxy %q: write http://HOST:PORT, such as http://proxy.example:3128", p)
	}
	if err := f.outgoing.Check(); err != nil {
		return fmt.Errorf("--outgoing-proxy: %w", err)
	}
	return nil
}

// parseEnv parses --env like docker run: NAME=VALUE, or NAME for a variable to pass on if it is set.
func parseEnv(flags []string) map[string]string {
	env := map[string]string{}
	for _, e := range flags {
		k, v, ok := strings.Cut(e, "=")
		if !ok {
			if v, ok = os.LookupEnv(k); !ok {
				continue
			}
		}
		env[k] = v
	}
	return env
}

// parseBytes parses a size like docker run: a number with b, k, m or g, in powers of 1024.
func parseBytes(s string) (int64, error) {
	units := map[string]int64{"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
	number, unit := s, int64(1)
	if s != "" {
		if u, ok := units[strings.ToLower(s[len(s)-1:])]; ok {
			number, unit = s[:len(s)-1], u
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/unit {
		return 0, errors.New("want a whole number, such as 512m; units are b, k, m and g")
	}
	return n * unit, nil
}

// reportStatus prints the words of e and returns its exit code.
func reportStatus(w io.Writer, e statusError) int {
	if e.words != "" {
		writeError(w, e.words)
	}
	return e.code
}
