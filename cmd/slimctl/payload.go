package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/slimctl/slimctl/build/overlays"
	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/internal/rawname"
	"github.com/slimctl/slimctl/slim"
)

func (a *app) payload() *cobra.Command {
	return commandGroup("payload", "Manage the agent-browser runtime", a.payloadFetch(), a.payloadUpdate())
}

func (a *app) payloadOptions() overlays.Options {
	return overlays.Options{CacheDir: a.cacheDir, Log: func(format string, args ...any) {
		fmt.Fprintln(a.stderr, rawname.Line(fmt.Sprintf(format, args...)))
	}}
}

func (a *app) payloadFetch() *cobra.Command {
	var nameOrFile, output string
	cmd := &cobra.Command{
		Use:   "fetch",
		Short: "Fetch a profile's agent-browser by npm",
		Long: `Fetch has npm fetch the agent-browser version that a profile names. It checks the integrity
that the profile pins, and keeps the payload in the cache. --output also writes a directory
for --payload on a machine without npm.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := slim.LoadProfile(nameOrFile, nil)
			if err != nil {
				return err
			}
			want := p.Payload.AgentBrowser
			payload, err := overlays.Fetch(cmd.Context(), want.Version, want.Integrity, a.payloadOptions())
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
	cmd.Flags().StringVar(&nameOrFile, "profile", "l0", "profile: a built-in name, or a file")
	cmd.Flags().StringVarP(&output, "output", "o", "", "directory to write the payload to")
	return cmd
}

func (a *app) payloadUpdate() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "update VERSION",
		Short: "Write an agent-browser version into a profile file",
		Long: `Update writes a version of agent-browser and its integrity into a profile file, and changes
nothing else in it. The integrity comes from slimctl's own lock, or from npm's registry.
Run slimctl lock afterwards, and look at the changes with slimctl diff.`,
		Example: `  slimctl payload update 0.41.2 --profile my.yaml
  slimctl lock --profile my.yaml`,
		Args: oneArg("a version"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if file == "" {
				return usageError(errors.New("--profile is missing: the profile file to change"))
			}
			if !profile.IsFile(file) {
				return usageError(fmt.Errorf("--profile %s is built in; give a file, such as one with `extends: %[1]s`", file))
			}
			if _, err := slim.LoadProfile(file, nil); err != nil {
				return err
			}
			integrity, err := overlays.Integrity(cmd.Context(), args[0], a.payloadOptions())
			if err != nil {
				return err
			}
			if err := rewriteFile(file, func(data []byte) ([]byte, error) {
				return profile.Pin(file, data, args[0], integrity)
			}); err != nil {
				return err
			}
			fmt.Fprintf(a.stderr, "%s was changed; run `slimctl lock --profile %[1]s`, with the flags that you gave it before\n", file)
			_, err = fmt.Fprintf(a.stdout, "agent-browser@%s %s\n", args[0], integrity)
			return err
		},
	}
	cmd.Flags().StringVar(&file, "profile", "", "profile `FILE` to change")
	return cmd
}

// rewriteFile replaces a file atomically by the result of change. It follows symbolic links.
func rewriteFile(file string, change func([]byte) ([]byte, error)) error {
	file, err := filepath.EvalSymlinks(file)
	if err != nil {
		return err
	}
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	text, err := change(old)
	if err != nil {
		return err
	}
	return image.WriteBytes(file, info.Mode().Perm(), text)
}
