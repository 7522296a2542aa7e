package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/buildkit/client"
	"github.com/moby/buildkit/cmd/buildctl/build"
	"github.com/spf13/cobra"

	slim "github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/build/buildkit"
	"github.com/slimctl/slimctl/build/embedded"
	"github.com/slimctl/slimctl/build/llb"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/output"
)

type buildFlags struct {
	recipeFlags
	tags, outputs, labels, annotations []string
	cacheFrom, cacheTo                 []string
	push, load, verify                 bool
	builder, metadata, llbForm         string
	tls                                struct{ caCert, cert, key, serverName, dir string }
}

func (a *app) build() *cobra.Command {
	f := &buildFlags{}
	cmd := &cobra.Command{
		Use:   "build",
		Short: "Build the slim image",
		Long: `Build resolves the profile against the base and builds the image, for all platforms at once.

It prints one line on standard output, the image's reference with its digest, and what was done on
standard error. No daemon is
needed, and the base is neither unpacked nor, when it lies in the registry that is pushed
to, transferred. With --builder a BuildKit daemon does it; the digest is the same.

Before a tag moves or an output appears the image is verified, as by slimctl verify. A finding of
severity error ends the build with exit status 3 and changes nothing. With a lock, base layers that slimctl never read stay unread, and what they hold unchecked. A lock
beside the profile is used; a stale one is an error.

Credentials for registries are those of docker login, crane auth login and podman login. The
certificates trusted are the system's, SSL_CERT_FILE's and --ca-file's; no certs.d is read.`,
		Example: `  slimctl build --profile l0 --base standin:B --output type=oci,dest=out
  slimctl build --profile l0 -t registry.example/team/slim:1 --push
  slimctl build --profile ./my.yaml --platform linux/arm64 \
    --output type=docker-archive,dest=slim.tar`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runBuild(cmd.Context(), f) },
	}
	f.addLock(cmd)
	flags := cmd.Flags()
	flags.StringArrayVarP(&f.tags, "tag", "t", nil, "name of the image, as HOST/REPO:TAG (repeatable)")
	flags.BoolVar(&f.push, "push", false, "push to every --tag")
	flags.BoolVar(&f.load, "load", false, "load into Docker; one platform only")
	flags.StringArrayVarP(&f.outputs, "output", "o", nil, "type=oci, oci-archive or docker-archive,dest=PATH (repeatable)")
	flags.StringVar(&f.builder, "builder", "", "BuildKit daemon: address, env (BUILDKIT_HOST), or auto to start one")
	flags.StringVar(&f.tls.caCert, "tlscacert", "", "with --builder: certificate authority of the daemon, as buildctl's")
	flags.StringVar(&f.tls.cert, "tlscert", "", "with --builder: our certificate")
	flags.StringVar(&f.tls.key, "tlskey", "", "with --builder: our key")
	flags.StringVar(&f.tls.serverName, "tlsservername", "", "with --builder: name in its certificate (default: the address's)")
	flags.StringVar(&f.tls.dir, "tlsdir", "", "with --builder: `DIR` with ca.pem, cert.pem and key.pem")
	flags.StringArrayVar(&f.cacheFrom, "cache-from", nil, "cache that the BuildKit daemon imports (repeatable)")
	flags.StringArrayVar(&f.cacheTo, "cache-to", nil, "cache that the BuildKit daemon exports (repeatable)")
	flags.StringVar(&f.llbForm, "llb-form", "", "form of LLB for --builder, for benchmarks: overlay, merge or simple")
	_ = flags.MarkHidden("llb-form") // only overlay gives the digest of the embedded engine
	flags.BoolVar(&f.verify, "verify", true, "verify the image before publishing it")
	flags.StringVar(&f.metadata, "metadata-file", "", "write what was built to this file, as JSON")
	flags.StringArrayVar(&f.labels, "label", nil, "set a label, as key=value (repeatable)")
	flags.StringArrayVar(&f.annotations, "annotation", nil, "set an annotation: [index:|manifest:]key=value (default: both)")
	return cmd
}

