package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/spf13/cobra"

	"github.com/slimctl/slimctl/assets"
	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/build/overlays"
	"github.com/slimctl/slimctl/build/profile"
	"github.com/slimctl/slimctl/build/resolve"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/internal/progress"
	"github.com/slimctl/slimctl/profiles"
)

// recipeFlags say which recipes a command is about.
type recipeFlags struct {
	profile   string
	base      string
	platforms []string
	set       []string
	payload   string
	lock      string
	progress  string
	noLock    bool
	locked    bool
	registry  registryFlags
	// labels go over the profile's once a lock was found: what a lock pins doesn't depend on them.
	labels map[string]string
}

func (f *recipeFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.profile, "profile", "l0", "profile: a built-in name, or a file")
	flags.StringVar(&f.base, "base", "", "base `IMAGE`, see slimctl help images (default: the profile's)")
	flags.StringSliceVar(&f.platforms, "platform", nil, "platforms, as os/arch (default: the profile's)")
	addSetFlags(flags, &f.set)
	flags.StringVar(&f.payload, "payload", "", "`DIR` that slimctl payload fetch wrote (default: fetched by npm)")
	flags.StringVar(&f.lock, "lock", "", "lock `FILE` (default: slim.lock beside the profile)")
	flags.StringVar(&f.progress, "progress", "auto", "auto, tty, plain, json or quiet")
	f.registry.add(cmd)
	flags.DurationVar(&f.registry.silence, "registry-timeout", image.DefaultIdleTimeout, "how long a registry may stay silent")
}

// addLock adds the flags of commands that use a lock, and don't write one.
func (f *recipeFlags) addLock(cmd *cobra.Command) {
	f.add(cmd)
	cmd.Flags().BoolVar(&f.noLock, "no-lock", false, "use no lock: take the base that the registry has now")
	cmd.Flags().BoolVar(&f.locked, "locked", false, "fail where there is no lock; for CI")
}

// resolved is a profile resolved, with what it was resolved against.
type resolved struct {
	profile  *profile.Profile
	source   *image.Source
	recipes  []*build.Recipe
	lock     *resolve.Lock
	progress progress.Reporter
	options  image.Options
	verified string // what the rules came to; empty when nothing was checked
}

func loader(set []string) profile.Loader { return profile.Loader{Builtin: profiles.FS, Set: set} }

// load loads a profile with settings over it, and completes and checks the configuration files that it lays. Naming a
// profile that isn't there is a usage error.
func load(nameOrFile string, set []string) (*profile.Profile, error) {
	p, err := loader(set).Load(nameOrFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, usage(err)
	}
	if err == nil {
		err = completeConfigs(p, nameOrFile)
	}
	return p, err
}

// resolve does all that comes before a recipe is rendered or built. The caller closes r.progress. useLock is false
// for `slimctl lock`, which asks the base itself.
func (a *app) resolve(ctx context.Context, f *recipeFlags, useLock bool) (_ *resolved, err error) {
	if f.noLock && (f.locked || f.lock != "") {
		return nil, usage(errors.New("--no-lock can't be combined with --lock or --locked"))
	}
	p, err := load(f.profile, f.set)
	if err != nil {
		return nil, err
	}
	platforms, err := parsePlatforms(f.platforms, p)
	if err != nil {
		return nil, err
	}
	epoch, err := sourceDateEpoch()
	if err != nil {
		return nil, err
	}
	bars, err := a.showProgress(f.progress)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = bars.Close()
		}
	}()
	r := &resolved{profile: p, progress: bars}
	if r.options, err = a.registryOptions(f.registry, bars); err != nil {
		return nil, err
	}
	reference := p.Base.Reference
	if f.base != "" {
		reference = f.base
	}
	given := reference // "docker://" says that it is no path
	reference = strings.TrimPrefix(reference, "docker://")
	var lock *resolve.Lock
	if useLock && !f.noLock {
		if lock, err = a.findLock(f, p, reference, platforms, bars); err != nil {
			return nil, err
		}
	}
	if len(f.labels) > 0 {
		labels := maps.Clone(p.Config.Labels)
		if labels == nil {
			labels = map[string]string{}
		}
		maps.Copy(labels, f.labels)
		p.Config.Labels = labels
	}
	if r.source, err = a.open(ctx, given, lock, r.options); err != nil {
		return nil, err
	}
	r.recipes, r.lock, err = resolve.Resolve(ctx, resolve.Input{
		Profile: p, Reference: reference, Source: r.source, Platforms: platforms, Assets: assets.FS, Lock: lock,
		Cache: tree.Cache{Dir: a.cacheDir}, Progress: bars, Epoch: epoch,
		Overlays: a.overlays(f, p, bars),
	})
	return r, err
}

