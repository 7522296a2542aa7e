package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// The annotations of a layer with a table of contents: the digest for eStargz (stargz-snapshotter, docs/estargz.md,
// "TOC"), and the digest and position for zstd:chunked (containers-storage-zstd-chunked(1)), which has two spellings.
const (
	annotationStargz = "containerd.io/snapshot/stargz/toc.digest"
	annotationChunk  = "zstd-chunked.manifest-checksum"
	annotationPlace  = "zstd-chunked.manifest-position"
)

var chunkedPrefixes = []string{"io.github.containers.", "io.containers."}

// Limits of a table of contents, in bytes: compressed in the blob, and inflated.
const (
	maxTOC     = 64 << 20
	maxTOCJSON = 512 << 20
)

// stargzName is the file in the layer that holds eStargz's table of contents.
const stargzName = "stargz.index.json"

// stargzFooter is the size of eStargz's last gzip member, which holds the table's offset.
const stargzFooter = 51

// ErrNoTOC reports that a layer's descriptor names no table of contents, or that the source can't read parts of blobs.
var ErrNoTOC = errors.New("no table of contents")

// TOC reads the table of contents of an eStargz or zstd:chunked layer from the few parts of the blob that hold it. It
// calls each with every entry and, for a regular file, the digest of its content. The table has the digest in the
// layer's annotations, but its content is only its maker's claim. An error may follow after some entries. An error that
// wraps ErrNoTOC is no damage.
func (s *Source) TOC(ctx context.Context, d v1.Descriptor, each func(h *tar.Header, digest v1.Hash) error) error {
	if s.part == nil {
		return ErrNoTOC
	}
	if digest := d.Annotations[annotationStargz]; digest != "" && d.MediaType != types.OCILayerZStd {
		return s.stargz(ctx, d, digest, each)
	}
	for _, prefix := range chunkedPrefixes {
		if digest := d.Annotations[prefix+annotationChunk]; digest != "" {
			return s.chunked(ctx, d, digest, d.Annotations[prefix+annotationPlace], each)
		}
	}
	return ErrNoTOC
}

func (s *Source) stargz(ctx context.Context, d v1.Descriptor, digest string, each func(*tar.Header, v1.Hash) error) error {
	if d.Size < stargzFooter {
		return ErrNoTOC
	}
	footer, err := s.part(ctx, d, d.Size-stargzFooter, stargzFooter)
	if err != nil {
		return err
	}
	z, err := gzip.NewReader(bytes.NewReader(footer))
	if err != nil || len(z.Extra) != 26 || string(z.Extra[:2]) != "SG" || string(z.Extra[20:]) != "STARGZ" {
		return ErrNoTOC
	}
	off, err := strconv.ParseInt(string(z.Extra[4:20]), 16, 64)
	size := d.Size - stargzFooter - off
	if err != nil || off < 0 || size <= 0 || size > maxTOC {
		return fmt.Errorf("layer %s: its footer says that the table of contents begins at %s of %d bytes", d.Digest, z.Extra[4:20], d.Size)
	}
	packed, err := s.part(ctx, d, off, size)
	if err != nil {
		return err
	}
	if z, err = gzip.NewReader(bytes.NewReader(packed)); err != nil {
		return fmt.Errorf("layer %s: table of contents: %w", d.Digest, err)
	}
	tr := tar.NewReader(z)
	h, err := tr.Next()
	if err != nil || h.Name != stargzName || h.Size > maxTOCJSON {
		return fmt.Errorf("layer %s: no %s where the table of contents should be", d.Digest, stargzName)
	}
	sum := sha256.New()
	if err := readTOC(io.TeeReader(tr, sum), each); err != nil {
		return fmt.Errorf("layer %s: table of contents: %w", d.Digest, err)
	}
	if got := hashOf(sum); got.String() != digest {
		return fmt.Errorf("layer %s: its table of contents is %s, its annotation says %s", d.Digest, got, digest)
	}
	return each(h, hashOf(sum))
}

func (s *Source) chunked(ctx context.Context, d v1.Descriptor, digest, place string, each func(*tar.Header, v1.Hash) error) error {
	var off, size, inflated, kind int64
	if _, err := fmt.Sscanf(place, "%d:%d:%d:%d", &off, &size, &inflated, &kind); err != nil || kind != 1 || off < 0 || size <= 0 || size > maxTOC ||
		off > d.Size-size || inflated < 0 || inflated > maxTOCJSON {
		return fmt.Errorf("layer %s: its annotation places the table of contents at %.100q of %d bytes", d.Digest, place, d.Size)
	}
	packed, err := s.part(ctx, d, off, size)
	if err != nil {
		return err
	}
	if sum := sha256.Sum256(packed); "sha256:"+hex.EncodeToString(sum[:]) != digest {
		return fmt.Errorf("layer %s: its table of contents is sha256:%x, its annotation says %s", d.Digest, sum, digest)
	}
	z, err := zstd.NewReader(bytes.NewReader(packed), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20))
	if err != nil {
		return err
	}
	defer z.Close()
	if err := readTOC(io.LimitReader(z, inflated), each); err != nil {
		return fmt.Errorf("layer %s: table of contents: %w", d.Digest, err)
	}
	return nil
}

