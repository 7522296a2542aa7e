// Package dockerfile renders recipes as a Dockerfile with its build context, for builds with only Docker or BuildKit.
// The image has the same merged tree and config as slimctl's. Steps that a Dockerfile can't express are refused by
// name.
package dockerfile

import (
	_ "embed"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/image"
)

// readme is the context's README.md, for people who receive only the context.
//
//go:embed context.md
var readme string

// Options names the base.
type Options struct {
	// Base is the registry reference for FROM, without digest; empty means the recipe's. It is required if the base
	// isn't in a registry (oci:, standin:, ...).
	Base string
	// Layout is the absolute path of the base's OCI layout, which the build reads as a named context; empty for any
	// other base.
	Layout string
}

// Context is a Dockerfile with the files that it copies.
type Context struct {
	Dockerfile string
	// Ignore is the content of .dockerignore, which admits only what the Dockerfile copies.
	Ignore string
	// Bake is the content of docker-bake.hcl.
	Bake  string
	files []contextFile
}

// contextFile is one file of the context; path is slash-separated and relative.
type contextFile struct {
	path  string
	write func(io.Writer) error
}

// Render returns the Dockerfile and context for one or more recipes, each for another platform, all of the same profile
// and base. It fails on a step that a Dockerfile can't express, and on names and values that it can't carry unchanged.
func Render(recipes []*build.Recipe, o Options) (*Context, error) {
	base, err := findBase(recipes[0].Base, o)
	if err != nil {
		return nil, err
	}
	p, err := newPlan(recipes)
	if err != nil {
		return nil, err
	}
	d := &document{}
	d.header(p, base)
	d.line(`ARG BASE=%s`, base.from)
	for _, s := range p.stages {
		d.blank()
		d.stage(s)
	}
	d.blank()
	d.comment("What is built for a platform is that platform's stage; other platforms than those above have none.")
	d.line("FROM slim-${TARGETARCH}${TARGETVARIANT}")
	if p.sameConfig {
		d.config(p.stages[0].config)
	}
	text, err := d.text()
	if err != nil {
		return nil, err
	}
	return &Context{Dockerfile: text, Ignore: ignore(p), Bake: bake(p, base), files: p.files}, nil
}

// plan holds everything that the Dockerfile will contain, before the first line is written.
type plan struct {
	profile, line string
	epoch         int64
	stages        []*stage
	// sameConfig reports whether all stages have the same config, so that the last stage can set it once.
	sameConfig bool
	files      []contextFile // files that the Dockerfile adds
}

// stage holds the steps for one platform.
type stage struct {
	platform string // linux/amd64
	arch     string // amd64
	name     string // slim-amd64
	removals []build.Remove
	// kept is set if the stage begins empty and gets what stays of the base. edited is the tar of edited files.
	kept   bool
	edited string
	// user is the base's user, if RUN must switch from it to root and back.
	user     string
	overlays []overlay
	// lost are the base's directories whose user.* attributes the layers can't hold.
	lost     []string
	config   []instruction
	perStage bool
}

func newPlan(recipes []*build.Recipe) (*plan, error) {
	p := &plan{profile: recipes[0].Profile, line: recipes[0].Base.Line, epoch: recipes[0].Epoch.Unix()}
	for _, r := range recipes {
		s, err := p.newStage(r)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.Platform.String(), err)
		}
		if err := p.addOverlays(s, r); err != nil {
			return nil, fmt.Errorf("%s: %w", s.platform, err)
		}
		p.stages = append(p.stages, s)
	}
	p.sameConfig = true
	for _, s := range p.stages {
		p.sameConfig = p.sameConfig && slices.Equal(s.config, p.stages[0].config)
	}
	for _, s := range p.stages {
		s.perStage = !p.sameConfig
	}
	return p, nil
}

func (p *plan) newStage(r *build.Recipe) (_ *stage, err error) {
	s := stageOf(r)
	s.removals = r.Removals
	if r.Stripped() != nil {
		if err := p.prepareStrip(s, r); err != nil {
			return nil, err
		}
	}
	if err := checkRemovals(s.removals); err != nil {
		return nil, err
	}
	if len(s.removals) > 0 {
		if s.user, err = runUser(r); err != nil {
			return nil, err
		}
	}
	if s.kept {
		s.config, err = configureWhole(r)
	} else {
		s.config, err = configure(r)
	}
	return s, err
}

// maxArguments limits the arguments of rm in a RUN, in bytes. Linux allows a quarter of the stack's limit of 8 MiB
// (execve(2)).
const maxArguments = 3 << 19

