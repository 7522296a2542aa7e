package ocitest

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// Layout gives the images of the OCI layout in dir by platform, as "linux/amd64" or "linux/arm/v7". An image that
// isn't part of an index is there by its config's platform; attestation manifests are left out.
func Layout(t testing.TB, dir string) map[string]v1.Image {
	t.Helper()
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]v1.Image{}
	if err := collect(index, out); err != nil {
		t.Fatalf("%s: %v", dir, err)
	}
	return out
}

// Index gives the images of idx as Layout does.
func Index(t testing.TB, idx v1.ImageIndex) map[string]v1.Image {
	t.Helper()
	out := map[string]v1.Image{}
	if err := collect(idx, out); err != nil {
		t.Fatal(err)
	}
	return out
}

func collect(index v1.ImageIndex, out map[string]v1.Image) error {
	manifest, err := index.IndexManifest()
	if err != nil {
		return err
	}
	for _, d := range manifest.Manifests {
		switch {
		case d.MediaType.IsIndex():
			inner, err := index.ImageIndex(d.Digest)
			if err != nil {
				return err
			}
			if err := collect(inner, out); err != nil {
				return err
			}
		case d.MediaType.IsImage() && d.Annotations["vnd.docker.reference.type"] == "":
			img, err := index.Image(d.Digest)
			if err != nil {
				return err
			}
			config, err := img.ConfigFile()
			if err != nil {
				return err
			}
			name := config.Platform().String()
			if _, twice := out[name]; twice {
				return fmt.Errorf("two images for %s", name)
			}
			out[name] = img
		}
	}
	return nil
}

// Config gives what counts of an image's config: its platform, and all keys of its "config" object, those that slimctl
// doesn't know too. Empty values are left out, and so is ArgsEscaped, which BuildKit sets on every image with an
// ENTRYPOINT or CMD and which says something for Windows only; times, history and layers are not in it.
func Config(t testing.TB, img v1.Image) map[string]any {
	t.Helper()
	raw, err := img.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	var top struct {
		OS, Architecture, Variant string
		OSVersion                 string `json:"os.version"`
		Config                    map[string]any
	}
	if err := json.Unmarshal(raw, &top); err != nil {
		t.Fatal(err)
	}
	out := map[string]any{
		"os": top.OS, "architecture": top.Architecture, "variant": top.Variant, "os.version": top.OSVersion,
	}
	if env, ok := top.Config["Env"].([]any); ok {
		list := make([]string, len(env))
		for i, kv := range env {
			list[i], _ = kv.(string)
		}
		top.Config["Env"] = environment(list)
	}
	for k, v := range top.Config {
		if !isEmpty(v) && k != "ArgsEscaped" {
			out["config."+k] = v
		}
	}
	return out
}

func isEmpty(v any) bool {
	switch v := v.(type) {
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return v == nil || v == "" || v == false || v == float64(0)
}

// environment returns the variables of an image config by name, without the blank ones: a Dockerfile can't take a variable of
// its base away, only blank it, so two configs that differ in blank variables alone are the same.
func environment(env []string) map[string]string {
	out := map[string]string{}
	for _, kv := range env {
		if k, v, _ := strings.Cut(kv, "="); v != "" {
			out[k] = v
		}
	}
	return out
}
