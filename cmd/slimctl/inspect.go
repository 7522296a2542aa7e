package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/term"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/report"
)

// openOptions say how an image is opened to be looked at; its flags are those of every command that looks.
type openOptions struct {
	platforms []string
	progress  string
	registry  registryFlags
	// skip leaves layers unread that the cache doesn't hold; nil reads every one.
	skip func(v1.Hash) bool
	// whole has the layers on this machine read although the cache has their index: they may be gone, or others by now.
	whole bool
}

func (o *openOptions) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&o.platforms, "platform", nil, "platforms, as os/arch (default: all that the image has)")
	flags.StringVar(&o.progress, "progress", "auto", "auto, tty, plain, json or quiet")
	o.registry.add(cmd)
}

// opened is an image with every platform that was asked for.
type opened struct {
	source *image.Source
	images []*inspect.Image
}

// openImage opens an image and reads the surface of each platform. What the cache doesn't hold is read once.
func (a *app) openImage(ctx context.Context, o openOptions, reference string) (out opened, err error) {
	bars, err := a.showProgress(o.progress)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, bars.Close()) }()
	registry, err := a.registryOptions(o.registry, bars)
	if err != nil {
		return out, err
	}
	src, err := a.open(ctx, reference, nil, registry)
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
			if err == nil && o.whole {
				err = src.CheckLayers(gctx, img, bars)
			}
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

// reportFormats are those of --format.
var reportFormats = []string{report.Text, report.JSON, report.Markdown, report.HTML}

// reportFlags say how a report is written, and where to.
type reportFlags struct {
	format, file, color string
	options             report.Options
}

func (f *reportFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.format, "format", report.Text, "text, json, markdown or html")
	flags.StringVarP(&f.file, "output", "o", "", "write to this `FILE` instead of standard output")
	flags.StringVar(&f.color, "color", "auto", "colour the text: auto (unless NO_COLOR is set), always or never")
}

// parse checks the flags, and looks at what standard output is. A file gets no colours.
func (f *reportFlags) parse(stdout io.Writer) error {
	if err := checkFormat(f.format, reportFormats); err != nil {
		return err
	}
	terminal, width := false, 0
	if isFile(f.file) {
		stdout = nil
	}
	if out, ok := stdout.(*os.File); ok && term.IsTerminal(int(out.Fd())) {
		terminal = true
		width, _, _ = term.GetSize(int(out.Fd())) // some have no size
	}
	if width <= 0 {
		width, _ = strconv.Atoi(os.Getenv("COLUMNS"))
	}
	f.options.Width = min(max(width, 0), maxWidth)
	switch f.color {
	case "auto":
		f.options.Color = terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	case "always":
		f.options.Color = !isFile(f.file)
	case "never":
		f.options.Color = false
	default:
		return usage(fmt.Errorf("--color %q: want auto, always or never", f.color))
	}
	return nil
}

// maxWidth is more columns than a terminal has.
const maxWidth = 1000

// isFile tells the name of a file from that of standard output.
func isFile(output string) bool { return output != "" && output != "-" }

// writeReport gives write the file that -o names, whole or not at all, or standard output.
func (a *app) writeReport(file string, write func(io.Writer) error) error {
	if !isFile(file) {
		return write(a.stdout)
	}
	return image.WriteFile(file, 0o644, write)
}

func checkFormat(format string, known []string) error {
	if !slices.Contains(known, format) {
		return usage(fmt.Errorf("--format %q: want one of %v", format, known))
	}
	return nil
}

func (a *app) inspect() *cobra.Command {
	var o openOptions
	var f reportFlags
	cmd := &cobra.Command{
		Use:   "inspect IMAGE",
		Short: "Print what an image exposes, and where its bytes are",
		Long: `Inspect reads an image and prints its surface: what it runs, what answers from outside and what
that leads to, which variables change it, who may become root, which packages it has and where
its bytes are. For the forms of IMAGE see
slimctl help images. Nothing is
unpacked and nothing run; each layer is read once and remembered by its digest.`,
		Example: `  slimctl inspect standin:B
  slimctl inspect --format html -o surface.html oci:out
  slimctl inspect --format json oci:out | jq '.platforms[0].programs[].name'`,
		Args: oneArg("the image"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.parse(a.console); err != nil {
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
			return a.writeReport(f.file, func(w io.Writer) error { return report.Surfaces(w, f.format, surfaces, f.options) })
		},
	}
	o.add(cmd)
	f.add(cmd)
	cmd.Flags().BoolVar(&f.options.All, "all", false, "print every route, switch, user, package and layer in full")
	return cmd
}