func (a *app) runBuild(ctx context.Context, f *buildFlags) (err error) {
	start := time.Now()
	req, err := f.request()
	if err != nil {
		return usage(err)
	}
	for _, o := range req.Outputs {
		if err := o.Check(); err != nil {
			return err
		}
	}
	if info, err := os.Stat(f.metadata); err == nil && info.IsDir() {
		return usage(fmt.Errorf("--metadata-file %s is a directory", f.metadata))
	}
	r, err := a.resolve(ctx, &f.recipeFlags, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.progress.Close()) }()
	if err := onePlatform(req, f.load, len(r.recipes)); err != nil {
		return err
	}
	req.Recipes, req.Source = r.recipes, r.source
	req.Annotations = r.annotations(req.Annotations)
	engine, stop, err := a.engine(ctx, f, r.options)
	if err != nil {
		return err
	}
	if len(req.Outputs) == 0 && !req.Push && !f.load {
		r.progress.Printf("no --output, --push or --load: the digest is worked out and nothing is written")
	}
	if f.verify {
		err = a.verifyRequest(ctx, r, &req, f.builder != "")
	}
	var result slim.Result
	if err == nil {
		result, err = engine.Build(ctx, req)
	}
	if err := errors.Join(err, stop()); err != nil {
		return err
	}
	if f.load {
		if err := a.load(ctx, req, r.options); err != nil {
			return err
		}
	}
	if f.metadata != "" {
		if err := writeMetadata(f.metadata, req, result); err != nil {
			return err
		}
	}
	if r.verified == "" {
		r.verified = "no (--verify=false)"
	}
	summarize(r, req, result, time.Since(start))
	out := a.stdout
	if slices.ContainsFunc(req.Outputs, func(o output.Spec) bool { return o.Dest == "-" }) {
		if err := a.endProgress(); err != nil {
			return err
		}
		out = a.stderr // standard output has the archive
	}
	_, err = fmt.Fprintln(out, resultReference(req, result))
	return err
}

// summarize writes a few lines on what a build did to the progress.
func summarize(r *resolved, req slim.Request, result slim.Result, took time.Duration) {
	var platforms []string
	for _, recipe := range req.Recipes {
		platforms = append(platforms, recipe.Platform.String())
	}
	r.progress.Printf("built: %s in %.1f s", strings.Join(platforms, ", "), took.Seconds())
	r.progress.Printf("verified: %s", r.verified)
	if r.source.Name() != nil {
		r.progress.Printf("downloaded: %s", humanize.Bytes(uint64(r.options.Received.Load())))
	}
	switch l := result.Ledger; {
	case !req.Push:
	case l != output.Ledger{}:
		r.progress.Printf("pushed: %s; blobs: %d uploaded, %d mounted, %d there before", humanize.Bytes(uint64(l.BytesUp)), l.Uploaded, l.Mounted, l.Existing)
	case req.Digest == v1.Hash{}: // by our own engine, which counts
		r.progress.Printf("pushed: nothing, each tag has this image already")
	}
}

// verifyRequest has the image verified. An engine that builds elsewhere is told the digest of what was.
func (a *app) verifyRequest(ctx context.Context, r *resolved, req *slim.Request, elsewhere bool) error {
	verify := func(ctx context.Context, built image.Built) error {
		return a.verifyBuilt(ctx, r, req.Annotations, built)
	}
	if !elsewhere {
		req.Verify = verify
		return nil
	}
	built, err := embedded.Assemble(ctx, req.Recipes, req.Annotations)
	if err != nil {
		return err
	}
	if req.Digest, err = built.Digest(); err != nil {
		return err
	}
	return verify(ctx, built)
}

// onePlatform refuses several platforms for what holds one.
func onePlatform(req slim.Request, load bool, platforms int) error {
	if platforms == 1 {
		return nil
	}
	for _, o := range req.Outputs {
		if o.Type == output.DockerArchive {
			return usage(fmt.Errorf("--output type=%s holds one platform and these are %d; choose one with --platform", o.Type, platforms))
		}
	}
	if load {
		return usage(errors.New("--load takes one platform; choose it with --platform"))
	}
	return nil
}

