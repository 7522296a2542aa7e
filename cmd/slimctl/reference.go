package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// man returns the hidden command that writes the man pages; `make release` uses it.
func (a *app) man() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "Write the manual pages of all commands",
		Hidden: true,
		Args:   oneArg("a directory"),
		RunE: func(cmd *cobra.Command, args []string) error {
			date, err := readSourceDateEpoch()
			if err != nil {
				return err
			}
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true
			header := &doc.GenManHeader{Section: "1", Source: "slimctl", Manual: "slimctl"}
			if !date.IsZero() {
				header.Date = &date
			}
			if err := doc.GenManTree(root, header, args[0]); err != nil {
				return err
			}
			_, err = fmt.Fprintln(a.stdout, args[0])
			return err
		},
	}
}
