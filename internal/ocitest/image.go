package ocitest

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// Layout returns the images of the OCI layout in dir by platform, such as "linux/amd64" or "linux/arm/v7". An image
// outside of an index has its config's platform. Attestations are left out.
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

// Index returns the images of idx, like Layout.
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

// Config returns the parts of an image's config that matter at run time: its platform, and all keys of its "config"
// object, including unknown ones. It omits empty values, and ArgsEscaped, which BuildKit sets with ENTRYPOINT or CMD
// and which matters for Windows only.
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

// environment returns the variables of an image config by name, without empty ones: a Dockerfile can only empty a
// variable of its base, so configs that differ only in empty variables are equal.
func environment(env []string) map[string]string {
	out := map[string]string{}
	for _, kv := range env {
		if k, v, _ := strings.Cut(kv, "="); v != "" {
			out[k] = v
		}
	}
	return out
}