// request checks what the flags say before anything is read.
func (f *buildFlags) request() (slim.Request, error) {
	req := slim.Request{Push: f.push}
	var insecure []name.Option
	if f.registry.insecure {
		insecure = append(insecure, name.Insecure)
	}
	for _, t := range f.tags {
		if strings.Contains(t, "@") {
			return req, fmt.Errorf("--tag %q: a digest can't be chosen, build prints it: give HOST/REPO:TAG", t)
		}
		tag, err := name.NewTag(t, insecure...)
		if err != nil {
			return req, fmt.Errorf("--tag %q: %w", t, err)
		}
		req.Tags = append(req.Tags, tag)
	}
	if f.push && len(req.Tags) == 0 {
		return req, errors.New("--push needs a --tag to push to")
	}
	for _, o := range f.outputs {
		out, err := output.Parse(o)
		if err != nil {
			return req, fmt.Errorf("--output %q: %w", o, err)
		}
		if slices.ContainsFunc(req.Outputs, func(o output.Spec) bool { return o.Dest == out.Dest }) {
			return req, fmt.Errorf("--output: two outputs go to %s", out.Dest)
		}
		req.Outputs = append(req.Outputs, out)
	}
	var err error
	if f.recipeFlags.labels, err = parseLabels(f.labels); err != nil {
		return req, err
	}
	req.Annotations, err = parseAnnotations(f.annotations)
	if err == nil && f.builder == "" && len(f.cacheFrom)+len(f.cacheTo) > 0 {
		err = errors.New("--cache-from and --cache-to are for a BuildKit daemon: name one with --builder")
	}
	if err == nil && f.builder == "" && f.tls != (buildFlags{}.tls) {
		err = errors.New("--tlscacert, --tlscert, --tlskey, --tlsservername and --tlsdir are for a BuildKit daemon: name one with --builder")
	}
	if err == nil && f.verify && f.builder != "" && f.llbForm != "" && f.llbForm != string(llb.Overlay) {
		err = fmt.Errorf("--llb-form %s gives an image that can't be verified: add --verify=false", f.llbForm)
	}
	if err == nil && f.builder != "" && f.load {
		err = errors.New("--load can't be combined with --builder: write type=docker-archive with --output and run `docker load`")
	}
	return req, err
}

func parseLabels(flags []string) (map[string]string, error) {
	labels := map[string]string{}
	for _, l := range flags {
		k, v, ok := strings.Cut(l, "=")
		if !ok || k == "" {
			return nil, fmt.Errorf("--label %q: want key=value", l)
		}
		labels[k] = v
	}
	return labels, nil
}

func parseAnnotations(flags []string) (slim.Annotations, error) {
	a := slim.Annotations{Index: map[string]string{}, Manifest: map[string]string{}}
	for _, s := range flags {
		to := []map[string]string{a.Index, a.Manifest}
		rest := s
		if r, ok := strings.CutPrefix(s, "index:"); ok {
			rest, to = r, to[:1]
		} else if r, ok := strings.CutPrefix(s, "manifest:"); ok {
			rest, to = r, to[1:]
		}
		k, v, ok := strings.Cut(rest, "=")
		if !ok || k == "" {
			return a, fmt.Errorf("--annotation %q: want [index:|manifest:]key=value", s)
		}
		for _, m := range to {
			m[k] = v
		}
	}
	return a, nil
}

// annotations adds what the image specification has for the base (annotations.md) to the user's own.
func (r *resolved) annotations(user slim.Annotations) slim.Annotations {
	base := map[string]string{image.AnnotationBaseDigest: r.source.Digest().String()}
	if r.source.Name() != nil {
		// As it was asked for: a lock pins the source to a digest, and must not change the image.
		if n, err := image.ParseReference(r.recipes[0].Base.Reference, false); err == nil {
			base[image.AnnotationBaseName] = n.Name()
		}
	}
	for k, v := range base {
		for _, m := range []map[string]string{user.Index, user.Manifest} {
			if _, set := m[k]; !set {
				m[k] = v
			}
		}
	}
	return user
}

