package sandbox

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/docker/cli/cli/config"
	"github.com/docker/cli/cli/context/docker"
	"github.com/docker/cli/cli/context/store"
	"github.com/moby/moby/client"
)

// newDockerClient returns a client of the docker program's daemon: that of DOCKER_HOST, or else of the context in
// DOCKER_CONTEXT or Docker's configuration.
func newDockerClient() (*client.Client, error) {
	if host := os.Getenv(client.EnvOverrideHost); strings.HasPrefix(host, "ssh:") {
		options, err := (&docker.Endpoint{EndpointMeta: docker.EndpointMeta{Host: host}}).ClientOpts()
		if err != nil {
			return nil, err
		}
		return client.New(options...)
	} else if host != "" {
		return client.New(client.FromEnv)
	}
	dir := os.Getenv(config.EnvOverrideConfigDir)
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return client.New(client.FromEnv)
		}
		dir = filepath.Join(home, ".docker")
	}
	file, err := config.Load(dir)
	if err != nil {
		return nil, err
	}
	name := cmp.Or(os.Getenv("DOCKER_CONTEXT"), file.CurrentContext, "default")
	if name == "default" {
		return client.New(client.FromEnv)
	}
	options, err := contextOptions(filepath.Join(dir, "contexts"), name)
	if errdefs.IsNotFound(err) {
		return nil, fmt.Errorf("context %q isn't there; `docker context ls` lists those that are", name)
	}
	if err != nil {
		return nil, fmt.Errorf("context %q: %w; see `docker context ls`", name, err)
	}
	return client.New(options...)
}

// contextOptions returns the options for a client of a context's daemon.
func contextOptions(dir, name string) ([]client.Opt, error) {
	s := store.New(dir, store.NewConfig(func() any { return &map[string]any{} },
		store.EndpointTypeGetter(docker.DockerEndpoint, func() any { return &docker.EndpointMeta{} })))
	found, err := s.GetMetadata(name)
	if err != nil {
		return nil, err
	}
	meta, err := docker.EndpointFromContext(found)
	if err != nil {
		return nil, err
	}
	endpoint, err := docker.WithTLSData(s, name, meta)
	if err != nil {
		return nil, err
	}
	return endpoint.ClientOpts()
}
