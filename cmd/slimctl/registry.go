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
)

// registryFlags say how registries are spoken to.
type registryFlags struct {
	insecure bool
	caFile   string
	silence  time.Duration // how long a registry may say nothing; 0 is the default
}

func (f *registryFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVar(&f.insecure, "insecure", false, "try plain HTTP, too, with any registry; TLS stays checked")
	flags.StringVar(&f.caFile, "ca-file", "", "trust the authorities in this PEM `FILE`, too, for registries")
}

// registryOptions are the options for images that registries hold.
func (a *app) registryOptions(f registryFlags, p progress.Reporter) (image.Options, error) {
	o := image.Options{
		Progress: p, CacheDir: a.cacheDir, Insecure: f.insecure, IdleTimeout: f.silence, Keychain: keychain{}, Stdout: a.console,
		Received: new(atomic.Int64),
	}
	if f.caFile == "" {
		return o, nil
	}
	pem, err := os.ReadFile(f.caFile)
	if err != nil {
		return o, usage(fmt.Errorf("--ca-file: %w", err))
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		return o, fmt.Errorf("the system's certificate authorities: %w", err)
	}
	if !roots.AppendCertsFromPEM(pem) {
		return o, usage(errors.New("--ca-file " + f.caFile + " has no certificate in PEM"))
	}
	t := image.DefaultTransport().Clone()
	t.TLSClientConfig = &tls.Config{RootCAs: roots}
	o.Transport = http.RoundTripper(t)
	return o, nil
}