// open opens the base, at the digest that the lock has for it.
func (a *app) open(ctx context.Context, reference string, lock *resolve.Lock, o image.Options) (*image.Source, error) {
	if dir, ok, err := a.cachedStandin(ctx, reference); err != nil {
		return nil, err
	} else if ok {
		return image.Open(ctx, "oci:"+dir, o)
	}
	if lock != nil && !strings.HasPrefix(reference, "oci:") && !strings.Contains(reference, "-archive:") {
		reference = image.Pin(reference, lock.Base.Digest)
	}
	src, err := image.Open(ctx, reference, o)
	if err != nil {
		return nil, err
	}
	if lock != nil && src.Digest() != lock.Base.Digest {
		return nil, fmt.Errorf("base %s is %s, and the lock was written for %s; run `slimctl lock` again", reference, src.Digest(), lock.Base.Digest)
	}
	return src, nil
}

// findLock finds the lock that goes with the profile, and says what it made of it.
func (a *app) findLock(f *recipeFlags, p *profile.Profile, reference string, platforms []v1.Platform, say progress.Reporter) (*resolve.Lock, error) {
	file := f.lock
	if file == "" {
		file = lockBeside(f.profile)
	}
	lock, err := resolve.ReadLock(file)
	if errors.Is(err, fs.ErrNotExist) && f.lock == "" {
		if f.locked {
			return nil, fmt.Errorf("--locked: there is no %s; run `slimctl lock`", file)
		}
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := lock.Matches(p, reference, platforms); err != nil {
		return nil, fmt.Errorf("%s is stale (%w); run `slimctl lock`, or pass --no-lock to build unpinned", file, err)
	}
	say.Printf("lock %s is used: base %s, no base layer is read", file, lock.Base.Digest)
	return lock, nil
}

// lockBeside is where the lock of a profile lies: beside its file, in the current directory for a built-in one.
func lockBeside(nameOrFile string) string {
	if profile.IsFile(nameOrFile) {
		return filepath.Join(filepath.Dir(nameOrFile), resolve.LockName)
	}
	return resolve.LockName
}

// overlays gives the overlays that every profile has: the payload and our server.
func (a *app) overlays(f *recipeFlags, p *profile.Profile, say progress.Reporter) func(context.Context, v1.Platform) ([]build.Lay, error) {
	o := overlays.Options{CacheDir: a.cacheDir, Log: say.Printf}
	var payload *overlays.Payload
	return func(ctx context.Context, platform v1.Platform) ([]build.Lay, error) {
		if payload == nil {
			var err error
			if payload, err = fetchPayload(ctx, f.payload, p.Payload.AgentBrowser, o); err != nil {
				return nil, err
			}
		}
		files, err := payload.Files(platform.Architecture)
		if err != nil {
			return nil, err
		}
		server, err := overlays.Server(ctx, platform.Architecture, o)
		if err != nil {
			return nil, err
		}
		return []build.Lay{
			{Name: "payload", Why: "agent-browser " + payload.Version + ", the only program that drives the browser", Files: files},
			{Name: "browser-shell", Why: "the one MCP tool", Files: server},
		}, nil
	}
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

func parsePlatforms(flags []string, p *profile.Profile) ([]v1.Platform, error) {
	if len(flags) == 0 {
		for _, s := range p.Platforms {
			flags = append(flags, string(s))
		}
	}
	var out []v1.Platform
	seen := map[string]bool{}
	for _, s := range flags {
		parsed, err := v1.ParsePlatform(s)
		if err != nil || parsed.OS == "" || parsed.Architecture == "" {
			return nil, usage(fmt.Errorf("--platform %q: a platform is os/arch, such as linux/arm64", s))
		}
		known := false
		for _, have := range p.Platforms {
			known = known || string(have) == parsed.String()
		}
		if !known {
			return nil, usage(fmt.Errorf("--platform %s: profile %s is for %v", s, p.Name, p.Platforms))
		}
		if !seen[parsed.String()] {
			seen[parsed.String()] = true
			out = append(out, *parsed)
		}
	}
	return out, nil
}

// sourceDateEpoch reads SOURCE_DATE_EPOCH (https://reproducible-builds.org/specs/source-date-epoch/); zero when unset.
func sourceDateEpoch() (time.Time, error) {
	s := os.Getenv("SOURCE_DATE_EPOCH")
	if s == "" {
		return time.Time{}, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > 253402300799 {
		return time.Time{}, usage(fmt.Errorf("SOURCE_DATE_EPOCH=%q: want seconds since 1970-01-01 UTC", s))
	}
	return time.Unix(n, 0).UTC(), nil
}
