// Package dockerfile renders recipes as a Dockerfile with its complete build context, for builds with nothing but
// Docker or BuildKit. What it gives has the same merged tree and config as the image slimctl builds itself; what a
// Dockerfile can't say it refuses, naming the step.
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

// readme is README.md of the context, for those who receive the context and nothing else.
//
//go:embed context.md
var readme string

// Options choose between forms of the Dockerfile.
type Options struct {
	// Whiteouts makes removals whiteout files that are copied in, instead of a RUN of the base's own rm. BuildKit then
	// neither pulls nor unpacks the base, and no emulation is needed for foreign platforms, but only images that are
	// pushed or written as archives lose the removed paths.
	Whiteouts bool
	// Base is the registry reference that FROM names, without digest; the recipe's own when empty. A base that isn't
	// in a registry (oci:, standin:, ...) needs it.
	Base string
	// Layout is the absolute path of the base's OCI layout; empty for another base. A build takes it as a named context.
	Layout string
}

// Context is a Dockerfile with all that it copies.
type Context struct {
	Dockerfile string
	// Ignore is .dockerignore: it lets in what the Dockerfile adds and nothing else.
	Ignore string
	// Bake is docker-bake.hcl.
	Bake  string
	files []contextFile
}

// contextFile is one file of the context; path is slash-separated and relative.
type contextFile struct {
	path  string
	write func(io.Writer) error
}

// Render gives the Dockerfile and context of recipes, one a platform, all of one base. It fails on a step that a
// Dockerfile can't express, and on names and values that it can't carry unchanged.
func Render(recipes []*build.Recipe, o Options) (*Context, error) {
	base, err := findBase(recipes, o)
	if err != nil {
		return nil, err
	}
	p, err := newPlan(recipes, o)
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
	if o.Whiteouts && p.makesDir() {
		d.comment("WORKDIR below looks into the base, so that BuildKit has to fetch and unpack it in spite of the whiteouts.")
		d.line("#")
	}
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

// plan is all that is known before the first line is written.
type plan struct {
	profile, line string
	epoch         int64
	stages        []*stage
	// sameConfig says that the config of all stages is one, so that the last stage can say it once.
	sameConfig bool
	files      []contextFile // that the Dockerfile adds
}

// stage is what is done for one platform.
type stage struct {
	platform string // linux/amd64
	arch     string // amd64
	name     string // slim-amd64
	removals []build.Remove
	// kept is set where the stage begins empty and gets what is left of the base, and edited is the tar of edited files.
	kept   bool
	edited string
	// whiteouts is the tar that stands for removals.
	whiteouts string
	// user is the base's user, when RUN can't have it.
	user     string
	overlays []overlay
	// lost are the directories of the base whose user.* attributes the layers can't hold.
	lost     []string
	config   []instruction
	perStage bool
}

func newPlan(recipes []*build.Recipe, o Options) (*plan, error) {
	p := &plan{profile: recipes[0].Profile, line: recipes[0].Base.Line, epoch: recipes[0].Epoch.Unix()}
	for _, r := range recipes {
		s, err := p.newStage(r, o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.Platform.String(), err)
		}
		if slices.ContainsFunc(p.stages, func(t *stage) bool { return t.name == s.name }) {
			return nil, fmt.Errorf("two recipes for %s", s.platform)
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

func (p *plan) newStage(r *build.Recipe, o Options) (*stage, error) {
	s, err := stageOf(r)
	if err != nil {
		return nil, err
	}
	s.removals = r.Removals
	if r.Stripped() != nil {
		if err := p.prepareStrip(s, r, o); err != nil {
			return nil, err
		}
	}
	if err := checkRemovals(s.removals, o); err != nil {
		return nil, err
	}
	if len(s.removals) > 0 {
		if err := p.remove(s, r, o); err != nil {
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

// maxArguments bounds what a RUN gives to rm, in bytes: Linux takes a quarter of the stack's limit, which is 8 MiB (execve(2)).
const maxArguments = 3 << 19

// prepareStrip prepares what goes of a base that is stripped, and the files that are edited. Compiled Python is as the base has
// it: the times of its sources stay, too.
func (p *plan) prepareStrip(s *stage, r *build.Recipe, o Options) error {
	if o.Whiteouts {
		return fmt.Errorf("profile %s makes the base's layers anew, which whiteouts can't: leave --whiteouts out, or use slimctl build", r.Profile)
	}
	kept, err := r.Kept()
	if err != nil {
		return err
	}
	size := 0
	for _, gone := range kept.Gone {
		if slices.Contains([]string{"/dev", "/proc", "/sys"}, gone) && kept.IsEmpty(gone) {
			continue // a RUN would make it again
		}
		s.removals = append(s.removals, build.Remove{Path: gone, Why: "What nothing in the image needs; slimctl plan --explain says what stays, and why."})
		size += len(gone) + 9 // and a pointer
	}
	if size > maxArguments {
		return fmt.Errorf("%d paths of the base go, more than the command line of a RUN can have: use slimctl build", len(kept.Gone))
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

// makesDir reports whether there is a WORKDIR.
func (p *plan) makesDir() bool {
	return slices.ContainsFunc(p.stages, func(s *stage) bool {
		return slices.ContainsFunc(s.config, func(i instruction) bool { return strings.HasPrefix(string(i), "WORKDIR ") })
	})
}

// remove prepares the removals of s. rm leaves the directories as they are; whiteouts come with theirs.
func (p *plan) remove(s *stage, r *build.Recipe, o Options) (err error) {
	if !o.Whiteouts {
		s.user, err = runUser(r)
		return err
	}
	files, lost, err := keepableFiles(r.Layers()[0])
	if err != nil {
		return err
	}
	s.lost = append(s.lost, lost...)
	s.whiteouts = p.addArchive("removals/"+s.arch+".tar", files)
	return nil
}

// stageOf gives an empty stage with its names: arch is what BuildKit's TARGETARCH and TARGETVARIANT make together.
func stageOf(r *build.Recipe) (*stage, error) {
	n := platforms.Normalize(ocispec.Platform{
		OS: r.Platform.OS, Architecture: r.Platform.Architecture, Variant: r.Platform.Variant,
	})
	if n.OS != "linux" || !simple.MatchString(n.Architecture) || n.Variant != "" && !simple.MatchString(n.Variant) {
		return nil, fmt.Errorf("platform %q: want linux/ARCHITECTURE", r.Platform.String())
	}
	arch := n.Architecture + n.Variant
	return &stage{arch: arch, platform: platforms.Format(n), name: "slim-" + arch}, nil
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
