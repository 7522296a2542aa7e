package main

import (
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/inspect/report"
	"github.com/slimctl/slimctl/slim"
)

func (a *app) profile() *cobra.Command {
	return commandGroup("profile", "Print and check profiles", a.profileList(), a.profileShow(), a.profileValidate())
}

func (a *app) profileList() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the built-in profiles",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			list, err := slim.Profiles()
			if err != nil {
				return err
			}
			if format == report.JSON {
				return a.printJSON(list)
			}
			t := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
			for _, s := range list {
				fmt.Fprintf(t, "%s\t%s\n", s.Name, s.Description)
			}
			return t.Flush()
		},
	}
	addFormat(cmd.Flags(), &format)
	return cmd
}

func (a *app) profileShow() *cobra.Command {
	var set []string
	cmd := &cobra.Command{
		Use:   "show NAME|FILE",
		Short: "Print a profile with all that it extends merged in",
		Args:  oneArg("a profile"),
		RunE: func(_ *cobra.Command, args []string) error {
			p, err := slim.LoadProfile(args[0], set)
			if err != nil {
				return err
			}
			data, err := p.Marshal()
			if err != nil {
				return err
			}
			_, err = a.stdout.Write(data)
			return err
		},
	}
	addSetFlags(cmd.Flags(), &set)
	return cmd
}

func (a *app) profileValidate() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "validate NAME|FILE",
		Short: "Check a profile and print every mistake in it",
		Args:  oneArg("a profile"),
		RunE: func(_ *cobra.Command, args []string) error {
			p, err := slim.LoadProfile(args[0], nil)
			var problems profile.Errors
			switch {
			case format == report.JSON && errors.As(err, &problems):
				return errors.Join(a.printJSON(map[string]any{"profile": args[0], "valid": false, "problems": problemList(problems)}), err)
			case err != nil:
				return err
			case format == report.JSON:
				return a.printJSON(map[string]any{"profile": args[0], "valid": true, "digest": p.Digest()})
			}
			_, err = fmt.Fprintf(a.stdout, "%s: valid (%s)\n", args[0], p.Digest())
			return err
		},
	}
	addFormat(cmd.Flags(), &format)
	return cmd
}

// problem is the JSON form of an error in a profile.
type problem struct {
	Position string `json:"position"`
	Path     string `json:"path,omitempty"`
	Message  string `json:"message"`
	Hint     string `json:"hint,omitempty"`
}

func problemList(errs profile.Errors) (out []problem) {
	for _, e := range errs {
		out = append(out, problem{e.Position.String(), e.Path, e.Msg, e.Hint})
	}
	return out
}
