// Package buildkit is the engine that lets a BuildKit daemon build and write the image: all platforms in one solve, in
// the overlay form of LLB, so that its image has the digest that the embedded engine gives.
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

// overlayStore is the name under which the daemon asks for our layers.
const overlayStore = "slimctl-overlay"

// Engine solves on the daemon at Addr.
type Engine struct {
	// Addr is the daemon's address, such as unix:///run/buildkit/buildkitd.sock.
	Addr string
	// Client has what connecting needs besides: certificates.
	Client []client.ClientOpt
	// Form is the form of LLB to solve; empty is Overlay, the only one with the embedded engine's digest.
	Form slimllb.Form
	// Insecure allows plain HTTP to the registry pushed to.
	Insecure bool
	// Options are for the tags of a push whose digest the Request gives: the daemon pushes without them, and they are put
	// from here.
	Options image.Options
	// CacheFrom and CacheTo are passed through.
	CacheFrom, CacheTo []client.CacheOptionsEntry
	// Progress takes BuildKit's own progress, in Mode: auto, tty, plain, quiet, rawjson. Nil discards it.
	Progress io.Writer
	Mode     string
	// Stdout takes an archive whose destination is "-".
	Stdout io.Writer
}

var _ build.Engine = Engine{}

// Build solves all recipes at once and has the daemon write every output. Where the Request has a digest, files and tags get
// their names only when the daemon came to it; an archive that goes to standard output is out by then.
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
		Exports: exports, OCIStores: s.stores, LocalMounts: s.locals, CacheImports: e.CacheFrom, CacheExports: e.CacheTo,
		Session: []session.Attachable{authprovider.NewDockerAuthProvider(authprovider.DockerAuthProviderConfig{
			AuthConfigProvider: authprovider.LoadAuthConfig(config.LoadDefaultConfigFile(io.Discard)),
		})},
	}
	response, err := e.run(ctx, c, opt, s.frontend)
	if err != nil {
		return v1.Descriptor{}, fmt.Errorf("buildkitd at %s: %w", e.Addr, err)
	}
	r, err := result(response)
	if err != nil {
		return v1.Descriptor{}, err
	}
	if s.exact() && r.Digest != req.Digest {
		return v1.Descriptor{}, fmt.Errorf("buildkitd at %s came to %s, and what was verified is %s: nothing got a name", e.Addr, r.Digest, req.Digest)
	}
	if s.exact() && req.Target.Push {
		if err := output.Tag(ctx, r.Digest, req.Target.Tags, e.Options); err != nil {
			return v1.Descriptor{}, err
		}
	}
	return r, nil
}

// exact says that the daemon must come to a digest that is known.
func (s *solve) exact() bool { return s.req.Digest != v1.Hash{} }

// run solves and shows the daemon's progress meanwhile.
func (e Engine) run(ctx context.Context, c *client.Client, opt client.SolveOpt, frontend gateway.BuildFunc) (*client.SolveResponse, error) {
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

// solve is one build under way.
type solve struct {
	engine   Engine
	req      build.Request
	tmp      string
	stores   map[string]content.Store
	locals   localMounts
	overlays map[string]overlay // by platform
	renames  []rename
}

// overlay is what a recipe adds to its base, ready for the daemon.
type overlay struct {
	digest v1.Hash
	config []byte
}

type rename struct {
	from string
	to   output.Spec
}

// prepare writes each recipe's layers as an image of their own into a layout that the daemon reads them from.
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
		if err := s.context(); err != nil {
			return err
		}
	}
	return s.base()
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

// base offers a base that lies on this machine to the daemon.
func (s *solve) base() error {
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

// frontend is what the daemon calls: it gives one reference a platform, with its config.
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
			// Without the base's config BuildKit takes the base's layers for ours, and may rewrite them.
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
		return r, fmt.Errorf("buildkitd told no image digest: %w", err)
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
