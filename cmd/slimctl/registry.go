package main

import (
	"fmt"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/internal/progress"
	"github.com/slimctl/slimctl/internal/rawname"
	"github.com/slimctl/slimctl/slim"
)

// registryFlags holds the flags for access to registries.
type registryFlags struct {
	insecure bool
}

func (f *registryFlags) addTo(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.insecure, "insecure", false, "also try plain HTTP with any registry")
}

// registrySilence is how long a registry may send nothing. Tests lower it.
var registrySilence = image.DefaultIdleTimeout

// access returns the access to registries that the flags ask for. It shows progress until a result is printed or the
// command ends; an empty mode shows none.
func (a *app) access(f registryFlags, mode string) (slim.Access, error) {
	o := image.Options{
		CacheDir: a.cacheDir, Insecure: f.insecure, IdleTimeout: registrySilence, Keychain: keychain{}, Stdout: a.console, Received: new(atomic.Int64),
	}
	if mode == "" {
		return slim.Access{Options: o}, nil
	}
	shown, err := progress.New(mode, a.stderr)
	if err != nil {
		return slim.Access{}, usageError(err)
	}
	a.shown = append(a.shown, shown)
	o.Progress = shown
	log := func(format string, args ...any) { shown.Printf("%s", rawname.Line(fmt.Sprintf(format, args...))) }
	return slim.Access{Options: o, Log: log}, nil
}
