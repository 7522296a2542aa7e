//go:build linux

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/slimctl/slimctl/image"
)

const (
	rowFetch        = "floor: the same blobs by GET into one file"
	rowFetchHash    = "floor, each blob hashed too"
	rowFromRegistry = "slimctl: registry → oci-archive"
	rowCopy         = "floor: cp of the layout"
	rowFromLayout   = "slimctl: oci layout → oci-archive, first time"
	rowFromLayout2  = "slimctl: oci layout → oci-archive, again"
	rowLink         = "floor: cp --link of the layout"
	rowToLayout     = "slimctl: oci layout → oci layout, first time"
	rowToLayout2    = "slimctl: oci layout → oci layout, again"
	tableArchive    = "archive"
)

// archives measures writing the image to this machine, beside a process that only fetches, without verification.
func (b *bench) archives(ctx context.Context) error {
	if err := errors.Join(b.reg.latency(0), b.writeProfile("first")); err != nil {
		return err
	}
	cache := filepath.Join(b.tmp, "cache-archive")
	dest := filepath.Join(b.tmp, "out")
	// Keep the first output of links until the end: removing a link changes the times by which slimctl knows verified
	// blobs.
	linked := filepath.Join(b.tmp, "linked")
	build := func(base, lock, output string) []string {
		return []string{
			b.slimctl, "build", "--progress", "quiet", "--profile", b.profile(), "--base", base, "--lock", b.lock(lock),
			"--cache-dir", cache, "--output", "type=" + output + ",dest=" + dest,
		}
	}
	layout := "oci:" + b.layout
	for n := range b.runs {
		if b.enough(n, 8*time.Minute) {
			break
		}
		b.logf("archives, run %d of %d", n+1, b.runs)
		for _, r := range []struct {
			row   string
			fresh bool // remove the record of verified blobs
			args  []string
		}{
			{rowFetch, false, []string{b.self, floorCommand, b.slim, dest}},
			{rowFromRegistry, true, build(b.reference(), "registry", "oci-archive")},
			{rowFetchHash, false, []string{b.self, floorCommand, b.slim, dest, "hash"}},
			{rowCopy, false, []string{"cp", "-r", b.layout, dest}},
			{rowFromLayout, true, build(layout, "layout", "oci-archive")},
			{rowFromLayout2, false, build(layout, "layout", "oci-archive")},
			{rowToLayout, true, build(layout, "layout", "oci")},
			{rowToLayout2, false, build(layout, "layout", "oci")},
			{rowLink, false, []string{"cp", "-r", "--link", b.layout, dest}},
		} {
			if r.fresh {
				if err := b.freshCache(cache); err != nil {
					return err
				}
			}
			unix.Sync() // so that no process pays for another's writes
			s, err := b.measure(ctx, r.args)
			if err != nil {
				return fmt.Errorf("%s: %w", r.row, err)
			}
			s.Table, s.Row = tableArchive, r.row
			b.samples = append(b.samples, s)
			if r.row == rowToLayout {
				err = os.Rename(dest, linked)
			} else {
				err = os.RemoveAll(dest)
			}
			if err != nil {
				return err
			}
		}
		if err := os.RemoveAll(linked); err != nil {
			return err
		}
	}
	return nil
}

// floorCommand is the first argument of the floor's process: floor HOST/REPO:TAG FILE [hash].
const floorCommand = "floor"

// floorJobs is slimctl's number of concurrent copies (image/output, copyJobs).
const floorJobs = 6

// fetchEverything fetches all blobs of an image concurrently into one file, each to its own place.
func fetchEverything(args []string) error {
	if len(args) < 2 {
		return errors.New("floor: HOST/REPO:TAG and FILE are wanted")
	}
	host, rest, _ := strings.Cut(args[0], "/")
	repo, tag, ok := strings.Cut(rest, ":")
	if !ok {
		return fmt.Errorf("floor: %s is not HOST/REPO:TAG", args[0])
	}
	f, err := os.Create(args[1])
	if err != nil {
		return err
	}
	http.DefaultTransport.(*http.Transport).MaxIdleConnsPerHost = floorJobs
	return errors.Join(fetchAll("http://"+host+"/v2/"+repo, tag, f, len(args) > 2), f.Close())
}

