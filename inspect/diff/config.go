package diff

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/inspect"
)

func configChanges(base, slim *inspect.Image) ([]Field, error) {
	old, err := configOf(base)
	if err != nil {
		return nil, err
	}
	new, err := configOf(slim)
	return fields(old, new), err
}

// configOf returns an image config and the annotations as names and values. It omits the build's time and history.
func configOf(img *inspect.Image) (map[string]string, error) {
	f := img.Files.Config
	out := map[string]string{}
	variant := f.Variant
	if variant == usualVariants[f.Architecture] {
		variant = ""
	}
	for name, value := range map[string]string{"os": f.OS, "architecture": f.Architecture, "variant": variant, "osVersion": f.OSVersion, "author": f.Author} {
		if value != "" {
			out[name] = value
		}
	}
	c := f.Config
	for _, e := range c.Env {
		k, v, _ := strings.Cut(e, "=")
		out["env."+k] = v
	}
	for k, v := range c.Labels {
		out["labels."+k] = v
	}
	for k := range c.ExposedPorts {
		out["exposedPorts."+k] = ""
	}
	for k := range c.Volumes {
		out["volumes."+k] = ""
	}
	for k, v := range img.Annotations {
		out["annotations."+k] = v
	}
	if c.Healthcheck != nil {
		out["healthcheck"] = healthcheck(c.Healthcheck)
	}
	c.Env, c.Labels, c.ExposedPorts, c.Volumes, c.Healthcheck = nil, nil, nil, nil, nil
	rest, err := others(c)
	maps.Copy(out, rest)
	return out, err
}

// usualVariants maps architectures to the default variant.
var usualVariants = map[string]string{"amd64": "v1", "arm": "v7", "arm64": "v8"}

func healthcheck(h *v1.HealthConfig) string {
	words := asJSON(h.Test)
	for _, t := range []struct{ name, value string }{
		{"interval", h.Interval.String()}, {"timeout", h.Timeout.String()}, {"startPeriod", h.StartPeriod.String()}, {"retries", fmt.Sprint(h.Retries)},
	} {
		if t.value != "0s" && t.value != "0" {
			words += " " + t.name + "=" + t.value
		}
	}
	return words
}

// others returns the other fields of a config: "user", "workingDir", "entrypoint", …
func others(c v1.Config) (map[string]string, error) {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal([]byte(asJSON(c)), &raw); err != nil {
		return nil, err
	}
	out := map[string]string{}
	for k, v := range raw {
		name, value := strings.ToLower(k[:1])+k[1:], string(v)
		var text string
		if json.Unmarshal(v, &text) == nil {
			value = text
		}
		out[name] = value
	}
	return out, nil
}

func asJSON(v any) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // strings and numbers always encode
	return strings.TrimSpace(b.String())
}

// fields returns the differences between two maps, by name.
func fields(old, new map[string]string) []Field {
	var out []Field
	for name, value := range old {
		if to, ok := new[name]; !ok || to != value {
			out = append(out, Field{Name: name, Old: value, New: to, InBase: true, InSlim: ok})
		}
	}
	for name, value := range new {
		if _, ok := old[name]; !ok {
			out = append(out, Field{Name: name, New: value, InSlim: true})
		}
	}
	slices.SortFunc(out, func(a, b Field) int { return strings.Compare(a.Name, b.Name) })
	return out
}
