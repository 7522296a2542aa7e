package output

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	ocitypes "github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/slimctl/slimctl/image"
)

// The requests of a push (OCI distribution specification, "Pushing"). go-containerregistry needs twice the requests and
// 1.5 times the round trips, because it asks for each blob before mounting it and authenticates for each scope again.

// connect authenticates for pushing to the repository and for reading the repositories to mount from.
func (p *pusher) connect(ctx context.Context, mounts []name.Repository) error {
	return p.retry(ctx, "connect to push to", func() (err error) {
		scopes := []string{p.repo.Scope(transport.PushScope)}
		for _, r := range mounts {
			scopes = append(scopes, r.Scope(transport.PullScope))
		}
		p.client, err = image.Client(ctx, p.repo, p.opt, p.transport, scopes...)
		return err
	})
}

func (p *pusher) url(kind, rest string) *url.URL {
	return &url.URL{
		Scheme: p.repo.Scheme(), Host: p.repo.RegistryStr(),
		Path: "/v2/" + p.repo.RepositoryStr() + "/" + kind + "/" + rest,
	}
}

// do sends a request and returns the response, with its body closed, if it has one of the wanted statuses.
func (p *pusher) do(req *http.Request, want ...int) (*http.Response, error) {
	resp, err := p.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if err := transport.CheckError(resp, want...); err != nil {
		return nil, err
	}
	// Read the rest of a short body, so that the connection is reused.
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	return resp, err
}

// pointsAt reports whether ref points at digest.
func (p *pusher) pointsAt(ctx context.Context, ref name.Reference, digest v1.Hash) (there bool, err error) {
	err = p.retry(ctx, "look up "+ref.Identifier()+" in", func() error {
		req, err := http.NewRequestWithContext(ctx, http.MethodHead, p.url("manifests", ref.Identifier()).String(), nil)
		if err != nil {
			return err
		}
		for _, mt := range []ocitypes.MediaType{
			ocitypes.OCIImageIndex, ocitypes.OCIManifestSchema1, ocitypes.DockerManifestList, ocitypes.DockerManifestSchema2,
		} {
			req.Header.Add("Accept", string(mt))
		}
		// Some registries answer 403 for missing manifests (Artifactory). If it is a refusal, the push fails later.
		resp, err := p.do(req, http.StatusOK, http.StatusNotFound, http.StatusForbidden)
		if err != nil {
			return err
		}
		there = resp.StatusCode == http.StatusOK && resp.Header.Get("Docker-Content-Digest") == digest.String()
		return nil
	})
	return there, err
}

// hasBlob reports whether the repository has a blob, and counts it.
func (p *pusher) hasBlob(ctx context.Context, h v1.Hash) (bool, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, p.url("blobs", h.String()).String(), nil)
	if err != nil {
		return false, err
	}
	resp, err := p.do(req, http.StatusOK, http.StatusNotFound)
	if err != nil || resp.StatusCode != http.StatusOK {
		return false, err
	}
	p.book.existing.Add(1)
	return true, nil
}

// startUpload begins an upload, or mounts a blob if from is given.
func (p *pusher) startUpload(ctx context.Context, mount v1.Hash, from string) (location string, mounted bool, err error) {
	u := p.url("blobs", "uploads/")
	if from != "" {
		u.RawQuery = url.Values{"mount": {mount.String()}, "from": {from}}.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), nil)
	if err != nil {
		return "", false, err
	}
	want := []int{http.StatusAccepted}
	if from != "" {
		want = append(want, http.StatusCreated)
	}
	resp, err := p.do(req, want...)
	if err != nil {
		return "", false, err
	}
	if resp.StatusCode == http.StatusCreated {
		return "", true, nil
	}
	loc := resp.Header.Get("Location")
	if loc == "" {
		return "", false, errNoLocation
	}
	to, err := resp.Request.URL.Parse(loc)
	if err != nil {
		return "", false, err
	}
	return to.String(), false, nil
}