// prepareStrip prepares the removals and the edited files of a stripped base. Compiled Python stays as it is in the
// base, since its sources keep their times, too.
func (p *plan) prepareStrip(s *stage, r *build.Recipe) error {
	kept, err := r.Kept()
	if err != nil {
		return err
	}
	size := 0
	for _, gone := range kept.Gone {
		if slices.Contains([]string{"/dev", "/proc", "/sys"}, gone) && kept.IsEmpty(gone) {
			continue // a RUN would recreate it
		}
		s.removals = append(s.removals, build.Remove{Path: gone, Why: "What nothing in the image needs; slimctl plan --explain says what stays, and why."})
		size += len(gone) + 9 // a NUL and a pointer
	}
	if size > maxArguments {
		return fmt.Errorf("%d paths of the base are removed, more than fit on the command line of a RUN: use slimctl build", len(kept.Gone))
	}
	edited := slices.DeleteFunc(kept.Edited, func(f image.File) bool { return path.Ext(f.Path) == ".pyc" })
	for _, f := range edited {
		if _, err := keepable(f.Entry, false); err != nil {
			return err
		}
	}
	if s.kept = true; len(edited) > 0 {
		s.edited = p.addArchive("kept/"+s.arch+"/edited.tar", edited)
	}
	return nil
}

// stageOf returns an empty stage with its names. arch is BuildKit's TARGETARCH followed by TARGETVARIANT.
func stageOf(r *build.Recipe) *stage {
	n := platforms.Normalize(ocispec.Platform{
		OS: r.Platform.OS, Architecture: r.Platform.Architecture, Variant: r.Platform.Variant,
	})
	arch := n.Architecture + n.Variant
	return &stage{arch: arch, platform: platforms.Format(n), name: "slim-" + arch}
}

func (d *document) header(p *plan, b base) {
	d.line("# check=skip=FromPlatformFlagConstDisallowed")
	d.blank()
	d.comment("Made by slimctl dockerfile from profile %s for line %s of the base. Don't edit: change the profile and "+
		"render it again.", p.profile, p.line)
	d.line("#")
	if b.layout == "" {
		d.comment("Build it here with: docker buildx bake. Names: TAGS=registry/name:tag,... BASE=a mirror of %s.", b.from)
	} else {
		d.comment("Build it here with: docker buildx bake. Names: TAGS=registry/name:tag,... The base is the OCI layout that docker-bake.hcl names as the context %s.", layoutName)
	}
	d.line("#")
	d.comment("Without bake give the annotations, which slimctl verify wants: --annotation \"index,manifest:%s=%s\" for several platforms, \"manifest:...\" for one.",
		image.AnnotationBaseDigest, b.annotations[image.AnnotationBaseDigest])
	d.line("#")
	d.comment("There is no syntax line: all of this is in the frontend that every BuildKit since v0.10 (Docker 23) has " +
		"built in, and a syntax line would fetch a program from Docker Hub and run it.")
	d.line("#")
	d.comment("Each overlay is one archive: its files with their modes and owners, and the base's own mode and owner of every " +
		"directory that they lie in, such as 1777 of /tmp. `tar tvf` lists it. ADD --link makes one layer of it that doesn't depend on the base.")
	d.line("#")
	d.comment("Limits: the times of files and of the image are the build's own unless the build sets SOURCE_DATE_EPOCH, " +
		"as docker-bake.hcl does, and the output rewrite-timestamp=true. WORKDIR makes its directory, and RUN makes /dev, /proc and /sys, where the base has none.")
	if slices.ContainsFunc(p.stages, func(s *stage) bool { return s.kept }) {
		d.line("#")
		d.comment("What stays of the base is copied out of a stage in which the rest is removed, with the times that the base has: unless the profile keeps the base's layers, slimctl build gives all of it one time, and compiled Python that goes by times that of its sources.")
	}
	d.blank()
}

func (d *document) stage(s *stage) {
	if s.kept {
		d.line("FROM --platform=%s ${BASE} AS base-%s", s.platform, s.arch)
		d.removals(s)
		d.blank()
		d.line("FROM scratch AS %s", s.name)
		d.line("COPY --from=base-%s / /", s.arch)
		if s.edited != "" {
			d.comment("The package database, without what is gone.")
			d.line("ADD %s /", s.edited)
		}
	} else {
		d.line("FROM --platform=%s ${BASE} AS %s", s.platform, s.name)
		d.removals(s)
	}
	for _, lay := range s.overlays {
		d.blank()
		d.comment("%s: %s", lay.name, lay.why)
		d.line("ADD --link %s /", lay.archive)
	}
	for _, p := range slices.Compact(slices.Sorted(slices.Values(s.lost))) {
		d.comment("Limit: the layers above don't repeat the user.* attributes of %s.", p)
	}
	if s.perStage {
		d.config(s.config)
	}
}

func (d *document) config(instructions []instruction) {
	if len(instructions) > 0 {
		d.blank()
	}
	for _, i := range instructions {
		d.line("%s", i)
	}
}

func ignore(p *plan) string {
	var b strings.Builder
	b.WriteString("# Only what the Dockerfile adds.\n*\n")
	for _, f := range p.files {
		fmt.Fprintf(&b, "!%s\n", f.path)
	}
	return b.String()
}
