// Package buildkit is the engine in which a BuildKit daemon builds and writes the image. It solves all platforms at
// once, in the overlay form of LLB, so the image has the embedded engine's digest.
package buildkit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/log"
	"github.com/containerd/platforms"
	"github.com/docker/cli/cli/config"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/moby/buildkit/client"
	_ "github.com/moby/buildkit/client/connhelper/dockercontainer" // docker-container://NAME, and so on, as buildctl takes them
	_ "github.com/moby/buildkit/client/connhelper/kubepod"
	_ "github.com/moby/buildkit/client/connhelper/podmancontainer"
	_ "github.com/moby/buildkit/client/connhelper/ssh"
	"github.com/moby/buildkit/client/llb"
	"github.com/moby/buildkit/exporter/containerimage/exptypes"
	gateway "github.com/moby/buildkit/frontend/gateway/client"
	"github.com/moby/buildkit/session"
	"github.com/moby/buildkit/session/auth/authprovider"
	"github.com/moby/buildkit/util/progress/progressui"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/slimctl/slimctl/build"
	slimllb "github.com/slimctl/slimctl/build/llb"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/output"
)

// overlayStore is the name of the OCI layout from which the daemon reads our layers.
const overlayStore = "slimctl-overlay"

// Engine builds on the daemon at Addr.
type Engine struct {
	// Addr is the daemon's address, such as unix:///run/buildkit/buildkitd.sock.
	Addr string
	// Client holds further options for the connection, such as certificates.
	Client []client.ClientOpt
	// Form is the form of LLB; empty means Overlay, the only one with the embedded engine's digest.
	Form slimllb.Form
	// Insecure allows plain HTTP to the registry pushed to.
	Insecure bool
	// Options configures access to the registry where tags are set. If Request.Digest is set, the daemon pushes by
	// digest and this process sets the tags.
	Options image.Options
	// Progress receives BuildKit's progress in the format Mode: auto, tty, plain, quiet or rawjson. Nil discards it.
	Progress io.Writer
	Mode     string
	// Stdout receives an archive with the destination "-".
	Stdout io.Writer
}

var _ build.Engine = Engine{}

// Build solves all recipes at once; the daemon writes every output. If Request.Digest is set, files and tags get their
// names only if the image has this digest; an archive to standard output is already written by then.
func (e Engine) Build(ctx context.Context, req build.Request) (_ v1.Descriptor, err error) {
	if len(req.Recipes) == 0 {
		return v1.Descriptor{}, errors.New("no recipe to build")
	}
	if req.Target.Load {
		return v1.Descriptor{}, errors.New("a BuildKit daemon can't load the image into Docker: write type=docker-archive and run `docker load`")
	}
	_ = log.SetLevel("error") // containerd's content store warns when a file system has no fs-verity
	tmp, err := os.MkdirTemp("", "slimctl-buildkit-")
	if err != nil {
		return v1.Descriptor{}, err
	}
	defer os.RemoveAll(tmp)
	s := &solve{engine: e, req: req, tmp: tmp, stores: map[string]content.Store{}}
	if err := s.prepare(); err != nil {
		return v1.Descriptor{}, err
	}
	defer func() { err = errors.Join(err, s.finish(err == nil)) }()
	exports, err := s.exports()
	if err != nil {
		return v1.Descriptor{}, err
	}

	c, err := client.New(ctx, e.Addr, e.Client...)
	if err != nil {
		return v1.Descriptor{}, fmt.Errorf("buildkitd at %s: %w", e.Addr, err)
	}
	defer c.Close()
	if _, err := c.Info(ctx); err != nil {
		return v1.Descriptor{}, fmt.Errorf("buildkitd at %s doesn't answer: %w", e.Addr, err)
	}
	opt := client.SolveOpt{
		Exports: exports, OCIStores: s.stores, LocalMounts: s.locals,
		Session: []session.Attachable{authprovider.NewDockerAuthProvider(authprovider.DockerAuthProviderConfig{
			AuthConfigProvider: authprovider.LoadAuthConfig(config.LoadDefaultConfigFile(io.Discard)),
		})},
	}
	response, err := e.solve(ctx, c, opt, s.frontend)
	if err != nil {
		return v1.Descriptor{}, fmt.Errorf("buildkitd at %s: %w", e.Addr, err)
	}
	r, err := result(response)
	if err != nil {
		return v1.Descriptor{}, err
	}
	if s.isExact() && r.Digest != req.Digest {
		return v1.Descriptor{}, fmt.Errorf("buildkitd at %s built %s, but %s was verified; no output or tag was written", e.Addr, r.Digest, req.Digest)
	}
	if s.isExact() && req.Target.Push {
		if err := output.Tag(ctx, r.Digest, req.Target.Tags, e.Options); err != nil {
			return v1.Descriptor{}, err
		}
	}
	return r, nil
}

// isExact reports whether the image must have a known digest.
func (s *solve) isExact() bool { return s.req.Digest != v1.Hash{} }

// solve solves the definition and shows the daemon's progress.
func (e Engine) solve(ctx context.Context, c *client.Client, opt client.SolveOpt, frontend gateway.BuildFunc) (*client.SolveResponse, error) {
	status := make(chan *client.SolveStatus)
	out, mode := e.Progress, progressui.DisplayMode(e.Mode)
	if out == nil {
		out, mode = io.Discard, progressui.QuietMode
	}
	display, err := progressui.NewDisplay(out, mode)
	if err != nil {
		return nil, err
	}
	var response *client.SolveResponse
	g := new(errgroup.Group)
	g.Go(func() (err error) {
		response, err = c.Build(ctx, opt, "", frontend, status)
		return err
	})
	g.Go(func() error {
		_, err := display.UpdateFrom(context.WithoutCancel(ctx), status)
		return err
	})
	return response, g.Wait()
}

