package slim

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"

	"github.com/slimctl/slimctl/assets"
	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/build/lock"
	"github.com/slimctl/slimctl/build/overlays"
	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/build/resolve"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// ResolveOptions selects a profile and its base.
type ResolveOptions struct {
	Access
	// Profile is the name of a built-in profile, or a file; empty means l0.
	Profile string
	// Set holds settings that override the profile, as KEY.KEY=VALUE.
	Set []string
	// Labels override the labels in the profile's config. They don't affect the lock.
	Labels map[string]string
	// Base is the image to derive from, as described by slimctl help images; empty means the profile's.
	Base string
	// Platforms are the platforms to resolve for, as os/arch; none means the profile's.
	Platforms []string
	// Payload is a directory written by slimctl payload fetch; empty means fetching it by npm.
	Payload string
	// Lock is the lock file; empty means slim.lock beside the profile, if it exists.
	Lock string
	// NoLock ignores locks. Locked fails without a lock.
	NoLock, Locked bool
	// Before is an earlier lock file: what it removed is not new (Resolved.NewUpstream). Empty means slim.lock beside the
	// profile, if it exists. If a lock is used, nothing is new.
	Before string
	// Epoch is the time of everything that a build adds; zero means the base's.
	Epoch time.Time
}

func (o ResolveOptions) withDefaults() (ResolveOptions, error) {
	if o.Profile == "" {
		o.Profile = "l0"
	}
	var err error
	o.Access, err = o.Access.withDefaults()
	return o, err
}

// Resolved is the result of Resolve.
type Resolved struct {
	Profile *profile.Profile
	// Source is the base.
	Source *image.Source
	// Recipes has one recipe per platform.
	Recipes []*build.Recipe
	// Lock pins the result.
	Lock *lock.File
}

// Resolve loads a profile and resolves it against its base. With a lock it reads no layer of the base, otherwise those
// whose index isn't in the cache.
func Resolve(ctx context.Context, o ResolveOptions) (*Resolved, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if o.NoLock && (o.Locked || o.Lock != "") {
		return nil, usage(errors.New("--no-lock can't be combined with --lock or --locked"))
	}
	p, err := LoadProfile(o.Profile, o.Set)
	if err != nil {
		return nil, err
	}
	platforms, err := profilePlatforms(o.Platforms, p)
	if err != nil {
		return nil, err
	}
	given := p.Base.Reference
	if o.Base != "" {
		given = o.Base
	}
	reference := strings.TrimPrefix(given, "docker://") // the prefix marks a registry reference
	var pinned *lock.File
	if !o.NoLock {
		if pinned, err = findLock(o, p, reference, platforms); err != nil {
			return nil, err
		}
	}
	if len(o.Labels) > 0 {
		labels := maps.Clone(p.Config.Labels)
		if labels == nil {
			labels = map[string]string{}
		}
		maps.Copy(labels, o.Labels)
		p.Config.Labels = labels
	}
	r := &Resolved{Profile: p}
	if r.Source, err = o.open(ctx, given, pinned); err != nil {
		return nil, err
	}
	own, err := makeOverlays(ctx, o, p, platforms)
	if err != nil {
		return nil, err
	}
	r.Recipes, r.Lock, err = resolve.Resolve(ctx, resolve.Input{
		Profile: p, Reference: reference, Source: r.Source, Platforms: platforms, Overlays: own, Assets: assets.FS, Lock: pinned, Before: lockBefore(o),
		Cache: tree.Cache{Dir: o.CacheDir}, Progress: o.Progress, Epoch: o.Epoch,
	})
	if err != nil {
		return nil, err
	}
	r.logBases(o.Log)
	if pinned == nil {
		err = r.logIdleKeeps(o.Access)
	}
	return r, err
}

// logBases logs what is unusual about the base of each platform: an unknown line, and what was found at another path.
func (r *Resolved) logBases(log func(format string, args ...any)) {
	for _, recipe := range r.Recipes {
		switch line := recipe.Base.Line; {
		case line == "":
			log("%s: base %s is of no known line; it has all that the image needs", recipe.Platform, recipe.Base.Reference)
		case !slices.Contains(r.Profile.Base.Lines, profile.Line(line)):
			log("%s: base %s is of line %s; profile %s was written for %s", recipe.Platform, recipe.Base.Reference, line, r.Profile.Name, profile.Join(r.Profile.Base.Lines))
		}
		for _, f := range recipe.Found {
			log("%s: %s found at %s, linked to by %s", recipe.Platform, f.What, f.Target, f.Path)
		}
	}
}

// NewUpstream returns what is removed from the base and is new since the earlier lock and the profile's notes, without
// duplicates.
func (r *Resolved) NewUpstream() []build.Gone { return build.NewUpstream(r.Recipes) }

// maxLogged limits the lines of LogNewUpstream.
const maxLogged = 200

// LogNewUpstream logs NewUpstream, one line each up to a limit, and how many more there are. Variables and MCP servers come
// before files, of which there may be very many.
func (r *Resolved) LogNewUpstream(log func(format string, args ...any)) {
	all := r.NewUpstream()
	slices.SortStableFunc(all, func(a, b build.Gone) int { return strings.Compare(b.Path[:1], a.Path[:1]) })
	for _, g := range all[:min(len(all), maxLogged)] {
		log("new upstream, removed: %s (%s)", g.Path, g.Why)
	}
	if more := len(all) - maxLogged; more > 0 {
		log("new upstream, removed: and %s more", humanize.Comma(int64(more)))
	}
}

