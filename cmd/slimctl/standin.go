package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/slimctl/slimctl/internal/standin"
)

func (a *app) standin() *cobra.Command {
	var o standin.Options
	var output string
	cmd := &cobra.Command{
		Use:   "standin",
		Short: "Write a stand-in of the AIO base, for trying slimctl without a registry",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output == "" {
				return usage(errors.New("--output is missing: the directory for the OCI layout"))
			}
			if err := checkLine(o.Line); err != nil {
				return err
			}
			digest, err := standin.Write(cmd.Context(), output, o)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.stdout, "oci:%s@%s\n", output, digest)
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&output, "output", "o", "", "directory for the OCI layout")
	flags.StringVar(&o.Line, "line", "B", "the base line: A, B or C")
	flags.StringSliceVar(&o.Platforms, "platform", nil, "platforms (default: linux/amd64,linux/arm64)")
	flags.Int64Var(&o.Weight, "weight", 0, "extra bytes of compressed layers, per platform, about")
	return cmd
}

func checkLine(line string) error {
	if line != "A" && line != "B" && line != "C" {
		return usage(fmt.Errorf("stand-in: no line %q; there are A, B and C", line))
	}
	return nil
}
