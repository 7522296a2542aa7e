package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/slimctl/slimctl/server"
	"github.com/slimctl/slimctl/server/policy"
)

// runExplain reads calls or addresses, one JSON object per line, and prints the decision for each. It runs nothing and
// contacts no resolver.
func runExplain(ctx context.Context, args []string, std stdio) error {
	flags := flag.NewFlagSet("explain", flag.ContinueOnError)
	file := policyFlag(flags)
	generation := flags.String("generation", string(policy.Node), "`generation` of agent-browser: 0.8 or native")
	answers := server.Answers{}
	flags.Func("resolve", "`host=addr[,addr]`, or host=NXDOMAIN or TIMEOUT; * is any host; a host that is not named does not exist", func(s string) error {
		host, answer, ok := strings.Cut(s, "=")
		if !ok {
			return errors.New("want HOST=ANSWER, such as example.com=NXDOMAIN")
		}
		return answers.Add(host, answer)
	})
	if err := parseFlags(flags, args, std.err); err != nil {
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
	in := bufio.NewReader(std.in)
	for ctx.Err() == nil {
		line, err := readLine(in)
		if len(bytes.TrimSpace(line)) > 0 {
			if err := out.Encode(explainer.Line(ctx, line)); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readLine reads up to the next newline. It truncates a line longer than server.MaxLine, but to more than
// server.MaxLine bytes.
func readLine(r *bufio.Reader) (line []byte, err error) {
	for {
		part, err := r.ReadSlice('\n')
		if len(line) <= server.MaxLine {
			line = append(line, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return bytes.TrimSuffix(line, []byte("\n")), err
		}
	}
}
