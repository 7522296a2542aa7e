package main

import (
	"cmp"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/inspect/report"
	"github.com/slimctl/slimctl/internal/rawname"
	"github.com/slimctl/slimctl/slim"
)

func (a *app) lock() *cobra.Command {
	f := &recipeFlags{}
	var output, format string
	cmd := &cobra.Command{
		Use:   "lock",
		Short: "Pin the base and all that resolving found in it",
		Long: `Lock resolves the profile and writes slim.lock beside it. The lock pins the base's digests
and line, the removed paths, their directories' metadata, and the payload's integrity.

A build with a lock reads no base layer and always gives the same image. It trusts a
lock as it trusts the profile, so keep both in the same place.

Lock prints the lock's path on stdout. On stderr it lists new files, variables and MCP
servers of the base that the image lacks, up to 200: "new upstream, removed: PATH (why)".`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := f.options(a)
			if err != nil {
				return err
			}
			o.Lock, o.NoLock, o.Before = "", true, cmp.Or(output, f.Lock) // resolves against the base itself; the old lock is for comparison
			r, err := slim.Resolve(cmd.Context(), o)
			if err != nil {
				return err
			}
			output = cmp.Or(output, f.Lock, slim.LockFile(f.Profile))
			if err := r.Lock.Write(output); err != nil {
				return err
			}
			if format == report.JSON {
				return a.printJSON(rawname.Quoted(locked{Lock: output, New: r.NewUpstream()}))
			}
			r.LogNewUpstream(o.Log)
			_, err = fmt.Fprintln(a.stdout, output)
			return err
		},
	}
	f.addTo(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "", "`FILE` for the lock (default: slim.lock beside the profile)")
	addFormat(cmd.Flags(), &format)
	return cmd
}

// locked is the JSON output of lock.
type locked struct {
	Lock string       `json:"lock"`
	New  []build.Gone `json:"new"`
}
