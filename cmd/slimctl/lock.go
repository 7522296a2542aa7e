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
		Long: `Lock resolves the profile and writes slim.lock beside it: the base's digests, its line, the
paths that the removals came to, the metadata of the directories they lie in, and the
payload's integrity. With it a build reads no base layer, and gives the same image always.
A build believes a lock as it believes the profile: keep both in the same place.

It prints the lock's path on standard output, and on standard error one line for each file,
variable or MCP server of the base that goes and that neither the profile nor the lock
before knows, up to 200: "new upstream, removed: PATH (why)".`,
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
	cmd.Flags().StringVarP(&output, "output", "o", "", "where to write the lock (default: slim.lock beside the profile)")
	addFormat(cmd.Flags(), &format)
	return cmd
}

// locked is the JSON output of lock.
type locked struct {
	Lock string       `json:"lock"`
	New  []build.Gone `json:"new"`
}
