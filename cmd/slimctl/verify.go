package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/slimctl/slimctl/inspect/report"
	"github.com/slimctl/slimctl/inspect/sandbox"
	"github.com/slimctl/slimctl/inspect/verify"
	"github.com/slimctl/slimctl/slim"
)

type verifyFlags struct {
	recipeFlags
	annotations            []string
	format, file, severity string
	same                   string
	rules, run, surface    bool
	reach                  bool
	runtime, artifacts     string
}

func (a *app) verify() *cobra.Command {
	f := &verifyFlags{}
	cmd := &cobra.Command{
		Use:   "verify IMAGE",
		Short: "Check an image against a profile",
		Long: `Verify makes the image again that build makes of the profile and the base, and compares. An image
of the same digest is proven: nothing of it is read. For another image verify prints each
difference: the layer, the path, what it should be and the profile's line. Repeat the flags that
you gave to build, and use the slimctl version that built.

Rules then check the surface: programs, routes, listeners, tools, variables, rights, secrets.
What the profile doesn't name is a finding, and so is what verify can't understand.

Name the base with --base or --lock. Without them it is the one that the image's annotations
name, if it is of the profile's repository. --same tree accepts other layers, as docker build
gives them, if files and config are the same. --surface-only checks the surface of any image
and proves nothing. --platform names platforms that the image must have. With --run the image
is booted, too, with Docker or runc, and its tool opens a page that slimctl serves. For a profile
that makes the base's layers anew, such as l1, --reach boots the image with all of the base, too,
and finds what is opened there and missing in the image; it takes root and runc.

The exit status is 3 when there is a finding of severity error, and 4 when there is none and
the base is not known. For the forms of IMAGE see slimctl help images.`,
		Example: `  slimctl verify --lock slim.lock oci:out
  slimctl verify --base ghcr.io/agent-infra/sandbox:latest \
    --format sarif -o slim.sarif oci:out
  slimctl verify --lock slim.lock --run --artifacts artifacts \
    --platform linux/amd64 oci:out
  slimctl verify --surface-only registry.example/stranger:1
  slimctl verify --rules`,
		Args: func(cmd *cobra.Command, args []string) error {
			if f.rules {
				return noArgs(cmd, args)
			}
			return oneArg("the image")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.checkCombination(); err != nil {
				return usageError(err)
			}
			if f.rules {
				return a.writeReport(f.file, func(w io.Writer) error { return report.Rules(w, f.format) })
			}
			return a.runVerify(cmd.Context(), args[0], f)
		},
	}
	f.addTo(cmd)
	flags := cmd.Flags()
	flags.Lookup("base").Usage = "the base that the image has to be made from, as build's --base"
	flags.Lookup("platform").Usage = "platforms, as os/arch (default: all that the image has)"
	flags.Lookup("lock").Usage = "lock `FILE` that pins the base"
	addChoice(flags, &f.same, "same", "what has to be the same: digest, or tree for other layers", slim.SameDigest, slim.SameTree)
	flags.BoolVar(&f.surface, "surface-only", false, "check the surface alone, and prove nothing")
	flags.StringArrayVar(&f.annotations, "annotation", nil, "accept an annotation that build's --annotation set (repeatable)")
	addChoice(flags, &f.format, "format", "", report.Text, report.JSON, report.SARIF)
	flags.StringVarP(&f.file, "output", "o", "", "write the report to this `FILE` instead of standard output")
	addChoice(flags, &f.severity, "severity", "fail at findings of at least this severity: error or warning", verify.Error, verify.Warning)
	flags.BoolVar(&f.rules, "rules", false, "print every rule, with why and fix, and look at no image")
	flags.BoolVar(&f.run, "run", false, "boot the image, too; takes this machine's platform")
	flags.BoolVar(&f.reach, "reach", false, "with --run: find what is opened with all of the base and missing")
	addRuntime(flags, &f.runtime, "with --run: ")
	flags.StringVar(&f.artifacts, "artifacts", "", "with --run: `DIR` for the containers' evidence and logs")
	return cmd
}

func (f *verifyFlags) checkCombination() error {
	switch {
	case f.rules && f.format != report.Text && f.format != report.JSON:
		return fmt.Errorf("--rules with --format %s: pass --format text or json", f.format)
	case f.surface && (f.Base != "" || f.Lock != "" || f.same != slim.SameDigest):
		return errors.New("--surface-only can't be combined with --base, --lock or --same, which compare")
	case f.reach && !f.run:
		return errors.New("--reach needs --run")
	case f.reach && f.runtime == sandbox.Docker:
		return errors.New("--reach observes a container of runc, not of Docker: pass --runtime runc")
	case f.artifacts != "" && !f.run:
		return errors.New("--artifacts needs --run")
	}
	return nil
}

func (a *app) runVerify(ctx context.Context, reference string, f *verifyFlags) error {
	annotations, err := parseAnnotations(f.annotations)
	if err != nil {
		return usageError(err)
	}
	o, err := f.options(a)
	if err != nil {
		return err
	}
	v, err := slim.Verify(ctx, slim.VerifyOptions{ResolveOptions: o, Image: reference, Annotations: annotations, Same: f.same, SurfaceOnly: f.surface, Run: f.run})
	if err == nil && f.run {
		run, stop := stopWithReader(ctx)
		err = v.Run(run, slim.RunOptions{Runtime: f.runtime, Artifacts: f.artifacts, Reach: f.reach})
		stop()
	}
	if err != nil {
		return err
	}
	return a.judgeReport(f, v.Report)
}

// judgeReport writes the report. It fails if a finding has at least the severity of the flag, or if the base is
// unknown.
func (a *app) judgeReport(f *verifyFlags, r *verify.Report) error {
	if f.severity == verify.Warning && r.Count(verify.Warning) > 0 {
		r.Passed = false
	}
	if err := a.writeReport(f.file, func(w io.Writer) error { return report.Findings(w, f.format, r) }); err != nil {
		return err
	}
	switch {
	case r.Passed:
		return nil
	case r.Count(verify.Error) == 0 && f.severity == verify.Error:
		return statusError{exitUnproven, fmt.Sprintf("nothing was found in %s, but its base is not known: name it with --base IMAGE or --lock FILE", r.Reference)}
	}
	return statusError{exitGate, slim.Verdict(r)}
}
