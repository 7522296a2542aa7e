package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"strings"

	"github.com/slimctl/slimctl/server"
	"github.com/slimctl/slimctl/server/policy"
)

// maxLine bounds one line of explain's input, in bytes.
const maxLine = 1 << 20

// runExplain reads calls or addresses, one JSON object a line, and prints what
// would become of each. It runs nothing and asks no resolver.
func runExplain(ctx context.Context, args []string, std stdio) error {
	flags := flag.NewFlagSet("explain", flag.ContinueOnError)
	file := policyFlag(flags)
	generation := flags.String("generation", string(policy.Node), "`generation` of agent-browser: 0.8 or native")
	answers := server.Answers{}
	flags.Func("resolve", "`host=addr[,addr]`, or host=NXDOMAIN, TIMEOUT, SERVFAIL or EMPTY; * is any host; a host that is not named does not exist", func(s string) error {
		host, answer, ok := strings.Cut(s, "=")
		if !ok {
			return fmt.Errorf("no = in %q", s)
		}
		return answers.Add(host, answer)
	})
	if err := parse(flags, args, std.err); err != nil {
		return err
	}
	gen := policy.Generation(*generation)
	if gen != policy.Node && gen != policy.Native {
		fmt.Fprintf(std.err, "browser-shell explain: --generation must be %s or %s\n", policy.Node, policy.Native)
		return errUsage
	}
	p, err := policy.Load(*file)
	if err != nil {
		return err
	}
	explainer := server.Explainer{Policy: p, Generation: gen, Answers: answers}
	out := json.NewEncoder(std.out)
	out.SetEscapeHTML(false)
	lines := bufio.NewScanner(std.in)
	lines.Buffer(nil, maxLine)
	for lines.Scan() && ctx.Err() == nil {
		if strings.TrimSpace(lines.Text()) == "" {
			continue
		}
		if err := out.Encode(explainer.Line(ctx, lines.Bytes())); err != nil {
			return err
		}
	}
	return lines.Err()
}
