package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/slimctl/slimctl/internal/progress"
	"github.com/slimctl/slimctl/slim"
)

// recipeFlags holds the flags that select a profile, a base and the platforms.
type recipeFlags struct {
	slim.ResolveOptions
	progress string
	registry registryFlags
}

func (f *recipeFlags) addTo(cmd *cobra.Command) {
	flags := cmd.Flags()
	addProfile(flags, &f.Profile, &f.Set)
	flags.StringVar(&f.Base, "base", "", "base `IMAGE` (default: the profile's)")
	flags.StringSliceVar(&f.Platforms, "platform", nil, "platforms as `OS/ARCH` (default: the profile's)")
	flags.StringVar(&f.Payload, "payload", "", "`DIR` of slimctl payload fetch (default: ask npm)")
	flags.StringVar(&f.Lock, "lock", "", "lock `FILE` (default: slim.lock beside the profile)")
	addChoice(flags, &f.progress, "progress", "", progress.Modes...)
	f.registry.addTo(cmd)
}

// addLock adds the flags of commands that read a lock and don't write one.
func (f *recipeFlags) addLock(cmd *cobra.Command) {
	f.addTo(cmd)
	cmd.Flags().BoolVar(&f.NoLock, "no-lock", false, "use no lock, and the registry's present base")
	cmd.Flags().BoolVar(&f.Locked, "locked", false, "fail where there is no lock; for CI")
}

// options returns the options that the flags ask for, and starts the progress display.
func (f *recipeFlags) options(a *app) (slim.ResolveOptions, error) {
	o := f.ResolveOptions
	var err error
	if o.Epoch, err = readSourceDateEpoch(); err != nil {
		return o, err
	}
	o.Access, err = a.access(f.registry, f.progress)
	return o, err
}

// resolve resolves the profile that the flags name against its base.
func (a *app) resolve(ctx context.Context, f *recipeFlags) (*slim.Resolved, error) {
	o, err := f.options(a)
	if err != nil {
		return nil, err
	}
	return slim.Resolve(ctx, o)
}

// readSourceDateEpoch returns the time in SOURCE_DATE_EPOCH (https://reproducible-builds.org/specs/source-date-epoch/);
// zero if unset.
func readSourceDateEpoch() (time.Time, error) {
	s := os.Getenv("SOURCE_DATE_EPOCH")
	if s == "" {
		return time.Time{}, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > 253402300799 {
		return time.Time{}, usageError(fmt.Errorf("SOURCE_DATE_EPOCH=%q: want seconds since 1970-01-01 UTC", s))
	}
	return time.Unix(n, 0).UTC(), nil
}
