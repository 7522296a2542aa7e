package verify

import (
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image"
)

var configRules = []rule{
	{Rule: Rule{
		ID: "config", Title: "The image config is the profile's", Severity: Error,
		Why: "Variables, user, directory, ports and health check are what a container starts with; another value starts another thing. What the profile leaves alone is the base's.",
		Fix: "Build again, or set the value in the profile's config.",
	}, each: configDiffers},
	{Rule: Rule{
		ID: "config-port", Title: "The image exposes the profile's ports", Severity: Error,
		Why: "docker run -P and many platforms publish every port that the config names.",
		Fix: "Set config.exposedPorts.",
	}, each: configPorts},
	{Rule: Rule{
		ID: "config-volume", Title: "The image has no volume over laid files", Severity: Error,
		Why: "A volume keeps its first content: the next version of the image starts with the files of the one before, a policy among them, and whatever a container wrote there.",
		Fix: "Build from a base without the volume.",
	}, each: configVolumes},
	{Rule: Rule{
		ID: "config-history", Title: "The history is the base's and the build's", Severity: Warning,
		Why: "People and scanners read from it what made a layer; a wrong one gives a layer another maker. It changes nothing of what runs, and an image that a Dockerfile made has another.",
		Fix: "Build again.",
	}, each: historyBuilt},
	{Rule: Rule{
		ID: "config-label", Title: "The labels are the profile's and the base's", Severity: Error,
		Why: "Machines act on labels: one has an editor start the container with all privileges (devcontainer.metadata), others are commands to run on the host. Those that only describe the image (org.opencontainers.image) may differ from the base's.",
		Fix: "Build again. A label of your own, of build --label x=y, is accepted by verify --set config.labels.x=y; write config.labels.\"a.b\"=y for a name with dots.",
	}, each: configLabels},
	{Rule: Rule{
		ID: "label-unknown", Title: "Labels that the profile does not name", Severity: Info,
		Why: "Containers have the labels of their image, and some machines act on them: a reverse proxy publishes the port that one names.",
		Fix: "Set the label in config.labels; an empty one says nothing.",
	}, each: labelUnknown},
	{Rule: Rule{
		ID: "env-unknown", Title: "Variables that the profile does not name", Severity: Info,
		Why: "They come from the base. browser-shell init gives programs an environment of its own, so that they reach none of them.",
		Fix: "Set the variable in config.env, or build again: what the profile does not name goes.",
	}, each: envUnknown},
}

func configDiffers(h *held) error {
	if err := configBuilt(h); err != nil {
		return err
	}
	c, want := h.Surface.Config, h.want.Config
	for _, name := range sortedKeys(want.Env) {
		if have, ok := c.Env[name]; !ok {
			h.found(name, nil, "the variable %s is not there; the profile's is %q", name, want.Env[name])
		} else if have != want.Env[name] {
			h.found(name, nil, "the variable %s is %q; the profile's is %q", name, have, want.Env[name])
		}
	}
	for _, name := range want.Unset {
		if c.Env[name] != "" { // a Dockerfile can only blank it
			h.found(name, nil, "the variable %s is there; the profile takes it away", name)
		}
	}
	for _, f := range []struct{ name, have, want string }{{"user", c.User, want.User}, {"working directory", c.WorkingDir, want.WorkingDir}} {
		if f.want != "" && f.have != f.want {
			h.found(f.name, nil, "the %s is %q; the profile's is %q", f.name, f.have, f.want)
		}
	}
	if want.Healthcheck != nil && !slices.Equal(want.Healthcheck, c.Healthcheck) {
		h.found("healthcheck", nil, "the health check is %q; the profile's is %q", c.Healthcheck, want.Healthcheck)
	} else if len(c.Healthcheck) > 1 && c.Healthcheck[0] == "CMD-SHELL" && want.Healthcheck == nil {
		h.found("healthcheck", nil, "the health check %q is run by a shell", c.Healthcheck)
	}
	raw := h.Files.Config
	if raw == nil {
		return nil
	}
	if len(raw.Config.OnBuild) > 0 {
		h.found("onbuild", nil, "the image has ONBUILD steps: %s", list(raw.Config.OnBuild))
	}
	seen := map[string]bool{}
	for _, line := range raw.Config.Env {
		name, _, ok := strings.Cut(line, "=")
		if !ok || name == "" {
			h.found(name, nil, "the variable %q has no name or no value: runtimes differ on what that means", name)
		} else if seen[name] {
			h.found(name, nil, "the variable %s is there twice: runtimes differ on which of them counts", name)
		}
		seen[name] = true
	}
	return nil
}

// port gives a port as the image config has it, port/protocol.
func port(p string) string {
	if !slices.Contains([]byte(p), '/') {
		return p + "/tcp"
	}
	return p
}

func configPorts(h *held) error {
	if h.want.Config.ExposedPorts == nil {
		return nil
	}
	var have, want []string
	for _, p := range h.Surface.Config.ExposedPorts {
		have = append(have, port(p))
	}
	for _, p := range h.want.Config.ExposedPorts {
		want = append(want, port(p))
	}
	for _, p := range difference(have, want) {
		h.found(p, nil, "the image exposes %s", p)
	}
	for _, p := range difference(want, have) {
		h.found(p, nil, "the image does not expose %s", p)
	}
	return nil
}

func configVolumes(h *held) error {
	for _, v := range h.Surface.Config.Volumes {
		for _, p := range sortedKeys(h.laid) {
			if f := h.laid[p]; f.Type != string(image.TypeDir) && image.Within(p, image.Clean(v)) {
				h.found(v, nil, "the volume %s holds laid files, such as %s", v, p)
				break
			}
		}
	}
	return nil
}

func configLabels(h *held) error {
	h.labelsBuilt()
	for _, name := range sortedKeys(h.want.Config.Labels) {
		if have, want := h.Surface.Config.Labels[name], h.want.Config.Labels[name]; have != want {
			h.found(name, nil, "the label %s is %q; the profile's is %q", name, have, want)
		}
	}
	return nil
}

func envUnknown(h *held) error {
	var unknown []string
	for _, name := range sortedKeys(h.Surface.Config.Env) {
		_, ours := h.want.Config.Env[name]
		if !ours && !slices.Contains(h.want.Switches, name) && h.Surface.Config.Env[name] != "" {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		h.found("", nil, "the profile does not name %s", list(unknown))
	}
	return nil
}

// ociLabel are those that describe an image to people (OCI image specification, annotations.md).
const ociLabel = "org.opencontainers.image."

func labelUnknown(h *held) error {
	var unknown []string
	for _, name := range sortedKeys(h.Surface.Config.Labels) {
		if _, ours := h.want.Config.Labels[name]; !ours && h.Surface.Config.Labels[name] != "" && !strings.HasPrefix(name, ociLabel) {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		h.found("", nil, "the profile does not name %s", list(unknown))
	}
	return nil
}