// tocEntry has the fields common to both kinds of tables (stargz-snapshotter, docs/estargz.md, "TOCEntry").
type tocEntry struct {
	Type     string            `json:"type"`
	Name     string            `json:"name"`
	LinkName string            `json:"linkName"`
	Size     int64             `json:"size"`
	Mode     int64             `json:"mode"`
	UID      int               `json:"uid"`
	GID      int               `json:"gid"`
	ModTime  time.Time         `json:"modtime"`
	DevMajor int64             `json:"devMajor"`
	DevMinor int64             `json:"devMinor"`
	Xattrs   map[string][]byte `json:"xattrs"`
	Digest   string            `json:"digest"`
}

var tocTypes = map[string]byte{
	"reg": tar.TypeReg, "dir": tar.TypeDir, "symlink": tar.TypeSymlink, "hardlink": tar.TypeLink, "char": tar.TypeChar,
	"block": tar.TypeBlock, "fifo": tar.TypeFifo,
}

// maxTOCEntry limits the memory for one entry of a table, in bytes.
const maxTOCEntry = 4 << 20

// rationed reads at most left bytes, which readTOC resets for each entry.
type rationed struct {
	r    io.Reader
	left int
}

func (r *rationed) Read(p []byte) (int, error) {
	if r.left <= 0 {
		return 0, fmt.Errorf("an entry has more than %d bytes", maxTOCEntry)
	}
	n, err := r.r.Read(p[:min(len(p), r.left)])
	r.left -= n
	return n, err
}

// readTOC reads a table to its end.
func readTOC(in io.Reader, each func(*tar.Header, v1.Hash) error) error {
	r := &rationed{in, maxTOCEntry}
	dec := json.NewDecoder(r)
	if t, err := dec.Token(); err != nil {
		return err
	} else if t != json.Delim('{') {
		return errors.New("not a JSON object")
	}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return err
		}
		if name != "entries" {
			var other any
			if err := dec.Decode(&other); err != nil {
				return err
			}
			if version, ok := other.(float64); name == "version" && (!ok || version != 1) {
				return fmt.Errorf("its version %v is unknown", other)
			}
			continue
		}
		if t, err := dec.Token(); err != nil || t != json.Delim('[') {
			return errors.New("its entries are not a list")
		}
		for dec.More() {
			r.left = maxTOCEntry
			var e tocEntry
			if err := dec.Decode(&e); err != nil {
				return err
			}
			if err := e.send(each); err != nil {
				return err
			}
		}
		if _, err := dec.Token(); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, in)
	return err
}

func (e *tocEntry) send(each func(*tar.Header, v1.Hash) error) error {
	if e.Type == "chunk" { // continues the file before
		return nil
	}
	kind, ok := tocTypes[e.Type]
	if !ok {
		return fmt.Errorf("%.100q: unknown type %.20q", e.Name, e.Type)
	}
	h := &tar.Header{
		Typeflag: kind, Name: e.Name, Linkname: e.LinkName, Size: e.Size, Mode: e.Mode, Uid: e.UID, Gid: e.GID, ModTime: e.ModTime,
		Devmajor: e.DevMajor, Devminor: e.DevMinor,
	}
	if h.ModTime.IsZero() { // an archive has no other value for it
		h.ModTime = time.Unix(0, 0)
	}
	for k, v := range e.Xattrs {
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords[paxXattr+k] = string(v)
	}
	var digest v1.Hash
	if kind == tar.TypeReg {
		digest = digestOf(nil)
		if e.Size != 0 {
			var err error
			if digest, err = v1.NewHash(e.Digest); err != nil || e.Size < 0 || e.Size > 1<<40 { // so that sums of sizes don't overflow
				return fmt.Errorf("%.100q: size %d or digest %.100q is invalid", e.Name, e.Size, e.Digest)
			}
		}
	}
	return each(h, digest)
}

// part returns size bytes of a blob of the layout from offset off, unverified, because only a whole blob can be.
func (b *blobs) part(_ context.Context, d v1.Descriptor, off, size int64) ([]byte, error) {
	s, err := b.blob(d)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", ErrNoTOC, err)
	}
	if err != nil {
		return nil, err
	}
	r, err := s.open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	p := make([]byte, size)
	_, err = r.ReadAt(p, off)
	return p, err
}

// registryPart returns a function that reads parts of a repository's blobs.
func registryPart(ctx context.Context, ref name.Reference, o Options, t http.RoundTripper) func(context.Context, v1.Descriptor, int64, int64) ([]byte, error) {
	repo := ref.Context()
	connect := sync.OnceValues(func() (*http.Client, error) {
		return Client(ctx, repo, o, t, repo.Scope(transport.PullScope))
	})
	return func(ctx context.Context, d v1.Descriptor, off, size int64) ([]byte, error) {
		client, err := connect()
		if err != nil {
			return nil, err
		}
		u := &url.URL{Scheme: repo.Scheme(), Host: repo.RegistryStr(), Path: "/v2/" + repo.RepositoryStr() + "/blobs/" + d.Digest.String()}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
		if err != nil {
			return nil, err
		}
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", off, off+size-1)) // RFC 9110, 14.1.2
		resp, err := client.Do(req)
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusPartialContent || !strings.HasPrefix(resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-%d/", off, off+size-1)) {
			return nil, fmt.Errorf("%w: %s returned no part of %s (status %d)", ErrNoTOC, repo.RegistryStr(), d.Digest, resp.StatusCode)
		}
		p := make([]byte, size)
		_, err = io.ReadFull(resp.Body, p)
		return p, err
	}
}
