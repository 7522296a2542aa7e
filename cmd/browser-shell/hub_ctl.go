package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/slimctl/slimctl/server/hub/admin"
	"github.com/slimctl/slimctl/server/hub/upstream"
)

// errHubDown reports an unhealthy hub; the reason is already printed.
var errHubDown = errors.New("the hub is down")

// ctlCommand is one subcommand of `hub ctl`. do returns the value for --json; show prints it for people.
type ctlCommand struct {
	name, args, does string
	do               func(c *admin.Client, ctx context.Context, name string) (any, error)
}

func ctlCommands() []ctlCommand {
	return []ctlCommand{
		{"servers", "", "all servers", withoutName((*admin.Client).Servers)},
		{"server", "NAME", "one server, with the end of its log", withName((*admin.Client).Server)},
		{"start", "NAME", "start a server", withName((*admin.Client).Start)},
		{"stop", "NAME", "stop a server until it is started", withName((*admin.Client).Stop)},
		{"restart", "NAME", "stop and start a server", withName((*admin.Client).Restart)},
		{"tools", "", "all tools, also blocked ones", withoutName((*admin.Client).Tools)},
		{"health", "", "whether every server runs; exit code 1 if not", withoutName(hubHealth)},
		{"metrics", "", "the Prometheus text", withoutName((*admin.Client).Metrics)},
		{"reload", "", "read configuration and policy again", withoutName((*admin.Client).Reload)},
	}
}

func hubHealth(c *admin.Client, ctx context.Context) (admin.Health, error) {
	return c.Health(ctx, admin.Full)
}

func withName[T any](do func(*admin.Client, context.Context, string) (T, error)) func(*admin.Client, context.Context, string) (any, error) {
	return func(c *admin.Client, ctx context.Context, name string) (any, error) { return do(c, ctx, name) }
}

func withoutName[T any](do func(*admin.Client, context.Context) (T, error)) func(*admin.Client, context.Context, string) (any, error) {
	return func(c *admin.Client, ctx context.Context, _ string) (any, error) { return do(c, ctx) }
}

// runHubCtl sends a command to a running hub over its management socket.
func runHubCtl(ctx context.Context, args []string, std stdio) error {
	flags := flag.NewFlagSet("hub ctl", flag.ContinueOnError)
	flags.SetOutput(std.err)
	flags.Usage = func() { ctlUsage(flags, std.err) }
	socket := flags.String("socket", admin.DefaultSocket, "the hub's management socket, a `path`")
	asJSON := flags.Bool("json", false, "print JSON")
	var words []string
	for rest := args; ; rest = flags.Args()[1:] { // flags may stand before, between and after
		if err := flags.Parse(rest); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return err
			}
			return errUsage
		}
		if flags.NArg() == 0 {
			break
		}
		words = append(words, flags.Arg(0))
	}
	all := ctlCommands()
	i := slices.IndexFunc(all, func(c ctlCommand) bool { return len(words) > 0 && c.name == words[0] })
	if i < 0 || len(words)-1 != len(strings.Fields(all[i].args)) {
		flags.Usage()
		return errUsage
	}
	client := admin.NewClient(*socket)
	client.Dial = dialHub(*socket)
	result, err := all[i].do(client, ctx, strings.Join(words[1:], ""))
	if err != nil {
		return err
	}
	if err := printResult(std.out, result, *asJSON); err != nil {
		return err
	}
	if h, ok := result.(admin.Health); ok && h.Status != "ok" {
		return errHubDown
	}
	return nil
}

// printResult prints the result of a command, as JSON or for people. Metrics are text in both cases.
func printResult(out io.Writer, result any, asJSON bool) error {
	if text, ok := result.([]byte); ok {
		_, err := out.Write(text)
		return err
	}
	if asJSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(result)
	}
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	switch v := result.(type) {
	case []upstream.Status:
		printServers(w, v...)
	case upstream.Status:
		printServers(w, v)
	case admin.Server:
		printServer(w, v)
	case []admin.Tool:
		printTools(w, v)
	case admin.Health:
		printHealth(w, v)
	}
	return w.Flush()
}

func ctlUsage(flags *flag.FlagSet, w io.Writer) {
	fmt.Fprintln(w, "usage: browser-shell hub ctl [--socket PATH] [--json] COMMAND")
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, c := range ctlCommands() {
		fmt.Fprintf(t, "  %s %s\t%s\n", c.name, c.args, c.does)
	}
	_ = t.Flush() // as with every write of usage
	flags.PrintDefaults()
}

func printServers(w io.Writer, all ...upstream.Status) {
	fmt.Fprintln(w, "NAME\tSTATE\tSINCE\tTRANSPORT\tPID\tTOOLS\tRESTARTS\tATTEMPT\tNEXT RETRY")
	for _, s := range all {
		pid, retry := "-", "-"
		if s.PID > 0 {
			pid = strconv.Itoa(s.PID)
		}
		if !s.NextRetry.IsZero() {
			retry = "in " + roundSeconds(time.Until(s.NextRetry))
		}
		fmt.Fprintf(w, "%s\t%s\t%s ago\t%s\t%s\t%d\t%d\t%d\t%s\n",
			showSafely(s.Name), showSafely(string(s.State)), roundSeconds(time.Since(s.Since)), showSafely(s.Transport), pid, s.Tools, s.Restarts, s.Attempt, retry)
	}
}

func printServer(w io.Writer, s admin.Server) {
	printServers(w, s.Status)
	for _, line := range [][2]string{{"server", s.Server}, {"protocol", s.Protocol}, {"last error", s.LastError}} {
		if line[1] != "" {
			fmt.Fprintf(w, "%s: %s\n", line[0], showSafely(line[1]))
		}
	}
	if s.Log != "" {
		fmt.Fprintln(w, "log:")
		for line := range strings.Lines(s.Log) {
			fmt.Fprintln(w, "  "+showSafely(strings.TrimSpace(line)))
		}
	}
}

func printTools(w io.Writer, all []admin.Tool) {
	fmt.Fprintln(w, "NAME\tSERVER\tBLOCKED\tDESCRIPTION")
	for _, t := range all {
		blocked := "-"
		if t.Blocked {
			blocked = "blocked"
		}
		first, _, _ := strings.Cut(t.Description, "\n")
		if r := []rune(first); len(r) > 60 {
			first = string(r[:60]) + "…"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", showSafely(t.Name), showSafely(t.Server), blocked, showSafely(first))
	}
}

func printHealth(w io.Writer, h admin.Health) {
	fmt.Fprintln(w, showSafely(h.Status))
	for line := range strings.Lines(h.Reason) {
		fmt.Fprintln(w, showSafely(strings.TrimSuffix(line, "\n")))
	}
	printServers(w, h.Details...)
}

// roundSeconds formats a duration for people, such as 3s or 12m5s; a negative one as 0s.
func roundSeconds(d time.Duration) string { return max(d, 0).Round(time.Second).String() }

// showSafely removes from a server's text all characters that move the cursor or colour, hide or reverse text.
func showSafely(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\t' {
			return ' '
		}
		if unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp) {
			return '\ufffd'
		}
		return r
	}, s)
}
