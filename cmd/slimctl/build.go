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
	"github.com/dustin/go-humanize/english"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/moby/buildkit/client"
	"github.com/spf13/cobra"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/build/buildkit"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/output"
	"github.com/slimctl/slimctl/inspect/verify"
	"github.com/slimctl/slimctl/slim"
)

type buildFlags struct {
	recipeFlags
	tags, outputs, labels, annotations []string
	push, load, verify                 bool
	builder, metadata                  string
}

func (a *app) build() *cobra.Command {
	f := &buildFlags{}
	cmd := &cobra.Command{
		Use:   "build",
		Short: "Build the slim image",
		Long: `Build resolves the profile against the base and builds the image for all platforms. It
prints the image reference with its digest on stdout, and progress on stderr. It needs no
daemon, and downloads no layer of a base in the registry that it pushes to.

Build verifies the image before it writes an output or moves a tag. A finding of severity
error ends it with exit status 3 and changes nothing. It does not check base layers that it
never read, which a lock allows.`,
		Example: `  slimctl build --profile l0 --base standin:B --output type=oci,dest=out
  slimctl build --profile l0 -t registry.example/team/slim:1 --push
  slimctl build --profile ./my.yaml --platform linux/arm64 \
    --output type=docker-archive,dest=slim.tar`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runBuild(cmd.Context(), f) },
	}
	f.addLock(cmd)
	flags := cmd.Flags()
	flags.StringArrayVarP(&f.tags, "tag", "t", nil, "`NAME` of the image, as HOST/REPO:TAG (repeatable)")
	flags.BoolVar(&f.push, "push", false, "push to every --tag")
	flags.BoolVar(&f.load, "load", false, "load into Docker; one platform only")
	flags.StringArrayVarP(&f.outputs, "output", "o", nil, "`SPEC`: type=oci|oci-archive|docker-archive,dest=PATH")
	flags.StringVar(&f.builder, "builder", "", "BuildKit daemon at `ADDRESS`, env (BUILDKIT_HOST), or auto")
	flags.BoolVar(&f.verify, "verify", true, "verify the image before publishing it")
	flags.StringVar(&f.metadata, "metadata-file", "", "`FILE` to describe the image in, as JSON")
	flags.StringArrayVar(&f.labels, "label", nil, "set the label `KEY=VALUE` (repeatable)")
	flags.StringArrayVar(&f.annotations, "annotation", nil, "set the annotation [index:|manifest:]`KEY=VALUE`")
	return cmd
}

func (a *app) runBuild(ctx context.Context, f *buildFlags) error {
	start := time.Now()
	o, err := f.options(a)
	if err != nil {
		return err
	}
	if info, err := os.Stat(f.metadata); err == nil && info.IsDir() {
		return usageError(fmt.Errorf("--metadata-file %s is a directory", f.metadata))
	}
	b, err := slim.Build(ctx, o)
	if err != nil {
		return err
	}
	if len(f.outputs) == 0 && !f.push && !f.load {
		o.Log("no --output, --push or --load: the digest is worked out and nothing is written")
	}
	if f.metadata != "" {
		if err := writeMetadata(f.metadata, o.Target, b); err != nil {
			return err
		}
	}
	summarize(o, b, time.Since(start))
	out := a.stdout
	if slices.ContainsFunc(o.Target.Files, func(s output.Spec) bool { return s.Dest == "-" }) {
		if err := a.endProgress(); err != nil {
			return err
		}
		out = a.stderr // standard output has the archive
	}
	_, err = fmt.Fprintln(out, resultReference(o.Target, b))
	return err
}

// summarize logs what a build made, downloaded and pushed.
func summarize(o slim.BuildOptions, b *slim.Built, took time.Duration) {
	o.Log("built: %s in %.1f s", strings.Join(platformNames(b), ", "), took.Seconds())
	verified := "no (--verify=false)"
	if r := b.Report; r != nil {
		found := "0 findings"
		if n := r.Count(verify.Warning); n > 0 {
			found = english.Plural(n, "warning", "") + " (slimctl verify shows them)"
		}
		verified = english.Plural(len(r.Rules), "rule", "") + ", " + found
	}
	o.Log("verified: %s", verified)
	if b.Source.Name() != nil {
		o.Log("downloaded: %s", humanize.Bytes(uint64(o.Received.Load())))
	}
	if refused := b.Transfer.Refused; refused != "" {
		o.Log("ledger: not pushed, as the registry takes no artifacts; slimctl why and diff do without: %s", refused)
	}
	switch l := b.Transfer; {
	case !o.Target.Push, o.Engine != nil: // a BuildKit daemon reports no transfer
	case l != output.Transfer{}:
		o.Log("pushed: %s; blobs: %d uploaded, %d mounted, %d there before", humanize.Bytes(uint64(l.BytesUp)), l.Uploaded, l.Mounted, l.Existing)
	default:
		o.Log("pushed: nothing, each tag has this image already")
	}
}

