package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/internal/progress"
	"github.com/slimctl/slimctl/slim"
)

// registryFlags holds the flags for access to registries.
type registryFlags struct {
	insecure bool
	caFile   string
	silence  time.Duration // how long a registry may send nothing; 0 is the default
}

func (f *registryFlags) addTo(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVar(&f.insecure, "insecure", false, "try plain HTTP, too, with any registry; TLS stays checked")
	flags.StringVar(&f.caFile, "ca-file", "", "trust the authorities in this PEM `FILE`, too, for registries")
}

// access returns the access to registries that the flags ask for. It shows progress until a result is printed or the
// command ends; an empty mode shows none.
func (a *app) access(f registryFlags, mode string) (slim.Access, error) {
	o := image.Options{
		CacheDir: a.cacheDir, Insecure: f.insecure, IdleTimeout: f.silence, Keychain: keychain{}, Stdout: a.console, Received: new(atomic.Int64),
	}
	if f.caFile != "" {
		roots, err := readAuthorities(f.caFile)
		if err != nil {
			return slim.Access{}, err
		}
		t := image.DefaultTransport().Clone()
		t.TLSClientConfig = &tls.Config{RootCAs: roots}
		o.Transport = http.RoundTripper(t)
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
	log := func(format string, args ...any) { shown.Printf("%s", printable(fmt.Sprintf(format, args...))) }
	return slim.Access{Options: o, Log: log}, nil
}

// readAuthorities returns the system's certificate authorities together with those of a PEM file.
func readAuthorities(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, usageError(fmt.Errorf("--ca-file: %w", err))
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("the system's certificate authorities: %w", err)
	}
	if !roots.AppendCertsFromPEM(pem) {
		return nil, usageError(errors.New("--ca-file " + file + " has no certificate in PEM"))
	}
	return roots, nil
}
