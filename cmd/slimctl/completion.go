package main

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/slimctl/slimctl/build/overlays"
	"github.com/slimctl/slimctl/inspect/sandbox"
	"github.com/slimctl/slimctl/slim"
)

// imageForms holds the prefixes of image names that aren't registry references; see imagesTopic.
var imageForms = []string{
	"standin:A", "standin:B", "standin:C", "standin-live:A", "standin-live:B", "standin-live:C", "oci:", "oci-archive:", "docker-archive:", "docker-daemon:",
}

// addCompletions registers shell completion for the flags and arguments of root and every command below it.
func addCompletions(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		switch {
		case f.Name == "profile":
			_ = cmd.RegisterFlagCompletionFunc(f.Name, completeProfile)
		case f.Name == "base":
			_ = cmd.RegisterFlagCompletionFunc(f.Name, completeImage)
		case f.Name == "platform":
			_ = cmd.RegisterFlagCompletionFunc(f.Name, completeWords([]string{"linux/amd64", "linux/arm64"}))
		case f.Name == "output" && cmd.Name() == "build":
			_ = cmd.RegisterFlagCompletionFunc(f.Name, completeImageOutput)
		case f.Name == "network":
			_ = cmd.RegisterFlagCompletionFunc(f.Name, completeWords([]string{sandbox.NetworkEgress, sandbox.NetworkNone}))
		default:
			if c, ok := f.Value.(interface{ choices() []string }); ok {
				_ = cmd.RegisterFlagCompletionFunc(f.Name, completeWords(c.choices()))
			}
		}
	})
	use := strings.Fields(cmd.Use)
	switch {
	case cmd.ValidArgsFunction != nil || len(use) < 2:
	case use[1] == "IMAGE":
		cmd.ValidArgsFunction = firstArgs(1, completeImage)
	case use[1] == "BASE":
		cmd.ValidArgsFunction = firstArgs(2, completeImage)
	case use[1] == "NAME|FILE":
		cmd.ValidArgsFunction = firstArgs(1, completeProfile)
	case use[1] == "VERSION":
		cmd.ValidArgsFunction = firstArgs(1, completeVersion)
	}
	for _, c := range cmd.Commands() {
		addCompletions(c)
	}
}

func completeWords(words []string) cobra.CompletionFunc {
	return cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
}

// firstArgs returns a completion for the first n arguments; later ones complete to nothing.
func firstArgs(n int, complete cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= n {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return complete(cmd, args, begun)
	}
}

// completeProfile offers the built-in profiles, and files if none of them fits.
func completeProfile(*cobra.Command, []string, string) (out []string, _ cobra.ShellCompDirective) {
	list, err := slim.Profiles()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	for _, p := range list {
		out = append(out, cobra.CompletionWithDesc(p.Name, p.Description))
	}
	return out, cobra.ShellCompDirectiveDefault
}

func completeImage(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return imageForms, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
}

func completeImageOutput(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return []string{"type=oci,dest=", "type=oci-archive,dest=", "type=docker-archive,dest="}, cobra.ShellCompDirectiveNoSpace
}

func completeVersion(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return overlays.Known(), cobra.ShellCompDirectiveNoFileComp
}
