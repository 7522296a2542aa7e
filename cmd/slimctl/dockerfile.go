package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/slimctl/slimctl/build/dockerfile"
)

func (a *app) dockerfile() *cobra.Command {
	f := &recipeFlags{}
	var output string
	var o dockerfile.Options
	cmd := &cobra.Command{
		Use:   "dockerfile",
		Short: "Render the recipe as a Dockerfile with its whole context",
		Long: `Dockerfile writes a directory that ` + "`" + `docker buildx bake` + "`" + ` can build. It holds a Dockerfile, an
archive for each overlay, .dockerignore and docker-bake.hcl. A base in an OCI layout becomes
a named context of the build. The command prints the directory on stdout.`,
		Example: `  slimctl dockerfile -o ctx
  cd ctx && docker buildx bake --push --set '*.tags=registry.example/slim:1'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if output == "" {
				return usageError(errors.New("--output is missing: the directory to write"))
			}
			r, err := a.resolve(cmd.Context(), f)
			if err != nil {
				return err
			}
			if dir, local := r.Source.Layout(); local {
				if o.Layout, err = filepath.Abs(dir); err != nil {
					return err
				}
			}
			files, err := dockerfile.Render(r.Recipes, o)
			if err != nil {
				return err
			}
			if err := files.Write(output); err != nil {
				return err
			}
			_, err = fmt.Fprintln(a.stdout, output)
			return err
		},
	}
	f.addLock(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "", "directory to write")
	cmd.Flags().StringVar(&o.Base, "from", "", "registry reference of the base for FROM (default: --base's)")
	return cmd
}
