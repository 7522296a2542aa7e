package build

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
)

// ConfigChange holds the changes to the image config. A zero field keeps the base's value.
type ConfigChange struct {
	// Env adds or replaces variables; a replaced one keeps its position. UnsetEnv lists the base's variables to remove.
	Env      map[string]string
	UnsetEnv []string
	// Labels adds or replaces labels.
	Labels     map[string]string
	WorkingDir string
	User       string
	// ExposedPorts replaces the base's ports, as port/protocol. Nil keeps them; an empty list exposes none.
	ExposedPorts []string
	Entrypoint   []string
	Cmd          []string
	Healthcheck  *v1.HealthConfig
}

// Render returns the layers that the recipe adds to its base, and the image config for them.
func (r *Recipe) Render() (layers []v1.Layer, config []byte, err error) {
	plans := r.Layers()
	layers = make([]v1.Layer, len(plans))
	var g errgroup.Group
	for i, p := range plans {
		g.Go(func() (err error) {
			if layers[i], err = r.Cache.Layer(p.Files); err != nil {
				return fmt.Errorf("%s: %w", p.Name, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, nil, err
	}
	config, err = r.config(plans, layers)
	return layers, config, err
}

// Config returns the image config as Render does, except that rootfs lists the base's layers only. It makes no layer.
func (r *Recipe) Config() ([]byte, error) { return r.config(r.Layers(), nil) }

func (r *Recipe) baseConfig() (ocispec.Image, map[string]json.RawMessage, error) {
	var typed ocispec.Image
	top := map[string]json.RawMessage{}
	raw, err := r.Base.Image.RawConfigFile()
	if err != nil {
		return typed, nil, err
	}
	if err := errors.Join(json.Unmarshal(raw, &top), json.Unmarshal(raw, &typed)); err != nil {
		return typed, nil, err
	}
	if top == nil {
		return typed, nil, errors.New("it is null, not an object")
	}
	if err := checkKeyCase(top); err != nil {
		return typed, nil, err
	}
	return typed, top, r.replaceLayers(&typed)
}

// replaceLayers lists in the config the layers that replace the base's. The base's history stays, with empty layers.
func (r *Recipe) replaceLayers(config *ocispec.Image) error {
	layers := r.Stripped()
	if layers == nil {
		return nil
	}
	config.RootFS.DiffIDs = nil
	config.History = slices.Clone(config.History)
	for i := range config.History {
		config.History[i].EmptyLayer = true
	}
	for _, l := range layers {
		d, err := l.DiffID()
		if err != nil {
			return err
		}
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, digestOf(d))
		config.History = append(config.History, ocispec.History{
			Created: &r.Epoch, CreatedBy: fmt.Sprintf("slimctl %s: keep %s (%d files)", r.Profile, l.Name, l.Files), Comment: "slimctl",
		})
	}
	return nil
}

// configKeys are the keys of an image config, and of its "config" object, that a runtime reads.
var configKeys = []string{
	"os", "architecture", "variant", "config", "rootfs", "history", "created",
	"Env", "Cmd", "Entrypoint", "User", "WorkingDir", "ExposedPorts", "Volumes", "Labels", "StopSignal", "StopTimeout", "Healthcheck", "Shell", "OnBuild",
}

// checkKeyCase refuses a key that differs from one of configKeys only in case. Go's decoders accept both and the
// last one wins, so a base could override the profile's value.
func checkKeyCase(object map[string]json.RawMessage) error {
	for key := range object {
		for _, known := range configKeys {
			if key != known && strings.EqualFold(key, known) {
				return fmt.Errorf("key %q must be written %q", key, known)
			}
		}
	}
	return nil
}

// config returns the image config as JSON, byte for byte as it will be published. A key that nothing changes keeps the
// base's bytes. Keys are sorted as BuildKit's exporter sorts them (exporter/containerimage/writer.go,
// patchImageConfig), and each layer has a history entry, so BuildKit has nothing to add. made are the added layers, or
// nil.
func (r *Recipe) config(layers []Layer, made []v1.Layer) (_ []byte, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("config of %s: %w", r.Base.Reference, err)
		}
	}()
	typed, top, err := r.baseConfig()
	if err != nil {
		return nil, err
	}
	inBase := len(typed.RootFS.DiffIDs)
	for _, l := range made {
		d, err := l.DiffID()
		if err != nil {
			return nil, err
		}
		typed.RootFS.DiffIDs = append(typed.RootFS.DiffIDs, digestOf(d))
	}
	inner := map[string]json.RawMessage{}
	if c, ok := top["config"]; ok && string(c) != "null" {
		if err := json.Unmarshal(c, &inner); err != nil {
			return nil, err
		}
	}
	if err := checkKeyCase(inner); err != nil {
		return nil, err
	}
	// Docker's record of the container that the base was committed from doesn't apply to this image.
	for _, key := range []string{"container", "container_config", "docker_version", "id", "parent", "throwaway"} {
		delete(top, key)
	}
	if err := r.Change.applyTo(inner); err != nil {
		return nil, err
	}
	typed.RootFS.Type = "layers"
	for key, value := range map[string]any{
		"os": r.Platform.OS, "architecture": r.Platform.Architecture, "created": r.Epoch.UTC(),
		"config": inner, "rootfs": typed.RootFS, "history": r.history(typed, inBase, layers),
	} {
		if top[key], err = json.Marshal(value); err != nil {
			return nil, err
		}
	}
	return json.Marshal(top)
}

// history returns the base's history, completed to one entry with a time per layer, followed by an entry for each added
// layer.
func (r *Recipe) history(image ocispec.Image, inBase int, layers []Layer) []ocispec.History {
	history := slices.Clone(image.History)
	have := 0
	for i, h := range history {
		if h.Created == nil {
			history[i].Created = &r.Epoch
		}
		if !h.EmptyLayer {
			have++
		}
		if have > inBase {
			history[i].EmptyLayer = true
		}
	}
	for ; have < inBase; have++ {
		history = append(history, ocispec.History{Created: &r.Epoch, Comment: "layer of the base"})
	}
	for _, l := range layers {
		history = append(history, ocispec.History{Created: &r.Epoch, CreatedBy: l.CreatedBy, Comment: "slimctl"})
	}
	return history
}

// applyTo changes the "config" object of an image config.
func (c ConfigChange) applyTo(config map[string]json.RawMessage) error {
	var env []string
	if err := decodeKey(config, "Env", &env); err != nil {
		return err
	}
	if err := encodeKey(config, "Env", c.mergeEnv(env), len(c.Env)+len(c.UnsetEnv) > 0); err != nil {
		return err
	}
	labels := map[string]string{}
	if err := decodeKey(config, "Labels", &labels); err != nil {
		return err
	}
	if labels == nil {
		labels = map[string]string{}
	}
	maps.Copy(labels, c.Labels)
	ports := map[string]struct{}{}
	for _, p := range c.ExposedPorts {
		ports[p] = struct{}{}
	}
	// A new entrypoint makes the base's arguments meaningless, as in a Dockerfile.
	if len(c.Entrypoint) > 0 && len(c.Cmd) == 0 {
		delete(config, "Cmd")
	}
	for _, s := range []struct {
		key    string
		value  any
		wanted bool
	}{
		{"Labels", labels, len(c.Labels) > 0},
		{"WorkingDir", c.WorkingDir, c.WorkingDir != ""},
		{"User", c.User, c.User != ""},
		{"ExposedPorts", ports, c.ExposedPorts != nil},
		{"Entrypoint", c.Entrypoint, len(c.Entrypoint) > 0},
		{"Cmd", c.Cmd, len(c.Cmd) > 0},
		{"Healthcheck", c.Healthcheck, c.Healthcheck != nil},
	} {
		if err := encodeKey(config, s.key, s.value, s.wanted); err != nil {
			return err
		}
	}
	return nil
}

// mergeEnv returns the variables of base with the change applied: KEY=VALUE, each key once, added ones last and sorted.
func (c ConfigChange) mergeEnv(base []string) []string {
	var out []string
	done := map[string]bool{}
	for _, kv := range base {
		k, _, _ := strings.Cut(kv, "=")
		if v, ok := c.Env[k]; ok {
			kv = k + "=" + v
		}
		if !slices.Contains(c.UnsetEnv, k) && !done[k] {
			out = append(out, kv)
		}
		done[k] = true
	}
	added := make([]string, 0, len(c.Env))
	for k, v := range c.Env {
		if !done[k] {
			added = append(added, k+"="+v)
		}
	}
	sort.Strings(added)
	return append(out, added...)
}

// decodeKey decodes the value of key, if config has it.
func decodeKey(config map[string]json.RawMessage, key string, into any) error {
	raw, ok := config[key]
	if !ok {
		return nil
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("config.%s: %w", key, err)
	}
	return nil
}

// encodeKey sets key to the JSON of value, if wanted.
func encodeKey(config map[string]json.RawMessage, key string, value any, wanted bool) error {
	if !wanted {
		return nil
	}
	raw, err := json.Marshal(value)
	if err != nil {
		return err
	}
	config[key] = raw
	return nil
}

// EpochOf returns the creation time of the newest of bases, in whole seconds, or the Unix epoch if none has one. Builds use
// it unless SOURCE_DATE_EPOCH is set.
func EpochOf(bases ...v1.Image) (time.Time, error) {
	var newest time.Time
	for _, b := range bases {
		c, err := b.ConfigFile()
		if err != nil {
			return time.Time{}, err
		}
		if c.Created.After(newest) {
			newest = c.Created.Time
		}
	}
	if newest.IsZero() {
		return time.Unix(0, 0).UTC(), nil
	}
	return newest.UTC().Truncate(time.Second), nil
}

// Lines describes each change in one line.
func (c ConfigChange) Lines() []string {
	var out []string
	for _, m := range []struct {
		key    string
		values map[string]string
	}{{"env", c.Env}, {"label", c.Labels}} {
		for _, k := range slices.Sorted(maps.Keys(m.values)) {
			out = append(out, fmt.Sprintf("%s %s=%s", m.key, k, m.values[k]))
		}
	}
	if len(c.UnsetEnv) > 0 {
		out = append(out, "env of the base removed: "+strings.Join(c.UnsetEnv, ", "))
	}
	for _, s := range []struct{ key, value string }{{"workdir", c.WorkingDir}, {"user", c.User}} {
		if s.value != "" {
			out = append(out, s.key+" "+s.value)
		}
	}
	for _, s := range []struct {
		key    string
		values []string
	}{{"expose", c.ExposedPorts}, {"entrypoint", c.Entrypoint}, {"cmd", c.Cmd}} {
		if len(s.values) > 0 {
			out = append(out, fmt.Sprintf("%s %q", s.key, s.values))
		}
	}
	if h := c.Healthcheck; h != nil {
		out = append(out, fmt.Sprintf("healthcheck %q every %s, timeout %s, start period %s, %d retries", h.Test, h.Interval, h.Timeout, h.StartPeriod, h.Retries))
	}
	return out
}