// putBlob sends a whole blob in one request.
func (p *pusher) putBlob(ctx context.Context, location string, it item, task image.Task) error {
	u, err := url.Parse(location)
	if err != nil {
		return err
	}
	q := u.Query()
	q.Set("digest", it.desc.Digest.String())
	u.RawQuery = q.Encode()
	up := &uploading{}
	body := func() (io.ReadCloser, error) { return p.openBody(ctx, it, task, up) }
	first, err := body()
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, u.String(), first)
	if err != nil {
		first.Close()
		return err
	}
	req.GetBody = body
	req.ContentLength = it.desc.Size
	if it.desc.Size == 0 {
		first.Close()
		req.Body, req.GetBody = http.NoBody, nil
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	_, err = p.do(req, http.StatusCreated, http.StatusNoContent)
	if err != nil {
		task.Add(-up.take())
	}
	// A failure to read on our side explains more than the resulting error of net/http or of the registry. It is no
	// such failure if the registry answered early and the body was closed.
	var answer *transport.Error
	var corrupt *image.DigestError
	if own := up.failure(); err != nil && own != nil && (!errors.As(err, &answer) || errors.As(own, &corrupt)) {
		return own
	}
	return err
}

// openBody opens a blob for sending.
func (p *pusher) openBody(ctx context.Context, it item, task image.Task, up *uploading) (io.ReadCloser, error) {
	task.Add(-up.take())
	b := &upload{task: task, up: up, book: p.book}
	if it.raw != nil {
		b.in = io.NopCloser(bytes.NewReader(it.raw))
		return b, nil
	}
	cp := copier{opt: p.opt, src: p.src}
	in, err := cp.openUntil(ctx, it)
	if err != nil {
		return nil, err
	}
	_, b.down = p.home(it)
	b.in = in
	return b, nil
}

// uploading counts the bytes that one request has sent.
type uploading struct {
	mu   sync.Mutex
	sent int64
	err  error
}

func (u *uploading) take() int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	n := u.sent
	u.sent = 0
	return n
}

func (u *uploading) failure() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.err
}

type upload struct {
	in   io.ReadCloser
	task image.Task
	up   *uploading
	book *counter
	down bool
}

func (b *upload) Read(d []byte) (int, error) {
	n, err := b.in.Read(d)
	b.up.mu.Lock()
	b.up.sent += int64(n)
	if err != nil && err != io.EOF && !errors.Is(err, http.ErrBodyReadAfterClose) && b.up.err == nil {
		b.up.err = err
	}
	b.up.mu.Unlock()
	b.task.Add(int64(n))
	b.book.up.Add(int64(n))
	if b.down {
		b.book.down.Add(int64(n))
	}
	return n, err
}

func (b *upload) Close() error { return b.in.Close() }

// putManifest pushes a manifest or an index under ref.
func (p *pusher) putManifest(ctx context.Context, ref name.Reference, it item) error {
	return p.retry(ctx, "push manifest "+ref.Identifier()+" to", func() error {
		u := p.url("manifests", ref.Identifier())
		req, err := http.NewRequestWithContext(ctx, http.MethodPut, u.String(), bytes.NewReader(it.raw))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", string(it.desc.MediaType))
		resp, err := p.do(req, http.StatusCreated, http.StatusOK, http.StatusAccepted)
		if err != nil {
			return err
		}
		p.book.up.Add(it.desc.Size)
		if got := resp.Header.Get("Docker-Content-Digest"); got != "" && got != it.desc.Digest.String() {
			return fmt.Errorf("the registry stored %s as %s", it.desc.Digest, image.OneLine(got, 80))
		}
		return nil
	})
}

var temporaryStatus = []int{
	http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway,
	http.StatusServiceUnavailable, http.StatusGatewayTimeout, 499, 522,
}

// isTemporary reports whether another try may help, by go-containerregistry's rules.
func isTemporary(err error) bool {
	var de *image.DigestError
	if errors.As(err, &de) || errors.Is(err, context.Canceled) {
		return false
	}
	var te *transport.Error
	if errors.As(err, &te) {
		return slices.Contains(temporaryStatus, te.StatusCode)
	}
	return image.IsCut(err)
}

// isAnswer reports whether err is a registry's answer, not a network error.
func isAnswer(err error) bool {
	var te *transport.Error
	return errors.As(err, &te) && te.StatusCode != http.StatusUnauthorized
}
