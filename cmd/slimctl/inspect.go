package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/report"
	"github.com/slimctl/slimctl/internal/progress"
)

// openOptions say how an image is opened to be looked at; its flags are those of every command that looks.
type openOptions struct {
	platforms []string
	progress  string
	insecure  bool
	// skip leaves layers unread that the cache doesn't hold; nil reads every one.
	skip func(v1.Hash) bool
}

func (o *openOptions) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&o.platforms, "platform", nil, "platforms, as os/arch (default: all that the image has)")
	flags.StringVar(&o.progress, "progress", "auto", "auto, tty, plain, json or quiet")
	flags.BoolVar(&o.insecure, "insecure", false, "allow plain HTTP to any registry")
}

// opened is an image with every platform that was asked for.
type opened struct {
	source *image.Source
	images []*inspect.Image
}

// openImage opens an image and reads the surface of each platform. What the cache doesn't hold is read once.
func (a *app) openImage(ctx context.Context, o openOptions, reference string) (out opened, err error) {
	bars, err := progress.New(o.progress, a.stderr)
	if err != nil {
		return out, usage(err)
	}
	defer func() { err = errors.Join(err, bars.Close()) }()
	src, err := a.open(ctx, reference, nil, image.Options{Progress: bars, CacheDir: a.cacheDir, Insecure: o.insecure, Keychain: keychain{}})
	if err != nil {
		return out, err
	}
	platforms := src.Platforms()
	if len(o.platforms) > 0 {
		if platforms, err = choosePlatforms(o.platforms); err != nil {
			return out, err
		}
	}
	images, err := src.Images(platforms...)
	if err != nil {
		return out, err
	}
	out = opened{source: src, images: make([]*inspect.Image, len(images))}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, img := range images {
		g.Go(func() error {
			files, err := tree.Cache{Dir: a.cacheDir}.Open(gctx, img, tree.Options{Progress: bars, Skip: o.skip})
			if err == nil {
				out.images[i], err = inspect.Read(gctx, reference, img, files)
			}
			if err != nil {
				return fmt.Errorf("%s, %s: %w", reference, platforms[i], err)
			}
			out.images[i].Platform = platforms[i]
			out.images[i].Surface.Platform = platforms[i].String()
			return nil
		})
	}
	return out, g.Wait()
}

func choosePlatforms(flags []string) ([]v1.Platform, error) {
	var out []v1.Platform
	for _, s := range flags {
		p, err := v1.ParsePlatform(s)
		if err != nil || p.OS == "" || p.Architecture == "" {
			return nil, usage(fmt.Errorf("--platform %q: a platform is os/arch, such as linux/arm64", s))
		}
		out = append(out, *p)
	}
	return out, nil
}

// writeReport gives write the file that -o names, whole or not at all, or standard output.
func (a *app) writeReport(file string, write func(io.Writer) error) error {
	if file == "" || file == "-" {
		return write(a.stdout)
	}
	return image.WriteFile(file, 0o644, write)
}

// reportFormats are those of --format.
var reportFormats = []string{report.Text, report.JSON, report.Markdown, report.HTML}

func checkFormat(format string, known []string) error {
	if !slices.Contains(known, format) {
		return usage(fmt.Errorf("--format %q: want one of %v", format, known))
	}
	return nil
}

func (a *app) inspect() *cobra.Command {
	var o openOptions
	var format, file string
	var options report.Options
	cmd := &cobra.Command{
		Use:   "inspect IMAGE",
		Short: "Print what an image exposes: programs, routes, MCP servers, switches, privileges, packages, sizes",
		Long: `Inspect reads an image and prints its surface: what it runs, what answers from outside and what
that leads to, which variables change it, who may become root, which packages it has and where
its bytes are. IMAGE is what build's --base takes, or an image that build wrote. Nothing is
unpacked and nothing run; each layer is read once and remembered by its digest.`,
		Example: `  slimctl inspect standin:B
  slimctl inspect --format html -o surface.html oci:out
  slimctl inspect --format json registry.example/team/slim:1 | jq '.platforms[0].programs[].name'`,
		Args: oneArg("the image"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkFormat(format, reportFormats); err != nil {
				return err
			}
			opened, err := a.openImage(cmd.Context(), o, args[0])
			if err != nil {
				return err
			}
			var surfaces []*inspect.Surface
			for _, img := range opened.images {
				surfaces = append(surfaces, img.Surface)
			}
			return a.writeReport(file, func(w io.Writer) error { return report.Surfaces(w, format, surfaces, options) })
		},
	}
	o.add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&format, "format", report.Text, "text, json, markdown or html")
	flags.StringVarP(&file, "output", "o", "", "write to this `FILE` instead of standard output")
	return cmd
}