// lockBefore reads the earlier lock. It returns nil if there is none or if it can't be read.
func lockBefore(o ResolveOptions) *lock.File {
	file := o.Before
	if file == "" {
		file = LockFile(o.Profile)
	}
	before, err := lock.Read(file)
	if err != nil {
		return nil
	}
	return before
}

// Annotations returns own with the image specification's annotations for the base (annotations.md).
func (r *Resolved) Annotations(own build.Annotations) build.Annotations {
	base := map[string]string{image.AnnotationBaseDigest: r.Source.Digest().String()}
	if r.Source.Name() != nil {
		// Take the reference as requested: a lock pins the source to a digest, which must not change the image.
		if n, err := image.ParseReference(r.Recipes[0].Base.Reference, false); err == nil {
			base[image.AnnotationBaseName] = n.Name()
		}
	}
	over := func(own map[string]string) map[string]string {
		out := maps.Clone(base)
		maps.Copy(out, own)
		return out
	}
	return build.Annotations{Index: over(own.Index), Manifest: over(own.Manifest)}
}

// findLock returns the lock for the profile, and logs its use.
func findLock(o ResolveOptions, p *profile.Profile, reference string, platforms []v1.Platform) (*lock.File, error) {
	file := o.Lock
	if file == "" {
		file = LockFile(o.Profile)
	}
	pinned, err := lock.Read(file)
	if errors.Is(err, fs.ErrNotExist) && o.Lock == "" {
		if o.Locked {
			return nil, fmt.Errorf("--locked: there is no %s; run `slimctl lock` with the same flags", file)
		}
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := pinned.Matches(p, reference, platforms); err != nil {
		remedy, unpinned := "run `slimctl lock` with the same flags", ", or pass --no-lock to build unpinned"
		if o.Lock != "" { // with --lock, --no-lock is a mistake
			unpinned = ""
		}
		if o.Base == "" && pinned.Base.Reference != reference {
			remedy = "pass --base " + pinned.Base.Reference + ", or " + remedy
		}
		if pinned.Profile.Name != p.Name { // another profile still needs it
			remedy = "name another with --lock FILE, which `slimctl lock -o FILE` writes"
		}
		return nil, fmt.Errorf("%s is stale (%w); %s%s", file, err, remedy, unpinned)
	}
	o.Log("lock %s is used: base %s, no base layer is read", file, pinned.Base.Digest)
	return pinned, nil
}

// LockFile returns the path of a profile's lock: beside its file, or in the current directory for a built-in profile.
func LockFile(nameOrFile string) string {
	if profile.IsFile(nameOrFile) {
		return filepath.Join(filepath.Dir(nameOrFile), lock.Name)
	}
	return lock.Name
}

// makeOverlays returns, for each platform, the overlays of every profile: the payload and browser-shell.
func makeOverlays(ctx context.Context, o ResolveOptions, p *profile.Profile, platforms []v1.Platform) (map[string][]build.Lay, error) {
	if len(platforms) == 0 {
		return nil, nil
	}
	options := overlays.Options{CacheDir: o.CacheDir, Log: o.Log}
	payload, err := fetchPayload(ctx, o.Payload, p.Payload.AgentBrowser, options)
	if err != nil {
		return nil, err
	}
	made := make([][]build.Lay, len(platforms))
	g, ctx := errgroup.WithContext(ctx)
	for i, platform := range platforms {
		g.Go(func() error {
			files, err := payload.Files(platform.Architecture)
			if err != nil {
				return fmt.Errorf("%s: %w", platform, err)
			}
			server, err := overlays.Server(ctx, platform.Architecture, options)
			if err != nil {
				return fmt.Errorf("%s: %w", platform, err)
			}
			made[i] = []build.Lay{
				{Name: "payload", Why: "agent-browser " + payload.Version + ", the only program that drives the browser", Files: files},
				{Name: "browser-shell", Why: "the one MCP tool", Files: server},
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	out := map[string][]build.Lay{}
	for i, platform := range platforms {
		out[platform.String()] = made[i]
	}
	return out, nil
}

func fetchPayload(ctx context.Context, dir string, want profile.AgentBrowser, o overlays.Options) (*overlays.Payload, error) {
	if dir == "" {
		return overlays.Fetch(ctx, want.Version, want.Integrity, o)
	}
	p, err := overlays.Prepared(dir)
	if err != nil {
		return nil, err
	}
	if err := p.Matches(want.Version, want.Integrity); err != nil {
		return nil, fmt.Errorf("--payload %s: %w", dir, err)
	}
	return p, nil
}

// profilePlatforms parses platforms of a profile; an empty list means all of them.
func profilePlatforms(list []string, p *profile.Profile) ([]v1.Platform, error) {
	var have []string
	for _, s := range p.Platforms {
		have = append(have, string(s))
	}
	if len(list) == 0 {
		list = have
	}
	platforms, err := parsePlatforms(list)
	if err != nil {
		return nil, err
	}
	for _, platform := range platforms {
		if !slices.Contains(have, platform.String()) {
			return nil, usage(fmt.Errorf("--platform %s: profile %s is for %v", platform, p.Name, p.Platforms))
		}
	}
	return platforms, nil
}
