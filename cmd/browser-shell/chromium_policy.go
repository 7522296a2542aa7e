package main

import (
	"context"
	"flag"
	"fmt"
	"strings"

	"github.com/slimctl/slimctl/server/egress"
	"github.com/slimctl/slimctl/server/policy"
)

func runChromiumPolicy(_ context.Context, args []string, std stdio) error {
	flags := flag.NewFlagSet("chromium-policy", flag.ContinueOnError)
	file := policyFlag(flags)
	format := flags.String("format", "managed", "managed: JSON for Chromium's policies/managed directory; flags: its command line, a flag a line")
	if err := parseFlags(flags, args, std.err); err != nil {
		return err
	}
	if *format != "managed" && *format != "flags" {
		fmt.Fprintf(std.err, "browser-shell chromium-policy: no format %q; use managed or flags\n", *format)
		return errUsage
	}
	p, err := policy.Load(*file)
	if err != nil {
		return err
	}
	text := []byte(strings.Join(egress.Flags(p), "\n") + "\n")
	if *format == "managed" {
		if text, err = egress.Managed(p); err != nil {
			return err
		}
	}
	_, err = std.out.Write(text)
	return err
}
