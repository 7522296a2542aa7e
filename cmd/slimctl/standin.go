package main

import (
	"context"
	"errors"
	"fmt"

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
		Use:   "standin",
		Short: "Write a stand-in of the AIO base, to try slimctl with",
		Long: `Standin writes an OCI layout that is like the AIO Sandbox: its files, services and routes, and little
of its size. For a build --base standin:B is enough, and this command is for other tools. With
--live the image boots.`,
		Example: `  slimctl standin -o base
  slimctl standin --line A --live -o base`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output == "" {
				return usage(errors.New("--output is missing: the directory for the OCI layout"))
			}
			if boots && len(o.Platforms) > 0 {
				return usage(fmt.Errorf("--platform does not go with --live: a live stand-in is always for this machine's %s", live.Platform))
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
	flags.StringSliceVar(&o.Platforms, "platform", nil, "platforms (default: linux/amd64,linux/arm64)")
	flags.Int64Var(&o.Weight, "weight", 0, "extra bytes of compressed layers, per platform, about")
	flags.BoolVar(&boots, "live", false, "on a real Debian 12, so that it boots (takes root and mmdebstrap)")
	return cmd
}

func (a *app) writeStandin(ctx context.Context, dir string, o standin.Options, boots bool) (v1.Hash, error) {
	if !boots {
		return standin.Write(ctx, dir, o)
	}
	if !live.Ready(a.cacheDir) {
		fmt.Fprintln(a.stderr, live.FirstTime)
	}
	return live.Write(ctx, a.cacheDir, dir, o)
}
