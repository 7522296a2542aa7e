package bridge

import (
	"context"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/server"
	"github.com/slimctl/slimctl/server/policy"
)

// maxOverlay limits the layers that are searched for a policy, in bytes: the base's own are larger, and have none.
const maxOverlay = 64 << 20

// Describe returns the tool of an image as the policy file defines it: policyFile of this machine, or the one in the
// image's layers if that is empty. It caches the layers' content below cacheDir.
func Describe(ctx context.Context, img v1.Image, policyFile, cacheDir string) (*mcp.Tool, error) {
	if policyFile != "" {
		p, _, err := policy.ReadFile(policyFile)
		if err != nil {
			return nil, err
		}
		return server.Tool(p), nil
	}
	manifest, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	large := map[v1.Hash]bool{}
	for _, l := range manifest.Layers {
		large[l.Digest] = l.Size > maxOverlay
	}
	files, err := tree.Cache{Dir: cacheDir}.Open(ctx, img, tree.Options{Skip: func(d v1.Hash) bool { return large[d] }})
	if err != nil {
		return nil, err
	}
	text, err := files.ReadFile(ctx, policy.DefaultPath)
	if err != nil {
		return nil, err
	}
	p, err := policy.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", policy.DefaultPath, err)
	}
	return server.Tool(p), nil
}
