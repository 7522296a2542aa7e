package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/slimctl/slimctl/build/overlays"
	"github.com/slimctl/slimctl/inspect/report"
	"github.com/slimctl/slimctl/internal/version"
)

// versions holds the version of slimctl and that of the browser-shell that it puts into images.
type versions struct {
	version.Info
	Server serverVersion `json:"server"`
}

type serverVersion struct {
	*version.Info
	// Source is the directory from which browser-shell is compiled; empty if slimctl contains the binary.
	Source string `json:"source,omitempty"`
	// Missing is the reason why there is neither a binary nor its source.
	Missing string `json:"missing,omitempty"`
}

func (a *app) version() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of slimctl and of its browser-shell",
		Long: `Version prints the version, the commit and the Go version of this slimctl and of its
browser-shell. A release carries browser-shell; any other slimctl compiles it from source.`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			v := versions{Info: version.Read()}
			source, info, err := overlays.ServerOrigin()
			switch {
			case err != nil:
				v.Server.Missing = err.Error()
			case info != nil:
				of := version.Of(info)
				of.Version, of.Commit, of.Modified = v.Version, v.Commit, v.Modified // built from the same source, without a stamp of its own
				v.Server.Info = &of
			default:
				v.Server.Source = source
			}
			if format == report.JSON {
				return a.printJSON(v)
			}
			return a.printVersions(v)
		},
	}
	addFormat(cmd.Flags(), &format)
	return cmd
}

func (a *app) printVersions(v versions) error {
	server := "compiled from " + v.Server.Source
	switch {
	case v.Server.Missing != "":
		server = "none: " + v.Server.Missing
	case v.Server.Info != nil:
		server = v.Server.String()
	}
	_, err := fmt.Fprintf(a.stdout, "slimctl        %s\nbrowser-shell  %s\n", v.Info, server)
	return err
}
