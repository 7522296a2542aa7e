package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/spf13/cobra"

	"github.com/slimctl/slimctl/internal/standin"
	"github.com/slimctl/slimctl/internal/standin/live"
)

func (a *app) standin() *cobra.Command {
	var o standin.Options
	var output string
	var boots bool
	cmd := &cobra.Command{
		Use:    "standin",
		Hidden: true, // for tests and benchmarks; users write --base standin:B
		Short:  "Write a stand-in of the AIO base, to try slimctl with",
		Long: `Standin writes an OCI layout that is like the AIO Sandbox: its files, services and routes,
and little of its size. A build needs only --base standin:B; this command is for tests.

The image boots with --live. For another platform than this machine's, --live needs
qemu-user-static with its binfmt_misc entry, and arch-test.`,
		Example: `  slimctl standin -o base
  slimctl standin --line A --live -o base
  slimctl standin --live --platform linux/arm64 -o arm64`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output == "" {
				return usageError(errors.New("--output is missing: the directory for the OCI layout"))
			}
			digest, err := a.writeStandin(cmd.Context(), output, o, boots)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.stdout, "oci:%s@%s\n", output, digest)
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&output, "output", "o", "", "directory for the OCI layout")
	o.Line = "B"
	addChoice(flags, &o.Line, "line", "the base line: A, B or C", "A", "B", "C")
	flags.StringSliceVar(&o.Platforms, "platform", nil, "platforms (default: both; with --live this machine's)")
	flags.Int64Var(&o.Weight, "weight", 0, "extra bytes of compressed layers, per platform, about")
	flags.BoolVar(&boots, "live", false, "on a real Debian 12, so that it boots (takes root and mmdebstrap)")
	return cmd
}

func (a *app) writeStandin(ctx context.Context, dir string, o standin.Options, boots bool) (v1.Hash, error) {
	if !boots {
		return standin.Write(ctx, dir, o)
	}
	arch := runtime.GOARCH
	if len(o.Platforms) == 1 {
		arch = strings.TrimPrefix(o.Platforms[0], "linux/")
	}
	if !live.Ready(a.cacheDir, arch) {
		fmt.Fprintln(a.stderr, live.FirstTime)
	}
	return live.Write(ctx, a.cacheDir, dir, o)
}
