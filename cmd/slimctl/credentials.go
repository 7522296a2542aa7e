package main

import (
	"context"

	"github.com/google/go-containerregistry/pkg/authn"
)

// keychain reads credentials from Docker's config and its credential helpers. An unreadable config is reported as such,
// not as a failure of the registry.
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

// credentialsError wraps no error: an unexpected end of file, for example, would be classified as a broken connection.
type credentialsError struct{ cause string }

func (e *credentialsError) Error() string {
	return "credentials from the Docker config (config.json in DOCKER_CONFIG or ~/.docker): " + e.cause
}
