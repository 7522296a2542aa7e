package resolve

import (
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// manifested is an image of which only the manifest counts.
type manifested struct {
	v1.Image
	layer v1.Descriptor
}

func (m manifested) Manifest() (*v1.Manifest, error) {
	return &v1.Manifest{Layers: []v1.Descriptor{m.layer}}, nil
}

func TestForeignLayersAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		layer   v1.Descriptor
		foreign bool
	}{
		"an ordinary layer":      {v1.Descriptor{MediaType: types.OCILayer}, false},
		"Docker's layer":         {v1.Descriptor{MediaType: types.DockerLayer}, false},
		"zstd":                   {v1.Descriptor{MediaType: types.OCILayerZStd}, false},
		"Docker's foreign layer": {v1.Descriptor{MediaType: types.DockerForeignLayer}, true},
		"OCI's restricted layer": {v1.Descriptor{MediaType: types.OCIRestrictedLayer}, true},
		"a layer from elsewhere": {v1.Descriptor{MediaType: types.OCILayer, URLs: []string{"http://169.254.169.254/latest"}}, true},
	} {
		err := checkDistributable(manifested{empty.Image, c.layer})
		if (err != nil) != c.foreign || err != nil && !strings.Contains(err.Error(), "foreign") {
			t.Errorf("%s: error is %v", name, err)
		}
	}
}
