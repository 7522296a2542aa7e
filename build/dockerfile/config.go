package dockerfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/image"
)

// instruction is one complete line of a Dockerfile.
type instruction string

var (
	envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`)
	port    = regexp.MustCompile(`^[0-9]{1,5}(-[0-9]{1,5})?/(tcp|udp|sctp)$`)
)

// configurer collects the instructions of one config change and stops at the first error.
type configurer struct {
	change build.ConfigChange
	base   v1.Config
	recipe *build.Recipe
	out    []instruction
}

// configureWhole returns the instructions for the whole config, for a stage that begins empty.
func configureWhole(r *build.Recipe) ([]instruction, error) {
	raw, err := r.Config()
	if err != nil {
		return nil, err
	}
	var image struct {
		Config map[string]json.RawMessage `json:"config"`
	}
	var typed v1.ConfigFile
	if err := errors.Join(json.Unmarshal(raw, &image), json.Unmarshal(raw, &typed)); err != nil {
		return nil, err
	}
	for key := range image.Config {
		if !slices.Contains(stated, key) {
			return nil, fmt.Errorf("config of %s: %q can't be written in a Dockerfile that begins empty: use slimctl build", r.Base.Reference, key)
		}
	}
	of := typed.Config
	change := build.ConfigChange{
		Env: map[string]string{}, Labels: of.Labels, WorkingDir: of.WorkingDir, User: of.User, ExposedPorts: slices.Sorted(maps.Keys(of.ExposedPorts)),
		Entrypoint: of.Entrypoint, Cmd: of.Cmd, Healthcheck: of.Healthcheck,
	}
	for _, kv := range of.Env {
		k, v, _ := strings.Cut(kv, "=")
		change.Env[k] = v
	}
	out, err := (&configurer{change: change, recipe: r}).instructions()
	if err != nil {
		return nil, err
	}
	if len(of.Volumes) > 0 {
		volumes, err := execForm(slices.Sorted(maps.Keys(of.Volumes)))
		if err != nil {
			return nil, fmt.Errorf("volumes: %w", err)
		}
		out = append(out, instruction("VOLUME "+volumes))
	}
	if len(of.Shell) > 0 {
		shell, err := execForm(of.Shell)
		if err != nil {
			return nil, fmt.Errorf("shell: %w", err)
		}
		out = append(out, instruction("SHELL "+shell))
	}
	if of.StopSignal != "" {
		signal, err := word(of.StopSignal)
		if err != nil {
			return nil, fmt.Errorf("stop signal: %w", err)
		}
		out = append(out, instruction("STOPSIGNAL "+signal))
	}
	return out, nil
}

// stated are the config keys that have an instruction, and one that has no effect on Linux.
var stated = []string{
	"Env", "Labels", "WorkingDir", "User", "ExposedPorts", "Entrypoint", "Cmd", "Healthcheck", "Volumes", "Shell", "StopSignal", "ArgsEscaped",
}

// configure returns the instructions for the recipe's config change, on top of the base's config.
func configure(r *build.Recipe) ([]instruction, error) {
	base, err := r.Base.Image.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("config of %s: %w", r.Base.Reference, err)
	}
	if len(base.Config.OnBuild) > 0 {
		return nil, fmt.Errorf("config of %s: FROM would carry out its ONBUILD instructions: %q", r.Base.Reference, base.Config.OnBuild)
	}
	return (&configurer{change: r.Change, base: base.Config, recipe: r}).instructions()
}

func (c *configurer) instructions() ([]instruction, error) {
	for _, part := range []func() error{
		c.env, c.labels, c.workdir, c.user, c.ports, c.healthcheck, c.entrypoint, c.cmd,
	} {
		if err := part(); err != nil {
			return nil, fmt.Errorf("image config: %w", err)
		}
	}
	return c.out, nil
}

func (c *configurer) add(format string, args ...any) {
	c.out = append(c.out, instruction(fmt.Sprintf(format, args...)))
}

// env sets variables, and sets those to be removed to the empty string, because a Dockerfile can't unset a variable.
func (c *configurer) env() error {
	env := maps.Clone(c.change.Env)
	if env == nil {
		env = map[string]string{}
	}
	for _, k := range c.change.UnsetEnv {
		env[k] = ""
	}
	for _, k := range slices.Sorted(maps.Keys(env)) {
		if !envName.MatchString(k) {
			return fmt.Errorf("env %q: not a name that a Dockerfile can set", k)
		}
		v, err := word(env[k])
		if err != nil {
			return fmt.Errorf("env %s: %w", k, err)
		}
		c.add("ENV %s=%s", k, v)
	}
	return nil
}

func (c *configurer) labels() error {
	for _, k := range slices.Sorted(maps.Keys(c.change.Labels)) {
		if k == "" || strings.ContainsAny(k, "=\t") {
			return fmt.Errorf("label %q: not a name that a Dockerfile can set", k)
		}
		key, err := word(k)
		if err != nil {
			return fmt.Errorf("label %w", err)
		}
		v, err := word(c.change.Labels[k])
		if err != nil {
			return fmt.Errorf("label %s: %w", k, err)
		}
		c.add("LABEL %s=%s", key, v)
	}
	return nil
}

func (c *configurer) workdir() error {
	dir := c.change.WorkingDir
	if dir == "" || dir == c.base.WorkingDir {
		return nil
	}
	if !path.IsAbs(dir) || image.Clean(dir) != dir {
		return fmt.Errorf("working directory %q isn't an absolute, clean path", dir)
	}
	for _, r := range c.recipe.Removals {
		if image.Within(dir, r.Path) && !c.isLaid(dir) {
			return fmt.Errorf("working directory %s is removed by step %q: WORKDIR would make it again", dir, r)
		}
	}
	v, err := word(dir)
	if err != nil {
		return fmt.Errorf("working directory %w", err)
	}
	c.add("WORKDIR %s", v)
	return nil
}

// isLaid reports whether an overlay has a file at or below dir.
func (c *configurer) isLaid(dir string) bool {
	for _, s := range c.recipe.Overlays {
		if slices.ContainsFunc(s.Files, func(f image.File) bool { return image.Within(f.Path, dir) }) {
			return true
		}
	}
	return false
}

func (c *configurer) user() error {
	if c.change.User == "" {
		return nil
	}
	if !userName.MatchString(c.change.User) {
		return fmt.Errorf("user %q: not a name or number that a Dockerfile can set", c.change.User)
	}
	c.add("USER %s", c.change.User)
	return nil
}

func (c *configurer) ports() error {
	if len(c.change.ExposedPorts) == 0 {
		return nil
	}
	for _, p := range slices.Sorted(maps.Keys(c.base.ExposedPorts)) {
		if !slices.Contains(c.change.ExposedPorts, p) {
			return fmt.Errorf("port %s: a Dockerfile can't take away a port that the base exposes: expose it too, or use slimctl build", p)
		}
	}
	for _, p := range c.change.ExposedPorts {
		if !port.MatchString(p) {
			return fmt.Errorf("port %q: want PORT/tcp, PORT/udp or PORT/sctp", p)
		}
	}
	c.add("EXPOSE %s", strings.Join(slices.Sorted(slices.Values(c.change.ExposedPorts)), " "))
	return nil
}

func (c *configurer) healthcheck() error {
	h := c.change.Healthcheck
	if h == nil {
		return nil
	}
	options := healthOptions(h)
	if len(h.Test) == 0 {
		return fmt.Errorf("healthcheck: a Dockerfile can't change the times and keep the base's test: write config.healthcheck.test in the profile")
	}
	switch kind, args := h.Test[0], h.Test[1:]; {
	case kind == "NONE" && len(args) == 0 && options == "":
		c.add("HEALTHCHECK NONE")
	case kind == "CMD" && len(args) > 0:
		test, err := execForm(args)
		if err != nil {
			return fmt.Errorf("healthcheck: %w", err)
		}
		c.add("HEALTHCHECK %sCMD %s", options, test)
	case kind == "CMD-SHELL" && len(args) == 1:
		if err := shellForm(args[0]); err != nil {
			return fmt.Errorf("healthcheck: %w", err)
		}
		c.add("HEALTHCHECK %sCMD %s", options, args[0])
	default:
		return fmt.Errorf(`healthcheck: test %q: want ["CMD", program, ...], ["CMD-SHELL", line] or ["NONE"]`, h.Test)
	}
	return nil
}

// shellForm refuses a command that a Dockerfile would change.
func shellForm(s string) error {
	if err := checkPrintable(s); err != nil {
		return err
	}
	if s == "" || strings.TrimSpace(s) != s || strings.HasSuffix(s, `\`) || json.Valid([]byte(s)) {
		return fmt.Errorf("%q can't be a shell command in a Dockerfile: use the CMD form with arguments", s)
	}
	return nil
}

func healthOptions(h *v1.HealthConfig) (out string) {
	for _, o := range []struct {
		name  string
		value time.Duration
	}{
		{"interval", h.Interval}, {"timeout", h.Timeout}, {"start-period", h.StartPeriod},
	} {
		if o.value != 0 {
			out += fmt.Sprintf("--%s=%s ", o.name, o.value)
		}
	}
	if h.Retries > 0 {
		out += "--retries=" + strconv.Itoa(h.Retries) + " "
	}
	return out
}

// entrypoint writes ENTRYPOINT, which drops the base's CMD in a Dockerfile as in a recipe.
func (c *configurer) entrypoint() error { return c.exec("ENTRYPOINT", c.change.Entrypoint) }

func (c *configurer) cmd() error { return c.exec("CMD", c.change.Cmd) }

func (c *configurer) exec(name string, args []string) error {
	if len(args) == 0 {
		return nil
	}
	form, err := execForm(args)
	if err != nil {
		return fmt.Errorf("%s: %w", strings.ToLower(name), err)
	}
	c.add("%s %s", name, form)
	return nil
}