func fetchAll(url, tag string, f *os.File, hash bool) error {
	var index v1.IndexManifest
	if err := getJSON(url+"/manifests/"+tag, &index); err != nil {
		return err
	}
	var blobs []v1.Descriptor
	seen := map[v1.Hash]bool{}
	for _, d := range index.Manifests {
		var m v1.Manifest
		if err := getJSON(url+"/manifests/"+d.Digest.String(), &m); err != nil {
			return err
		}
		for _, d := range append(m.Layers, m.Config) {
			if !seen[d.Digest] {
				seen[d.Digest] = true
				blobs = append(blobs, d)
			}
		}
	}
	var size int64
	var g errgroup.Group
	g.SetLimit(floorJobs)
	for _, d := range blobs {
		w := io.NewOffsetWriter(f, size)
		size += d.Size
		g.Go(func() error { return fetch(url+"/blobs/"+d.Digest.String(), d, w, hash) })
	}
	return g.Wait()
}

func getJSON(url string, into any) error {
	resp, err := get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(resp.Body).Decode(into)
}

func get(url string) (*http.Response, error) {
	resp, err := http.Get(url) //nolint:gosec,noctx // the benchmark's own registry
	if err == nil && resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		err = fmt.Errorf("%s: %s", url, resp.Status)
	}
	return resp, err
}

func fetch(url string, d v1.Descriptor, w io.Writer, hash bool) error {
	resp, err := get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	sum := sha256.New()
	if hash {
		w = io.MultiWriter(w, sum)
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{w}, resp.Body, make([]byte, 512<<10))
	if err == nil && (n != d.Size || hash && hex.EncodeToString(sum.Sum(nil)) != d.Digest.Hex) {
		err = fmt.Errorf("%s: other bytes came", url)
	}
	return err
}

// describe describes the base and the machine.
func (b *bench) describe(ctx context.Context) error {
	b.layers = map[string]bool{}
	src, err := image.Open(ctx, "oci:"+b.layout, image.Options{})
	if err != nil {
		return err
	}
	images, err := src.Images(src.Platforms()...)
	if err != nil {
		return err
	}
	var size int64
	layers := 0
	for _, img := range images {
		m, err := img.Manifest()
		if err != nil {
			return err
		}
		for _, l := range m.Layers {
			layers++
			if !b.layers[l.Digest.String()] {
				b.layers[l.Digest.String()] = true
				size += l.Size
			}
		}
	}
	b.base = fmt.Sprintf("stand-in of line B, %d platforms, %d layers, %.0f MB compressed", len(images), layers, float64(size)/1e6)
	return b.describeMachine(ctx)
}

func (b *bench) describeMachine(ctx context.Context) error {
	say := func(format string, args ...any) { b.machine = append(b.machine, fmt.Sprintf(format, args...)) }
	var u unix.Utsname
	var info unix.Sysinfo_t
	if err := errors.Join(unix.Uname(&u), unix.Sysinfo(&info)); err != nil {
		return err
	}
	say("%s, %d cores, %.0f GB of memory, load %.1f at the start", cpu(), cores(), gb(int64(info.Totalram)*int64(info.Unit)), float64(info.Loads[0])/(1<<16))
	say("%s %s", unix.ByteSliceToString(u.Sysname[:]), unix.ByteSliceToString(u.Release[:]))
	version, err := b.goRun(ctx, nil, "version")
	if err != nil {
		return err
	}
	say("%s", version)
	if b.daemon == "" {
		return nil
	}
	version, err = output(exec.CommandContext(ctx, b.daemon, "--version"))
	say("%s", version)
	return err
}