// options returns the build's options. It checks the flags before anything is read, and starts the progress display.
func (f *buildFlags) options(a *app) (o slim.BuildOptions, err error) {
	if o.Target, err = f.parseTarget(); err != nil {
		return o, usageError(err)
	}
	labels, err := parseLabels(f.labels)
	if err != nil {
		return o, usageError(err)
	}
	if o.Annotations, err = parseAnnotations(f.annotations); err != nil {
		return o, usageError(err)
	}
	if f.builder != "" && f.load {
		return o, usageError(errors.New("--load can't be combined with --builder: write type=docker-archive with --output and run `docker load`"))
	}
	if o.ResolveOptions, err = f.recipeFlags.options(a); err != nil {
		return o, err
	}
	o.Labels, o.NoVerify = labels, !f.verify
	if f.builder != "" {
		o.Engine, err = a.newBuilder(f, o.Options)
	}
	return o, err
}

// parseTarget returns the destinations that the flags name.
func (f *buildFlags) parseTarget() (output.Target, error) {
	t := output.Target{Push: f.push, Load: f.load}
	var insecure []name.Option
	if f.registry.insecure {
		insecure = append(insecure, name.Insecure)
	}
	for _, s := range f.tags {
		if strings.Contains(s, "@") {
			return t, fmt.Errorf("--tag %q has a digest; give HOST/REPO:TAG, and build prints the digest", s)
		}
		tag, err := name.NewTag(s, insecure...)
		if err != nil {
			return t, fmt.Errorf("--tag %q: %w", s, err)
		}
		t.Tags = append(t.Tags, tag)
	}
	for _, s := range f.outputs {
		out, err := output.Parse(s)
		if err != nil {
			return t, fmt.Errorf("--output %q: %w", s, err)
		}
		t.Files = append(t.Files, out)
	}
	return t, nil
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

func parseAnnotations(flags []string) (build.Annotations, error) {
	a := build.Annotations{Index: map[string]string{}, Manifest: map[string]string{}}
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

// builder is a BuildKit daemon. With auto set, Build starts a private one and stops it afterwards.
type builder struct {
	buildkit.Engine
	auto     bool
	cacheDir string
}

func (b builder) Build(ctx context.Context, req build.Request) (_ v1.Descriptor, err error) {
	if b.auto {
		var stop func() error
		if b.Addr, stop, err = buildkit.Private(ctx, b.cacheDir); err != nil {
			return v1.Descriptor{}, err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	return b.Engine.Build(ctx, req)
}

// newBuilder returns the daemon that --builder names. It connects to nothing.
func (a *app) newBuilder(f *buildFlags, o image.Options) (build.Engine, error) {
	e := buildkit.Engine{
		Addr: f.builder, Insecure: f.registry.insecure, Options: o,
		Stdout: a.console, Progress: a.stderr, Mode: f.progress,
	}
	if f.builder == "env" {
		if e.Addr = os.Getenv("BUILDKIT_HOST"); e.Addr == "" {
			return nil, usageError(errors.New("--builder env: BUILDKIT_HOST is not set"))
		}
	}
	var err error
	if dir := os.Getenv("BUILDKIT_TLS_DIR"); dir != "" && f.builder != "auto" {
		if e.Client, err = readCertificates(dir, e.Addr); err != nil {
			return nil, usageError(err)
		}
	}
	return builder{e, f.builder == "auto", a.cacheDir}, nil
}

// readCertificates returns the options for TLS with the daemon at addr. The files in dir have the names of buildctl's
// --tlsdir.
func readCertificates(dir, addr string) ([]client.ClientOpt, error) {
	var files []string
	for _, names := range [][]string{{"ca.pem", "ca.crt"}, {"cert.pem", "tls.crt"}, {"key.pem", "tls.key"}} {
		i := slices.IndexFunc(names, func(name string) bool {
			_, err := os.Stat(filepath.Join(dir, name))
			return err == nil
		})
		if i < 0 {
			return nil, fmt.Errorf("BUILDKIT_TLS_DIR=%s has neither %s nor %s", dir, names[0], names[1])
		}
		files = append(files, filepath.Join(dir, names[i]))
	}
	host := ""
	if u, err := url.Parse(addr); err == nil {
		host = u.Hostname()
	}
	return []client.ClientOpt{client.WithServerConfig(host, files[0]), client.WithCredentials(files[1], files[2])}, nil
}

func platformNames(b *slim.Built) (names []string) {
	for _, r := range b.Recipes {
		names = append(names, r.Platform.String())
	}
	return names
}

// resultReference returns the line for standard output: the first tag with the digest if the image was published under
// it, otherwise the digest alone.
func resultReference(t output.Target, b *slim.Built) string {
	if len(t.Tags) > 0 && (t.Push || t.Load || len(t.Files) > 0) {
		return t.Tags[0].String() + "@" + b.Image.Digest.String()
	}
	return b.Image.Digest.String()
}

// writeMetadata writes the keys of buildx's --metadata-file and slimctl's own: base, platforms and transfer.
func writeMetadata(file string, t output.Target, b *slim.Built) error {
	var names []string
	for _, tag := range t.Tags {
		names = append(names, tag.Name())
	}
	base := b.Recipes[0].Base
	return image.WriteFile(file, 0o644, func(w io.Writer) error {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(map[string]any{
			"containerimage.digest":     b.Image.Digest,
			"containerimage.descriptor": map[string]any{"mediaType": b.Image.MediaType, "digest": b.Image.Digest, "size": b.Image.Size},
			"image.name":                strings.Join(names, ","),
			"slimctl.base":              map[string]any{"reference": base.Reference, "digest": base.Index, "line": base.Line},
			"slimctl.platforms":         platformNames(b),
			"slimctl.push":              b.Transfer,
		})
	})
}
