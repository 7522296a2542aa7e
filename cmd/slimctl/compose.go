package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/inspect/sandbox/compose"
	"github.com/slimctl/slimctl/server/policy"
	"github.com/slimctl/slimctl/slim"
)

// renderers holds the renderer for each value of --format.
var renderers = map[string]func(compose.Service) ([]byte, error){
	"compose":    compose.Compose,
	"kubernetes": compose.Kubernetes,
}

func (a *app) compose() *cobra.Command {
	var format, output, publish, policyFile, work, artifacts, memory string
	var env []string
	var cpus float64
	var resolve bool
	s := compose.Service{}
	cmd := &cobra.Command{
		Use:   "compose IMAGE",
		Short: "Write a Compose file or a Kubernetes manifest",
		Long: `Compose writes a file that runs a built image as a service, as closed as slimctl run. The
service has a read-only root, few capabilities, limits on memory, processor and processes,
and its port on loopback. The file holds no key, only the variable or Secret with the key.

--output also writes NAME.README.md, a page for the person who receives the file.`,
		Example: `  slimctl compose registry.example/slim@sha256:… --output docker-compose.yml
  slimctl compose registry.example/slim:1 --resolve-image-digests \
    --format kubernetes --rootless | kubectl apply -f -`,
		Args: oneArg("an image reference"),
		RunE: func(cmd *cobra.Command, args []string) error {
			render := renderers[format]
			s.Image = strings.TrimPrefix(args[0], "docker://")
			s.Settings = compose.Settings(publish)
			s.Settings.Env, s.Settings.CPUs = parseEnv(env), cpus
			err := slim.CheckGateEnv(s.Settings.Env)
			if err != nil {
				return usageError(fmt.Errorf("--env: %w", err))
			}
			if s.Settings.Memory, err = parseBytes(memory); err != nil {
				return usageError(fmt.Errorf("--memory %q: %w", memory, err))
			}
			for _, p := range []struct{ given, to *string }{{&policyFile, &s.PolicyFile}, {&work, &s.Settings.Work}, {&artifacts, &s.Settings.Output}} {
				if *p.given == "" {
					continue
				}
				abs, err := filepath.Abs(*p.given)
				if err != nil {
					return err
				}
				*p.to = abs
			}
			if policyFile != "" {
				if err := a.readPolicy(policyFile, format, &s); err != nil {
					return usageError(err)
				}
			}
			text, err := render(s) // fails before any registry is contacted
			if err != nil {
				return usageError(err)
			}
			if resolve {
				access, err := a.access(registryFlags{}, "")
				if err != nil {
					return err
				}
				src, err := image.Open(cmd.Context(), s.Image, access.Options)
				if err != nil {
					return err
				}
				s.Image = image.Pin(s.Image, src.Digest())
				if text, err = render(s); err != nil {
					return err
				}
			}
			if !strings.Contains(s.Image, "@") {
				fmt.Fprintln(a.stderr, "slimctl: warning: the image isn't pinned; give it with its digest, or with --resolve-image-digests")
			}
			if output == "" || output == "-" {
				_, err = a.stdout.Write(text)
				return err
			}
			readme, err := compose.Readme(s, filepath.Base(output), format == "kubernetes")
			if err != nil {
				return err
			}
			if err := image.WriteBytes(strings.TrimSuffix(output, filepath.Ext(output))+".README.md", 0o644, readme); err != nil {
				return err
			}
			return image.WriteBytes(output, 0o644, text)
		},
	}
	f := cmd.Flags()
	addChoice(f, &format, "format", "", "compose", "kubernetes")
	f.StringVarP(&output, "output", "o", "", "`FILE` to write (default: standard output)")
	f.BoolVar(&resolve, "resolve-image-digests", false, "ask the registry for the image's digest, and pin it")
	f.StringVar(&s.Name, "name", "browser", "name of the service and of all objects")
	f.StringVarP(&s.Namespace, "namespace", "n", "", "Kubernetes namespace (default: the one that kubectl has)")
	f.StringVarP(&publish, "port", "p", "127.0.0.1:8080", "loopback `ADDRESS:PORT` to serve at, with compose")
	f.StringVar(&policyFile, "policy", "", "`FILE` with the browser-shell policy, in the place of the image's own")
	f.StringArrayVarP(&env, "env", "e", nil, "set NAME=VALUE, or write NAME's value now (repeatable)")
	f.StringVarP(&memory, "memory", "m", "1024m", "memory limit, in bytes or with k, m or g")
	f.Float64Var(&cpus, "cpus", 1, "number of cores")
	f.StringVar(&work, "work", "", "`DIR` that the tool may read at /work, with compose")
	f.StringVar(&artifacts, "artifacts", "", "`DIR` that /output is kept in, with compose")
	f.BoolVar(&s.Rootless, "rootless", false, "start as uid 1000, without any capability")
	return cmd
}

// readPolicy reads and checks the service's policy file. It warns about settings of the file that the service doesn't
// apply.
func (a *app) readPolicy(file, format string, s *compose.Service) error {
	p, text, err := policy.ReadFile(file)
	if err != nil {
		return err
	}
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	if mode := info.Mode().Perm(); format == "compose" && mode&0o020 != 0 { // the host's group has no meaning in the container
		return fmt.Errorf("policy file: the group may write %s (mode %04o), which the container refuses; chmod g-w %[1]s", file, mode)
	}
	s.Policy, s.Private = text, p.PrivateRanges()
	if fits, err := slim.ChromiumFits(p); err != nil || fits {
		return err
	}
	fmt.Fprintln(a.stderr, "slimctl: warning: Chromium keeps the hosts, schemes and pdf that the image was built with; "+
		"to allow more than those build the image with this policy")
	return nil
}
