package output

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/slimctl/slimctl/image"
)

// pushBlob ensures that the repository has a blob.
func (w *writer) pushBlob(ctx context.Context, it item) error {
	if it.layer != nil && !it.desc.MediaType.IsDistributable() {
		return nil
	}
	b := &blob{item: it, w: w, ctx: ctx, from: w.repo}
	home, ofBase := w.home(it)
	if ofBase && home.RegistryStr() == w.repo.RegistryStr() {
		b.from = home
	}
	b.down, b.look = ofBase, ofBase || it.desc.Size >= headFrom
	layer := &remote.MountableLayer{Layer: b, Reference: b.from.Digest(it.desc.Digest.String())}
	err := w.pusher.Upload(context.WithValue(ctx, blobKey{}, b), w.repo, layer)
	if b.task != nil {
		b.task.Done(err)
	}
	if err == nil {
		b.count.Add(1)
	}
	return w.explain("push blob "+it.desc.Digest.String()+" to", err)
}

// headFrom is the size, in bytes, from which a blob that can't be mounted is worth a request for its existence.
const headFrom = 1 << 20

// blob is a blob on its way to a repository. It is a layer for go-containerregistry.
type blob struct {
	item
	w     *writer
	ctx   context.Context
	from  name.Repository // where it may be: another repository of the registry, or the target itself
	look  bool            // ask for it before uploading
	down  bool            // reading it downloads it
	task  image.Task      // of the upload, or nil
	sent  atomic.Int64    // in the current try
	count *atomic.Int64   // of its way
	err   error           // of the last mount
}

// blobKey is the key of a *blob in a request's context.
type blobKey struct{}

func (b *blob) Digest() (v1.Hash, error) { return b.desc.Digest, nil }
func (b *blob) Size() (int64, error)     { return b.desc.Size, nil }

var errUnread = errors.New("a push reads only compressed layers")

func (b *blob) DiffID() (v1.Hash, error)             { return v1.Hash{}, errUnread }
func (b *blob) Uncompressed() (io.ReadCloser, error) { return nil, errUnread }

// Compressed opens the blob for sending, once a try.
func (b *blob) Compressed() (io.ReadCloser, error) {
	if b.task == nil {
		b.task = b.w.opt.Progress.Task("push "+image.Short(b.desc.Digest), b.desc.Size)
	}
	b.task.Add(-b.sent.Swap(0))
	if b.raw != nil {
		return &sending{io.NopCloser(bytes.NewReader(b.raw)), b}, nil
	}
	c := copier{opt: b.w.opt, src: b.w.src}
	r, err := c.openUntil(b.ctx, b.item)
	if err != nil {
		return nil, err
	}
	return &sending{r, b}, nil
}

// sending counts the bytes of a blob.
type sending struct {
	io.ReadCloser
	b *blob
}

func (s *sending) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	s.b.sent.Add(int64(n))
	s.b.task.Add(int64(n))
	s.b.w.book.up.Add(int64(n))
	if s.b.down {
		s.b.w.book.down.Add(int64(n))
	}
	return n, err
}

// mounter is the transport below go-containerregistry's writer. The writer asks for each blob before it mounts it;
// here the mount is the question, also for a blob that may be in the target repository itself.
type mounter struct{ inner http.RoundTripper }

func (t mounter) RoundTrip(req *http.Request) (*http.Response, error) {
	b, ok := req.Context().Value(blobKey{}).(*blob)
	if !ok {
		return t.inner.RoundTrip(req)
	}
	switch {
	case req.Method == http.MethodHead:
		return answer(req, http.StatusNotFound), nil
	case req.Method != http.MethodPost || !strings.HasSuffix(req.URL.Path, "/blobs/uploads/"):
		return t.inner.RoundTrip(req)
	case req.URL.Query().Has("mount"):
		var resp *http.Response
		resp, b.err = t.mount(req, b)
		return resp, b.err
	case b.err != nil:
		// After any failure the writer starts an upload. After a temporary one, another try of the mount comes first.
		return nil, b.err
	}
	return t.inner.RoundTrip(req)
}

// mount tries to mount a blob. If it can't, it asks for the blob where that is worth a request.
func (t mounter) mount(req *http.Request, b *blob) (*http.Response, error) {
	b.count = &b.w.book.uploaded
	resp, err := t.inner.RoundTrip(req)
	switch {
	case err != nil:
		return nil, err
	case slices.Contains(temporaryStatus, resp.StatusCode):
		defer resp.Body.Close()
		return nil, transport.CheckError(resp)
	case resp.StatusCode == http.StatusCreated:
		b.count = &b.w.book.mounted
		if b.from == b.w.repo {
			b.count = &b.w.book.existing
		}
		return resp, nil
	case !b.look:
		return resp, nil
	}
	head := req.Clone(req.Context())
	head.Method, head.URL.RawQuery = http.MethodHead, ""
	head.URL.Path = strings.TrimSuffix(req.URL.Path, "uploads/") + b.desc.Digest.String()
	found, err := t.inner.RoundTrip(head)
	if err == nil {
		found.Body.Close()
	}
	if err != nil || found.StatusCode == http.StatusOK {
		resp.Body.Close()
		b.count = &b.w.book.existing
		return answer(req, http.StatusCreated), err
	}
	return resp, nil
}

// answer returns an answer that no registry gave.
func answer(req *http.Request, status int) *http.Response {
	return &http.Response{StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{}, Body: http.NoBody, Request: req}
}
