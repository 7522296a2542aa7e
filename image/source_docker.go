package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sync/errgroup"
)

// openDockerArchive opens what docker save writes. Such an archive has no digests of its layers, only the config's
// diffIDs: each layer is read once here and compared, and that is remembered.
func openDockerArchive(ctx context.Context, spec string, o Options) (*Source, error) {
	ref := "docker-archive:" + spec
	file, tagName, err := splitPath(spec)
	if err != nil {
		return nil, fmt.Errorf("base %s: %w", ref, err)
	}
	var tag *name.Tag
	if tagName != "" {
		t, err := name.NewTag(tagName, name.WeakValidation)
		if err != nil {
			return nil, fmt.Errorf("base %s: %w", ref, err)
		}
		tag = &t
	}
	img, err := tarball.ImageFromPath(file, tag)
	if err != nil {
		return nil, fmt.Errorf("base %s: %w", ref, err)
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return nil, fmt.Errorf("base %s: %w", ref, err)
	}
	key, _, err := v1.SHA256(bytes.NewReader(config))
	if err != nil {
		return nil, err
	}
	s := &Source{ref: ref}
	if s.children, err = single(ref, img); err != nil {
		return nil, err
	}
	known, id, settled := newVerified(o.CacheDir), fileID{}, false
	if r, err := (span{path: file}).open(); err == nil {
		id, settled = r.identity()
		r.Close()
	}
	if !settled || !known.has(key, id) {
		if err := checkDiffIDs(ctx, file, img, o.Progress); err != nil {
			return nil, err
		}
		if settled {
			known.add(key, id)
		}
	}
	s.digest, err = img.Digest()
	return s, err
}

func checkDiffIDs(ctx context.Context, file string, img v1.Image, p Progress) error {
	layers, err := img.Layers()
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for _, l := range layers {
		g.Go(func() (err error) {
			want, err := l.DiffID()
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			task := p.Task("verify "+Short(want), 0)
			defer func() { task.Done(err) }()
			r, err := l.Uncompressed()
			if err != nil {
				return fmt.Errorf("%s: layer %s: %w", file, want, err)
			}
			defer r.Close()
			got, _, err := v1.SHA256(Counting(ctx, r, task.Add))
			if err != nil && !errors.Is(err, io.EOF) {
				return fmt.Errorf("%s: layer %s: %w", file, want, err)
			}
			if got != want {
				return &DigestError{Want: want, Got: got, Where: file}
			}
			return nil
		})
	}
	return g.Wait()
}
