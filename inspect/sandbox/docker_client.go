package sandbox

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"

	"github.com/docker/cli/cli/config"
	"github.com/docker/cli/cli/context/docker"
	"github.com/docker/cli/cli/context/store"
	"github.com/moby/moby/client"
)

// newDockerClient returns a client of the daemon that the docker program talks to: the one of DOCKER_HOST, or else of the
// context that DOCKER_CONTEXT or Docker's configuration names.
func newDockerClient() (*client.Client, error) {
	if os.Getenv(client.EnvOverrideHost) != "" {
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
	if err != nil {
		return nil, fmt.Errorf("context %q: %w; see `docker context ls`", name, err)
	}
	return client.New(options...)
}

// contextOptions returns the options for a client of the daemon of a context.
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
