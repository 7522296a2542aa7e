package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/slimctl/slimctl/slim"
)

func (a *app) lock() *cobra.Command {
	f := &recipeFlags{}
	var output string
	cmd := &cobra.Command{
		Use:   "lock",
		Short: "Pin the base and all that resolving found in it",
		Long: `Lock resolves the profile and writes slim.lock beside it: the base's digests, its line, the
paths that the removals came to, the metadata of the directories they lie in, and the
payload's integrity. With it a build reads no base layer, and gives the same image always.
A build believes a lock as it believes the profile: keep both in the same place.

It prints the lock's path on standard output.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := f.options(a)
			if err != nil {
				return err
			}
			o.Lock, o.NoLock = "", true // the base is asked itself
			r, err := slim.Resolve(cmd.Context(), o)
			if err != nil {
				return err
			}
			if output == "" {
				output = f.lock
			}
			if output == "" {
				output = slim.LockFile(f.profile)
			}
			if err := r.Lock.Write(output); err != nil {
				return err
			}
			_, err = fmt.Fprintln(a.stdout, output)
			return err
		},
	}
	f.add(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "", "where to write the lock (default: slim.lock beside the profile)")
	return cmd
}
