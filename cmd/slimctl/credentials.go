package main

import (
	"context"

	"github.com/google/go-containerregistry/pkg/authn"
)

// keychain is the Docker config with its credential helpers. A config that can't be read is told as that, and not as
// trouble with a registry.
type keychain struct{}

var _ authn.ContextKeychain = keychain{}

func (k keychain) Resolve(r authn.Resource) (authn.Authenticator, error) {
	return k.ResolveContext(context.Background(), r)
}

func (keychain) ResolveContext(ctx context.Context, r authn.Resource) (authn.Authenticator, error) {
	a, err := authn.Resolve(ctx, authn.DefaultKeychain, r)
	if err != nil {
		return nil, &credentialsError{err.Error()}
	}
	return a, nil
}

// credentialsError has no cause, since one such as an unexpected end of file would count as a broken connection.
type credentialsError struct{ cause string }

func (e *credentialsError) Error() string {
	return "credentials from the Docker config (config.json in DOCKER_CONFIG or ~/.docker): " + e.cause
}
