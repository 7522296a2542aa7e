package verify

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"

	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/slimctl/slimctl/image"
)

// manifestBuilt compares the manifest with the one that a build writes, but for what other rules look at: its annotations and
// its layers' ones. docker build, with slimctl's Dockerfile, may write Docker's media types, which mean the same.
func manifestBuilt(h *held) error {
	have, err := image.Object(h.RawManifest)
	if err != nil {
		h.found("", nil, "the manifest can't be read in one way only: %v", err)
		return nil
	}
	docker := have["mediaType"] == string(types.DockerManifestSchema2)
	config := object(have["config"])
	h.document("", have, map[string]any{
		"schemaVersion": json.Number("2"), "mediaType": mediaType(docker, string(types.OCIManifestSchema1)), "annotations": have["annotations"],
		"layers": have["layers"], "config": map[string]any{
			"mediaType": mediaType(docker, string(types.OCIConfigJSON)), "digest": config["digest"], "size": config["size"],
		},
	})
	layers, _ := have["layers"].([]any)
	first, sure := h.above()
	for i, l := range layers {
		l := object(l)
		want := map[string]any{
			"mediaType": mediaType(docker, string(types.OCILayer)), "digest": l["digest"], "size": l["size"], "annotations": l["annotations"], "urls": l["urls"],
		}
		switch {
		case i >= first:
		case sure && i < len(h.want.Base.Manifest):
			d := h.want.Base.Manifest[i]
			want["mediaType"], want["digest"], want["size"] = mediaType(docker, d.MediaType), d.Digest, json.Number(strconv.FormatInt(d.Size, 10))
		default: // a base that nobody knows may have any layers
			if t, _ := l["mediaType"].(string); types.MediaType(t).IsLayer() && types.MediaType(t).IsDistributable() {
				want["mediaType"] = t
			}
		}
		h.document(fmt.Sprintf("layers[%d].", i), l, want)
	}
	for i := first; i < len(h.Files.Layers); i++ {
		if c := h.Files.Layers[i].Compression; c != "" && c != "gzip" {
			h.found(h.layer(i), nil, "%s has the compression %s; a build writes gzip", h.layer(i), c)
		}
	}
	return nil
}

// document compares the keys of two objects of a manifest.
func (h *held) document(where string, have, want map[string]any) {
	different(have, want, func(key string, a, b any) {
		h.found(where+key, nil, "%s of the manifest is %s; a build writes %s", where+key, written(a), written(b))
	})
}

// different calls tell for each key of two objects that isn't the same in both.
func different(have, want map[string]any, tell func(key string, have, want any)) {
	for _, key := range union(have, want) {
		if a, b := have[key], want[key]; !reflect.DeepEqual(a, b) {
			tell(cut(key), a, b)
		}
	}
}

// mediaType is an OCI media type, or Docker's that means the same.
func mediaType(docker bool, oci string) string {
	if !docker {
		return oci
	}
	switch types.MediaType(oci) {
	case types.OCIImageIndex:
		return string(types.DockerManifestList)
	case types.OCIManifestSchema1:
		return string(types.DockerManifestSchema2)
	case types.OCIConfigJSON:
		return string(types.DockerConfigJSON)
	case types.OCILayer:
		return string(types.DockerLayer)
	case types.OCIUncompressedLayer:
		return string(types.DockerUncompressedLayer)
	}
	return oci
}

// indexBuilt compares the index with the one that a build writes, but for its annotations, which another rule looks at. Besides
// the images it may have attestations; what these hold image.Source.Ignored says.
func indexBuilt(k *checker) error {
	if k.in.Index == nil {
		return nil
	}
	tell := func(where string) func(key string, have, want any) {
		return func(key string, have, want any) {
			k.add(Finding{Subject: where + key, Message: fmt.Sprintf("%s of the index is %s; a build writes %s", where+key, written(have), written(want))})
		}
	}
	have, err := image.Object(k.in.Index)
	if err != nil {
		k.add(Finding{Message: fmt.Sprintf("the index can't be read in one way only: %v", err)})
		return nil
	}
	docker := have["mediaType"] == string(types.DockerManifestList)
	different(have, map[string]any{
		"schemaVersion": json.Number("2"), "mediaType": mediaType(docker, string(types.OCIImageIndex)),
		"manifests": have["manifests"], "annotations": have["annotations"],
	}, tell(""))
	entries, _ := have["manifests"].([]any)
	for i, e := range entries {
		e := object(e)
		platform := object(e["platform"])
		want := map[string]any{
			"mediaType": mediaType(docker, string(types.OCIManifestSchema1)), "digest": e["digest"], "size": e["size"],
			"platform": map[string]any{"os": platform["os"], "architecture": platform["architecture"]},
		}
		if v, ok := platform["variant"]; ok && platform["architecture"] != "arm64" && platform["architecture"] != "amd64" {
			object(want["platform"])["variant"] = v // which the rule platform looks at
		}
		if platform["os"] == "unknown" {
			want["annotations"] = e["annotations"] // of an attestation
			if t, ok := e["artifactType"]; ok {
				want["artifactType"] = t
			}
		}
		different(e, want, tell(fmt.Sprintf("manifests[%d].", i)))
	}
	return nil
}
