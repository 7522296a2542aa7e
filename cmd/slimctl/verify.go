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
		Long: `Verify rebuilds the image from the profile and the base and compares digests. If they match,
it reads no layer. Otherwise it prints each difference: the layer, the path, the expected
state and the profile's line. Repeat the flags of the build, with the same slimctl version.

Rules then check the surface: programs, routes, listeners, tools, variables, rights and
secrets. Anything that the profile doesn't name is a finding, and so is anything that verify
can't read.

Name the base with --base or --lock. Without them verify takes the base that the image's
annotations name, if it is from the profile's repository. --same tree accepts other layers,
as docker build makes them, if files and config are the same. --surface-only checks the
surface of any image and proves nothing.

--run also boots the image, with Docker or runc, and has its tool open a page that slimctl
serves. --reach also boots it with all of the base, and reports opened files that the image
lacks. It is for profiles with keep, such as l1, and needs root and runc.

The exit status is 3 if there is a finding of severity error. It is 4 if there is none and
the base is not known. See slimctl help images for the forms of IMAGE.`,
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
	addChoice(flags, &f.same, "same", "equality to require: digest, or tree for other layers", slim.SameDigest, slim.SameTree)
	flags.BoolVar(&f.surface, "surface-only", false, "check the surface alone, and prove nothing")
	flags.StringArrayVar(&f.annotations, "annotation", nil, "accept an annotation that build's --annotation set (repeatable)")
	addChoice(flags, &f.format, "format", "", report.Text, report.JSON, report.SARIF)
	flags.StringVarP(&f.file, "output", "o", "", "write the report to this `FILE` instead of standard output")
	addChoice(flags, &f.severity, "severity", "fail at findings of at least this severity: error or warning", verify.Error, verify.Warning)
	flags.BoolVar(&f.rules, "rules", false, "print every rule, with why and fix, and look at no image")
	flags.BoolVar(&f.run, "run", false, "boot the image, too; takes this machine's platform")
	flags.BoolVar(&f.reach, "reach", false, "find opened files that the image lacks, with --run")
	addRuntime(flags, &f.runtime, "runtime of --run: ")
	flags.StringVar(&f.artifacts, "artifacts", "", "`DIR` for the containers' evidence and logs, with --run")
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
