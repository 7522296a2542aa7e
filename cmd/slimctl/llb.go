package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/slimctl/slimctl/build"
	slimllb "github.com/slimctl/slimctl/build/llb"
	"github.com/slimctl/slimctl/slim"
)

func (a *app) llb() *cobra.Command {
	f := &recipeFlags{}
	var form, contextDir string
	cmd := &cobra.Command{
		Use:   "llb",
		Short: "Render the recipe as BuildKit LLB",
		Long: `LLB prints the definition for one platform, for ` + "`" + `buildctl build` + "`" + `. The definition reads the
directory that --context writes: give it to buildctl as --local slimctl=DIR. The image
config, annotations and time are in DIR/linux-amd64/output, for buildctl's --output.

The form "merge" keeps the base lazy: BuildKit fetches none of its layers. The form "simple"
applies file operations to the base, as a Dockerfile does: BuildKit fetches and unpacks it.
For profiles with keep, such as l1, both forms copy the kept files from the base.`,
		Example: `  slimctl llb --platform linux/amd64 | buildctl debug dump-llb --dot
  slimctl llb --platform linux/amd64 --context ctx > slim.pb
  buildctl build --local slimctl=ctx < slim.pb \
    --output "type=oci,dest=slim.tar,$(cat ctx/linux-amd64/output)"`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.runLLB(cmd.Context(), f, slimllb.Form(form), contextDir)
		},
	}
	f.addLock(cmd)
	addChoice(cmd.Flags(), &form, "form", "", string(slimllb.Merge), string(slimllb.Simple))
	cmd.Flags().StringVar(&contextDir, "context", "", "write the local directory that the definition reads")
	return cmd
}

func (a *app) runLLB(ctx context.Context, f *recipeFlags, form slimllb.Form, contextDir string) error {
	if out, ok := a.console.(*os.File); ok && term.IsTerminal(int(out.Fd())) {
		return usageError(errors.New("a definition is binary: send it to `buildctl build`, or to `buildctl debug dump-llb`"))
	}
	o, err := f.options(a)
	if err != nil {
		return err
	}
	r, err := slim.Resolve(ctx, o)
	if err != nil {
		return err
	}
	if len(r.Recipes) != 1 {
		return usageError(errors.New("a definition is for one platform; choose it with --platform"))
	}
	if contextDir != "" {
		if err := slimllb.WriteContext(contextDir, r.Recipes, r.Annotations(build.Annotations{}).Manifest); err != nil {
			return err
		}
	}
	render := slimllb.Options{Form: form}
	if dir, local := r.Source.Layout(); local {
		base := slimllb.LocalBase(r.Recipes[0])
		render.Base = &base
		o.Log("the base is read from the client: add --oci-layout %s=%s to buildctl", slimllb.BaseStore, filepath.Clean(dir))
	}
	def, err := slimllb.Marshal(ctx, r.Recipes[0], render)
	if err != nil {
		return err
	}
	return slimllb.WritePB(a.stdout, def)
}
