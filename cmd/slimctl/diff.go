package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"

	"github.com/slimctl/slimctl/inspect/diff"
	"github.com/slimctl/slimctl/inspect/report"
	"github.com/slimctl/slimctl/inspect/verify"
	"github.com/slimctl/slimctl/internal/version"
	"github.com/slimctl/slimctl/slim"
)

// Exit codes of diff --exit-code; the values are those of diff(1).
const (
	exitDifferent = 1
	exitTrouble   = 2
)

type diffFlags struct {
	imageFlags
	report        reportFlags
	text, profile string
	link          string
	options       diff.Options
	exitCode      bool
}

func (a *app) diff() *cobra.Command {
	f := &diffFlags{}
	cmd := &cobra.Command{
		Use:   "diff BASE SLIM [-- PATH...]",
		Short: "Compare two images: files, config, surface, sizes",
		Long: `Diff compares two images platform by platform: files, config, surface and sizes. It unpacks
nothing. A layer that both images have is not compared, and any other is read once.

PATH selects files, and directories with their content. It may be a glob with * ? [a-z]
{a,b} and **. A path that matches nothing in either image is an error.

Marks of files:
  +  only in SLIM      -  only in BASE
  M  other content or link target      T  another type
  U  only other mode, owner, extended attributes (--times: modification time)

--exit-code gives status 0 if the images are the same, and 2 after an error. Status 1 means
that they differ or that one lacks a platform. If paths are given, only their files count.
Layers, names, digests and times do not count. See slimctl help images for the forms of BASE and SLIM.`,
		Example: `  slimctl diff standin:B oci:out
  slimctl diff --profile l0 --format html -o diff.html standin:B oci:out
  slimctl diff --profile l0 --format markdown --link "$REPORT_URL" base:1 slim:1
  slimctl diff --exit-code oci:one oci:other -- /opt/gem '**/*.conf'
  slimctl diff --format json standin:B oci:out | jq '.platforms[].surface'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				f.options.Paths, args = args[dash:], args[:dash]
			}
			if len(args) != 2 {
				return usageError(fmt.Errorf("%s takes two arguments, the base and the slim image, and got %d; paths come after --", cmd.CommandPath(), len(args)))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			different, err := a.diffImages(cmd.Context(), args[0], args[1], f)
			switch {
			case !f.exitCode || cmd.Context().Err() != nil:
				return err
			case err != nil:
				reportError(a.stderr, cmd, err)
				return statusError{code: exitTrouble}
			case different:
				return statusError{code: exitDifferent}
			}
			return nil
		},
	}
	f.addTo(cmd)
	flags := cmd.Flags()
	flags.Lookup("platform").Usage = "platforms, as os/arch (default: all that both images have)"
	f.report.addTo(cmd)
	flags.BoolVar(&f.report.options.All, "all", false, "fold nothing of the text: every name, and every file")
	flags.IntVar(&f.report.options.Depth, "depth", 0, "levels of the file tree in the text; 0 for what fits on a screen")
	flags.BoolVar(&f.options.Layers, "layers", false, "list the changes of each layer that is not in both, too")
	flags.StringVar(&f.text, "text", "64k", "show changed lines of files up to `SIZE`, such as 10k; 0: none")
	flags.StringVar(&f.profile, "profile", "", "verify SLIM by this profile; html and markdown have the verdict")
	flags.StringVar(&f.link, "link", "", "`URL` of the whole report; markdown links to it")
	flags.BoolVar(&f.options.Times, "times", false, "have modification times count")
	flags.BoolVar(&f.exitCode, "exit-code", false, "exit with 1 when the images differ, 2 when there is trouble")
	return cmd
}

// parse checks the flags and converts those that hold text.
func (f *diffFlags) parse() (err error) {
	if f.profile != "" && f.report.format != report.HTML && f.report.format != report.Markdown {
		return fmt.Errorf("--profile %s: --format %s has no verdict; pass --format html or markdown", f.profile, f.report.format)
	}
	if f.link != "" {
		if f.report.format != report.Markdown {
			return fmt.Errorf("--link %s: --format %s has no link; pass --format markdown", f.link, f.report.format)
		}
		u, err := url.Parse(f.link)
		if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || strings.ContainsAny(f.link, " <>\\\n") {
			return fmt.Errorf("--link %q: want an address such as https://ci.example/runs/1", f.link)
		}
		f.report.options.Link = f.link
	}
	f.report.options.Layers, f.report.options.Lines = f.options.Layers, len(f.options.Paths) > 0
	if f.report.options.Depth < 0 {
		return fmt.Errorf("--depth %d: want 0 or more", f.report.options.Depth)
	}
	if f.options.Text, err = parseBytes(f.text); err != nil {
		return fmt.Errorf("--text %q: %w", f.text, err)
	}
	if f.options.Text > diff.MaxText {
		return fmt.Errorf("--text %s: want at most %dk", f.text, diff.MaxText>>10)
	}
	return diff.CheckPaths(f.options.Paths)
}

// diffImages writes the differences and reports whether there are any.
func (a *app) diffImages(ctx context.Context, base, of string, f *diffFlags) (different bool, err error) {
	if err := f.parse(); err != nil {
		return false, usageError(err)
	}
	f.report.detectTerminal(a.console)
	access, err := a.access(f.registry, f.progress)
	if err != nil {
		return false, err
	}
	diffs, err := slim.Diff(ctx, slim.DiffOptions{Access: access, Base: base, Slim: of, Platforms: f.platforms, Compare: f.options})
	if err != nil {
		return false, err
	}
	f.report.options.Version = version.Read().String()
	if f.profile != "" {
		o := slim.VerifyOptions{Image: of}
		o.Access, o.Profile, o.Base, o.Platforms = access, f.profile, base, f.platforms
		v, err := slim.Verify(ctx, o)
		if err != nil {
			return false, err
		}
		f.report.setVerdict(v)
	}
	err = a.writeReport(f.report.file, func(w io.Writer) error { return report.Diffs(w, f.report.format, diffs, f.report.options) })
	return slices.ContainsFunc(diffs, func(d *diff.Diff) bool { return !d.Same }), err
}

// setVerdict adds verify's result to the report, and the profile's reason to each changed path.
func (f *reportFlags) setVerdict(v *slim.Verified) {
	words := []string{
		english.Plural(len(v.Report.Rules), "rule", ""), english.Plural(v.Report.Count(verify.Error), "error", ""), english.Plural(v.Report.Count(verify.Warning), "warning", ""),
	}
	verdict := &report.Verdict{Profile: v.Profile.Name, Passed: v.Report.Passed, Words: strings.Join(words, ", ")}
	for _, finding := range v.Report.Findings {
		verdict.Findings = append(verdict.Findings, finding.Rule+": "+finding.Message)
	}
	f.options.Verdict = verdict
	f.options.Why = func(c *diff.Change) string {
		for _, l := range slim.About(v.Profile, c.Path, c.Old) {
			if (l.Does == "removes") == (c.Kind == diff.Removed) {
				return fmt.Sprintf("%s %s %s: %s", l.Source, l.Does, l.What, l.Why)
			}
		}
		return ""
	}
}
