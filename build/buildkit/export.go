package buildkit

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/moby/buildkit/client"
	"github.com/tonistiigi/fsutil"

	slimllb "github.com/slimctl/slimctl/build/llb"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/output"
)

type localMounts map[string]fsutil.FS

// writeContext writes the directory that the forms other than Overlay read.
func (s *solve) writeContext() error {
	dir := filepath.Join(s.tmp, "context")
	if err := slimllb.WriteContext(dir, s.req.Recipes, s.req.Annotations.Manifest); err != nil {
		return err
	}
	local, err := fsutil.NewFS(dir)
	if err != nil {
		return err
	}
	s.locals = localMounts{slimllb.LocalName: local}
	return nil
}

// exports returns the daemon's outputs. Files and directories get a temporary name, which finish replaces.
func (s *solve) exports() ([]client.ExportEntry, error) {
	var exports []client.ExportEntry
	add := func(kind string, e client.ExportEntry, attrs map[string]string) {
		e.Type, e.Attrs = kind, s.attrs(attrs)
		exports = append(exports, e)
	}
	for _, out := range s.req.Target.Files {
		switch out.Type {
		case output.OCI:
			tmp, err := os.MkdirTemp(filepath.Dir(out.Dest), "."+filepath.Base(out.Dest)+".*")
			if err != nil {
				return nil, err
			}
			if err := os.Chmod(tmp, 0o755); err != nil {
				return nil, err
			}
			s.renames = append(s.renames, rename{tmp, out})
			add(client.ExporterOCI, client.ExportEntry{OutputDir: tmp}, s.addUnnamed(map[string]string{"tar": "false"}))
		case output.OCIArchive, output.DockerArchive:
			kind, attrs := client.ExporterOCI, s.addUnnamed(map[string]string{})
			if out.Type == output.DockerArchive {
				if len(s.req.Recipes) > 1 {
					return nil, fmt.Errorf("output %s holds one platform only; choose it with --platform", out)
				}
				kind, attrs = client.ExporterDocker, nil
			}
			w, err := s.createFile(out)
			if err != nil {
				return nil, err
			}
			add(kind, client.ExportEntry{Output: func(map[string]string) (io.WriteCloser, error) { return w, nil }}, attrs)
		default:
			return nil, fmt.Errorf("a BuildKit daemon can't write output %s", out)
		}
	}
	if s.req.Target.Push || len(exports) == 0 {
		attrs := map[string]string{}
		if s.req.Target.Push {
			attrs["push"] = "true"
			if s.isExact() { // tags are set after the digest is checked
				attrs["push-by-digest"], attrs["name"] = "true", strings.Join(repositories(s.req.Target.Tags), ",")
			}
			if s.engine.Insecure {
				attrs["registry.insecure"] = "true"
			}
		}
		add(client.ExporterImage, client.ExportEntry{}, attrs)
	}
	return exports, nil
}

// addUnnamed adds the name of an image without a tag to the attributes of a layout.
func (s *solve) addUnnamed(attrs map[string]string) map[string]string {
	switch {
	case len(s.req.Target.Tags) > 0:
	case len(s.req.Recipes) > 1:
		attrs["annotation-index-descriptor."+image.AnnotationRefName] = output.DefaultName
	default:
		attrs["annotation-manifest-descriptor."+image.AnnotationRefName] = output.DefaultName
	}
	return attrs
}

// repositories returns the repositories of tags, without duplicates.
func repositories(tags []name.Tag) []string {
	var out []string
	for _, t := range tags {
		if r := t.Repository.Name(); !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	return out
}

func (s *solve) attrs(attrs map[string]string) map[string]string {
	out := map[string]string{"oci-mediatypes": "true"}
	var names []string
	for _, t := range s.req.Target.Tags {
		names = append(names, t.Name())
	}
	if len(names) > 0 {
		out["name"] = strings.Join(names, ",")
	}
	for k, v := range attrs {
		out[k] = v
	}
	for k, v := range s.req.Annotations.Manifest {
		out["annotation."+k] = v
	}
	if len(s.req.Recipes) > 1 {
		for k, v := range s.req.Annotations.Index {
			out["annotation-index."+k] = v
		}
	}
	return out
}

// createFile opens a temporary file that finish renames to out's destination.
func (s *solve) createFile(out output.Spec) (io.WriteCloser, error) {
	if out.Dest == "-" {
		return nopCloser{s.engine.Stdout}, nil
	}
	tmp, err := os.CreateTemp(filepath.Dir(out.Dest), "."+filepath.Base(out.Dest)+".*")
	if err != nil {
		return nil, err
	}
	s.renames = append(s.renames, rename{tmp.Name(), out})
	return tmp, tmp.Chmod(0o644)
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

// finish renames every output to its destination, or removes it if ok is false.
func (s *solve) finish(ok bool) error {
	var errs []error
	for _, r := range s.renames {
		if !ok {
			errs = append(errs, os.RemoveAll(r.from))
			continue
		}
		_ = os.Remove(filepath.Join(r.from, "ingest")) // BuildKit leaves it empty in a layout; an archive has none
		if err := r.to.Place(r.from); err != nil {
			errs = append(errs, err, os.RemoveAll(r.from))
		}
	}
	return errors.Join(errs...)
}

func decode(base64JSON string, into any) error {
	raw, err := base64.StdEncoding.DecodeString(base64JSON)
	if err != nil {
		return fmt.Errorf("buildkitd's answer: %w", err)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("buildkitd's answer: %w", err)
	}
	return nil
}