// solve is one build in progress.
type solve struct {
	engine   Engine
	req      build.Request
	tmp      string
	stores   map[string]content.Store
	locals   localMounts
	overlays map[string]overlay // by platform
	renames  []rename
}

// overlay holds the layers that a recipe adds to its base, in a form that the daemon reads.
type overlay struct {
	digest v1.Hash
	config []byte
}

type rename struct {
	from string
	to   output.Spec
}

// prepare writes each recipe's layers as an image into an OCI layout that the daemon reads.
func (s *solve) prepare() error {
	dir := filepath.Join(s.tmp, "overlay")
	l, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	s.overlays = map[string]overlay{}
	for _, r := range s.req.Recipes {
		layers, config, err := r.Render()
		if err != nil {
			return fmt.Errorf("%s: %w", r.Platform, err)
		}
		for _, c := range slices.Backward(r.Stripped()) {
			layers = slices.Insert(layers, 0, c.Layer)
		}
		o := overlay{config: config}
		img, err := overlayImage(r, layers)
		if err != nil {
			return err
		}
		if o.digest, err = img.Digest(); err != nil {
			return err
		}
		if err := l.AppendImage(img); err != nil {
			return err
		}
		s.overlays[r.Platform.String()] = o
	}
	if s.stores[overlayStore], err = local.NewStore(dir); err != nil {
		return err
	}
	if s.engine.Form != "" && s.engine.Form != slimllb.Overlay {
		if err := s.writeContext(); err != nil {
			return err
		}
	}
	return s.addBase()
}

func overlayImage(r *build.Recipe, layers []v1.Layer) (v1.Image, error) {
	img, err := mutate.ConfigFile(mutate.MediaType(empty.Image, ocispec.MediaTypeImageManifest), &v1.ConfigFile{
		OS: r.Platform.OS, Architecture: r.Platform.Architecture, Variant: r.Platform.Variant,
		RootFS: v1.RootFS{Type: "layers"},
	})
	if err != nil {
		return nil, err
	}
	return mutate.AppendLayers(mutate.ConfigMediaType(img, ocispec.MediaTypeImageConfig), layers...)
}

// addBase makes a base on this machine readable by the daemon.
func (s *solve) addBase() error {
	src := s.req.Source
	if src == nil || src.Name() != nil {
		return nil
	}
	dir, ok := src.Layout()
	if !ok {
		return fmt.Errorf("base %s: a BuildKit daemon reads a base from a registry or an OCI layout (oci:DIR) only", src.Reference())
	}
	var err error
	s.stores[slimllb.BaseStore], err = local.NewStore(dir)
	return err
}

func (s *solve) definition(ctx context.Context, r *build.Recipe) (*llb.Definition, error) {
	o := slimllb.Options{Form: s.engine.Form}
	if o.Form == "" {
		o.Form = slimllb.Overlay
	}
	p := llb.Platform(slimllb.Platform(r.Platform))
	o.Overlay = llb.OCILayout("slimctl/overlay@"+s.overlays[r.Platform.String()].digest.String(), llb.OCIStore("", overlayStore), p,
		llb.WithCustomNamef("[%s] overlay of %s", r.Platform, r.Profile))
	if s.stores[slimllb.BaseStore] != nil {
		base := slimllb.LocalBase(r)
		o.Base = &base
	}
	return slimllb.Marshal(ctx, r, o)
}

// frontend is called by the daemon. It returns one reference per platform, with its config.
func (s *solve) frontend(ctx context.Context, c gateway.Client) (*gateway.Result, error) {
	res := gateway.NewResult()
	var all exptypes.Platforms
	for _, r := range s.req.Recipes {
		def, err := s.definition(ctx, r)
		if err != nil {
			return nil, err
		}
		p := platforms.Normalize(slimllb.Platform(r.Platform))
		solved, err := c.Solve(ctx, gateway.SolveRequest{Definition: def.ToPB()})
		if err != nil {
			return nil, err
		}
		ref, err := solved.SingleRef()
		if err != nil {
			return nil, err
		}
		base, err := r.Base.Image.RawConfigFile()
		if err != nil {
			return nil, err
		}
		id := platforms.FormatAll(p)
		res.AddMeta(exptypes.ExporterImageConfigKey+"/"+id, s.overlays[r.Platform.String()].config)
		if r.Stripped() == nil {
			// Without the base's config BuildKit can't tell the base's layers from ours, and may rewrite them.
			res.AddMeta(exptypes.ExporterImageBaseConfigKey+"/"+id, base)
		}
		all.Platforms = append(all.Platforms, exptypes.Platform{ID: id, Platform: p})
		if len(s.req.Recipes) == 1 {
			res.SetRef(ref)
		} else {
			res.AddRef(id, ref)
		}
	}
	meta, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}
	res.AddMeta(exptypes.ExporterPlatformsKey, meta)
	return res, nil
}

func result(response *client.SolveResponse) (v1.Descriptor, error) {
	var r v1.Descriptor
	digest := response.ExporterResponse[exptypes.ExporterImageDigestKey]
	var err error
	if r.Digest, err = v1.NewHash(digest); err != nil {
		return r, fmt.Errorf("buildkitd returned no image digest: %w", err)
	}
	var desc ocispec.Descriptor
	if raw := response.ExporterResponse[exptypes.ExporterImageDescriptorKey]; raw != "" {
		if err := decode(raw, &desc); err != nil {
			return r, err
		}
		r.MediaType, r.Size = types.MediaType(desc.MediaType), desc.Size
	}
	return r, nil
}
