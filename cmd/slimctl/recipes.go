package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/slim"
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
	anyLine   bool
	locked    bool
	registry  registryFlags
}

func (f *recipeFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.profile, "profile", "l0", "profile: a built-in name, or a file")
	flags.StringVar(&f.base, "base", "", "base `IMAGE`, see slimctl help images (default: the profile's)")
	flags.StringSliceVar(&f.platforms, "platform", nil, "platforms, as os/arch (default: the profile's)")
	addSetFlags(flags, &f.set)
	flags.StringVar(&f.payload, "payload", "", "`DIR` that slimctl payload fetch wrote (default: fetched by npm)")
	flags.StringVar(&f.lock, "lock", "", "lock `FILE` (default: slim.lock beside the profile)")
	flags.BoolVar(&f.anyLine, "accept-unknown-line", false, "accept a base of a line that the profile isn't for")
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

// options returns what the flags say, with progress shown.
func (f *recipeFlags) options(a *app) (slim.ResolveOptions, error) {
	epoch, err := sourceDateEpoch()
	if err != nil {
		return slim.ResolveOptions{}, err
	}
	access, err := a.access(f.registry, f.progress)
	return slim.ResolveOptions{
		Access: access, Profile: f.profile, Set: f.set, Base: f.base, Platforms: f.platforms, Payload: f.payload,
		AcceptUnknownLine: f.anyLine, Lock: f.lock, NoLock: f.noLock, Locked: f.locked, Epoch: epoch,
	}, err
}

// resolve does what comes before a recipe is rendered.
func (a *app) resolve(ctx context.Context, f *recipeFlags) (*slim.Resolved, error) {
	o, err := f.options(a)
	if err != nil {
		return nil, err
	}
	return slim.Resolve(ctx, o)
}

// setFlag is a flag's value that may be repeated.
type setFlag func(string) error

func (f setFlag) Set(s string) error { return f(s) }
func (setFlag) String() string       { return "" }
func (setFlag) Type() string         { return "stringArray" }

// addSetFlags adds --set, and --allow-host, which is short for --set policy.allowHosts=[…].
func addSetFlags(flags *pflag.FlagSet, set *[]string) {
	flags.Var(setFlag(func(s string) error {
		*set = append(*set, s)
		return nil
	}), "set", "set a key of the profile, such as `KEY.KEY=VALUE`")
	var hosts []string
	flags.Var(setFlag(func(s string) error {
		hosts = append(hosts, s)
		list, err := json.Marshal(hosts)
		*set = append(*set, "policy.allowHosts="+string(list))
		return err
	}), "allow-host", "allow only this `HOST`: example.com or '*.example.com' (repeatable)")
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