// engine chooses the engine; stop ends what it started.
func (a *app) engine(ctx context.Context, f *buildFlags, o image.Options) (_ slim.Engine, stop func() error, err error) {
	stop = func() error { return nil }
	if f.builder == "" {
		return embedded.Engine{Options: o}, stop, nil
	}
	e := buildkit.Engine{Addr: f.builder, Form: llb.Form(f.llbForm), Insecure: f.registry.insecure, Options: o, Stdout: a.console, Progress: a.stderr, Mode: map[string]string{"json": "rawjson"}[f.progress]}
	if e.Mode == "" {
		e.Mode = f.progress
	}
	if e.CacheFrom, err = build.ParseImportCache(f.cacheFrom); err != nil {
		return nil, nil, usage(fmt.Errorf("--cache-from: %w", err))
	}
	if e.CacheTo, err = build.ParseExportCache(f.cacheTo); err != nil {
		return nil, nil, usage(fmt.Errorf("--cache-to: %w", err))
	}
	if e.Client, err = f.clientOptions(); err != nil {
		return nil, nil, err
	}
	switch f.builder {
	case "auto":
		e.Addr, stop, err = buildkit.Private(ctx, a.cacheDir)
	case "env":
		if e.Addr = os.Getenv("BUILDKIT_HOST"); e.Addr == "" {
			err = usage(errors.New("--builder env: BUILDKIT_HOST is not set"))
		}
	}
	return e, stop, err
}

// clientOptions are those for mutual TLS; the flags are buildctl's.
func (f *buildFlags) clientOptions() ([]client.ClientOpt, error) {
	t := f.tls
	if t.dir != "" {
		if t.caCert+t.cert+t.key != "" {
			return nil, usage(errors.New("--tlsdir can't be combined with --tlscacert, --tlscert or --tlskey"))
		}
		t.caCert, t.cert, t.key = filepath.Join(t.dir, "ca.pem"), filepath.Join(t.dir, "cert.pem"), filepath.Join(t.dir, "key.pem")
	}
	if (t.cert == "") != (t.key == "") {
		return nil, usage(errors.New("--tlscert and --tlskey go together"))
	}
	var out []client.ClientOpt
	if t.caCert != "" {
		name := t.serverName
		if u, err := url.Parse(f.builder); name == "" && err == nil {
			name = u.Hostname()
		}
		out = append(out, client.WithServerConfig(name, t.caCert))
	}
	if t.cert != "" {
		out = append(out, client.WithCredentials(t.cert, t.key))
	}
	return out, nil
}

func (a *app) load(ctx context.Context, req slim.Request, o image.Options) error {
	built, err := embedded.Assemble(ctx, req.Recipes, req.Annotations)
	if err != nil {
		return err
	}
	return output.Load(ctx, built, req.Recipes[0].Platform, req.Tags, o)
}

// resultReference is the line on standard output: the first tag's repository, or nothing but the digest.
func resultReference(req slim.Request, r slim.Result) string {
	if len(req.Tags) > 0 {
		return req.Tags[0].String() + "@" + r.Digest.String()
	}
	return r.Digest.String()
}

// writeMetadata writes what buildx writes to its --metadata-file, and what a push moved.
func writeMetadata(file string, req slim.Request, r slim.Result) error {
	var names []string
	for _, t := range req.Tags {
		names = append(names, t.Name())
	}
	var platforms []string
	for _, recipe := range req.Recipes {
		platforms = append(platforms, recipe.Platform.String())
	}
	return image.WriteFile(file, 0o644, func(w io.Writer) error {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(map[string]any{
			"containerimage.digest":     r.Digest,
			"containerimage.descriptor": map[string]any{"mediaType": r.MediaType, "digest": r.Digest, "size": r.Size},
			"image.name":                strings.Join(names, ","),
			"slimctl.base":              map[string]any{"reference": req.Recipes[0].Base.Reference, "digest": req.Recipes[0].Base.Index, "line": req.Recipes[0].Base.Line},
			"slimctl.platforms":         platforms,
			"slimctl.push":              r.Ledger,
		})
	})
}
