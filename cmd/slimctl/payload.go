package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/slimctl/slimctl/build/overlays"
)

func (a *app) payload() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "payload",
		Short: "Fetch the agent-browser runtime",
		Args:  cobra.ArbitraryArgs,
		RunE:  group,
	}
	var nameOrFile, output string
	fetch := &cobra.Command{
		Use:   "fetch",
		Short: "Fetch a profile's payload by npm into the cache, or into a directory for --payload",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := load(nameOrFile, nil)
			if err != nil {
				return err
			}
			want := p.Payload.AgentBrowser
			log := func(format string, args ...any) { fmt.Fprintf(a.stderr, format+"\n", args...) }
			payload, err := overlays.Fetch(cmd.Context(), want.Version, want.Integrity, overlays.Options{CacheDir: a.cacheDir, Log: log})
			if err != nil {
				return err
			}
			if output != "" {
				if err := payload.Export(output); err != nil {
					return err
				}
			}
			_, err = fmt.Fprintf(a.stdout, "agent-browser@%s %s\n", payload.Version, payload.Integrity)
			return err
		},
	}
	fetch.Flags().StringVar(&nameOrFile, "profile", "l0", "profile: a built-in name, or a file")
	fetch.Flags().StringVarP(&output, "output", "o", "", "directory to write the payload to")
	cmd.AddCommand(fetch)
	return cmd
}
