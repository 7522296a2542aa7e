package main

import (
	"context"
	"io"
	"os"
	"strconv"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/report"
	"github.com/slimctl/slimctl/internal/progress"
	"github.com/slimctl/slimctl/slim"
)

// imageFlags holds the flags of every command that reads an image: platforms, progress and registry access.
type imageFlags struct {
	platforms []string
	progress  string
	registry  registryFlags
}

func (f *imageFlags) addTo(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringSliceVar(&f.platforms, "platform", nil, "platforms as `OS/ARCH` (default: all of the image)")
	addChoice(flags, &f.progress, "progress", "", progress.Modes...)
	f.registry.addTo(cmd)
}

func (a *app) inspectImage(ctx context.Context, f imageFlags, reference string) (*slim.Inspected, error) {
	access, err := a.access(f.registry, f.progress)
	if err != nil {
		return nil, err
	}
	return slim.Inspect(ctx, slim.InspectOptions{Access: access, Image: reference, Platforms: f.platforms})
}

// reportFlags holds the flags for a report's format and destination.
type reportFlags struct {
	format, file, color string
	options             report.Options
}

func (f *reportFlags) addTo(cmd *cobra.Command) {
	flags := cmd.Flags()
	addChoice(flags, &f.format, "format", "", report.Text, report.JSON, report.Markdown, report.HTML)
	flags.StringVarP(&f.file, "output", "o", "", "`FILE` to write instead of stdout")
	addChoice(flags, &f.color, "color", "colour the text: auto (unless NO_COLOR is set), always or never", "auto", "always", "never")
}

// detectTerminal sets the report's width and colours from standard output. A report to a file has no colours.
func (f *reportFlags) detectTerminal(stdout io.Writer) {
	terminal, width := false, 0
	if isFile(f.file) {
		stdout = nil
	}
	if out, ok := stdout.(*os.File); ok && term.IsTerminal(int(out.Fd())) {
		terminal = true
		width, _, _ = term.GetSize(int(out.Fd())) // fails on a terminal without a size
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
	}
}

// maxWidth is the limit for the width of a report, in columns; COLUMNS may hold any number.
const maxWidth = 1000

// isFile reports whether the value of -o names a file; "" and "-" are standard output.
func isFile(output string) bool { return output != "" && output != "-" }

// writeReport calls write with the file that -o names, or with standard output. The file appears complete or not at
// all.
func (a *app) writeReport(file string, write func(io.Writer) error) error {
	if !isFile(file) {
		return write(a.stdout)
	}
	return image.WriteFile(file, 0o644, write)
}

func (a *app) inspect() *cobra.Command {
	var i imageFlags
	var f reportFlags
	cmd := &cobra.Command{
		Use:   "inspect IMAGE",
		Short: "Print what an image exposes, and where its bytes are",
		Long: `Inspect prints the surface of an image: programs, routes, listeners, variables, users who
can become root, packages and sizes. It unpacks nothing and starts nothing. It reads each
layer once and remembers the result by the layer's digest.

See slimctl help images for the forms of IMAGE.`,
		Example: `  slimctl inspect standin:B
  slimctl inspect --format html -o surface.html oci:out
  slimctl inspect --format json oci:out | jq '.platforms[0].programs[].name'`,
		Args: oneArg("the image"),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.detectTerminal(a.console)
			opened, err := a.inspectImage(cmd.Context(), i, args[0])
			if err != nil {
				return err
			}
			var surfaces []*inspect.Surface
			for _, img := range opened.Images {
				surfaces = append(surfaces, img.Surface)
			}
			return a.writeReport(f.file, func(w io.Writer) error { return report.Surfaces(w, f.format, surfaces, f.options) })
		},
	}
	i.addTo(cmd)
	f.addTo(cmd)
	cmd.Flags().BoolVar(&f.options.All, "all", false, "print every route, switch, user, package and layer in full")
	return cmd
}
