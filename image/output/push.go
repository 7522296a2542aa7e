package output

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	ocitypes "github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/errgroup"

	"github.com/slimctl/slimctl/image"
)

// Transfer counts the blobs and bytes of a push.
type Transfer struct {
	// Blobs by their way into the target repository. A blob that several platforms share counts once. All are zero if
	// every tag was already there.
	Mounted, Uploaded, Existing int
	// BytesUp counts the bodies sent, with manifests. BytesDown counts layers read from another registry to upload
	// them.
	BytesUp, BytesDown int64
	// Refused is the answer of a registry that refuses artifacts about images. The image is published without them.
	Refused string `json:",omitempty"`
}

// counter is a Transfer for concurrent use.
type counter struct {
	mounted, uploaded, existing, up, down atomic.Int64
	refused                               atomic.Value // string
}

func (l *counter) sum() Transfer {
	refused, _ := l.refused.Load().(string)
	return Transfer{
		Refused: refused,
		Mounted: int(l.mounted.Load()), Uploaded: int(l.uploaded.Load()), Existing: int(l.existing.Load()),
		BytesUp: l.up.Load(), BytesDown: l.down.Load(),
	}
}

// Push uploads b and points refs at it. It sends the blobs of all platforms concurrently and mounts base layers from
// the base's repository. Then it sends the platforms' manifests and, when all repositories are complete, the tags. It
// sends nothing for a tag that already points at b. After an error, the tags not yet pushed are unchanged, and Transfer
// counts what was sent. src may be nil.
func Push(ctx context.Context, b image.Built, refs []name.Reference, src *image.Source, opt image.Options) (Transfer, error) {
	opt = opt.WithDefaults()
	c, err := contentsOf(b)
	if err != nil {
		return Transfer{}, err
	}
	digest := c.root.desc.Digest
	for _, r := range refs {
		if d, ok := r.(name.Digest); ok && d.DigestStr() != digest.String() {
			return Transfer{}, fmt.Errorf("push %s: the image has another digest, %s", r, digest)
		}
	}
	var book counter
	var todo []*writer
	for _, r := range refs {
		i := slices.IndexFunc(todo, func(w *writer) bool { return w.repo == r.Context() })
		if i < 0 {
			i = len(todo)
			todo = append(todo, &writer{repo: r.Context(), opt: opt, src: src, book: &book})
		}
		todo[i].refs = append(todo[i].refs, r)
	}
	t := image.Transport(src, opt)
	err = each(ctx, -1, todo, func(ctx context.Context, w *writer) error { return w.prepare(ctx, t, c) })
	if err == nil {
		err = each(ctx, -1, todo, func(ctx context.Context, w *writer) error {
			return each(ctx, opt.Jobs, w.refs, func(ctx context.Context, r name.Reference) error { return w.putManifest(ctx, r, c.root) })
		})
	}
	return book.sum(), interrupted(ctx, err)
}

// Attach pushes only the referrers of an image that is already in the repository of each reference, like Push.
func Attach(ctx context.Context, referrers []v1.Image, refs []name.Tag, opt image.Options) (Transfer, error) {
	opt = opt.WithDefaults()
	c := &contents{seen: map[v1.Hash]bool{}}
	if err := c.addReferrers(referrers); err != nil {
		return Transfer{}, err
	}
	var book counter
	t := image.Transport(nil, opt)
	done := map[name.Repository]bool{}
	for _, r := range refs {
		if done[r.Context()] || len(referrers) == 0 {
			continue
		}
		done[r.Context()] = true
		w := &writer{repo: r.Context(), opt: opt, book: &book}
		err := w.connect(ctx, t, nil)
		if err == nil {
			err = each(ctx, opt.Jobs, c.blobs, w.pushBlob)
		}
		if err == nil {
			err = each(ctx, opt.Jobs, c.referrers, w.pushReferrer)
		}
		if err != nil {
			return book.sum(), err
		}
	}
	return book.sum(), nil
}

// Tag points refs at an index or manifest that is already in each of their repositories. If it is missing in one, the
// error is ErrNotFound and no reference moves.
func Tag(ctx context.Context, digest v1.Hash, refs []name.Tag, opt image.Options) error {
	opt = opt.WithDefaults()
	t := image.Transport(nil, opt)
	type move struct {
		writer
		tag  name.Tag
		root item
	}
	todo := make([]*move, len(refs))
	for i, r := range refs {
		todo[i] = &move{tag: r, writer: writer{repo: r.Context(), opt: opt, book: &counter{}}}
	}
	err := each(ctx, -1, todo, func(ctx context.Context, m *move) error {
		d, err := image.Manifest(ctx, m.repo.Digest(digest.String()), opt, t)
		if err != nil {
			return err
		}
		m.root = item{desc: d.Descriptor, raw: d.Manifest}
		return m.connect(ctx, t, nil)
	})
	if err == nil {
		err = each(ctx, -1, todo, func(ctx context.Context, m *move) error { return m.putManifest(ctx, m.tag, m.root) })
	}
	return interrupted(ctx, err)
}

// interrupted returns err, or the reason why ctx ended.
func interrupted(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return fmt.Errorf("push interrupted: %w", cause)
	}
	return err
}

// each calls do for all items, at most limit at once; -1 is no limit. After an error it ends the others' context.
func each[T any](ctx context.Context, limit int, items []T, do func(context.Context, T) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(limit)
	for _, it := range items {
		g.Go(func() error { return do(ctx, it) })
	}
	return g.Wait()
}

// writer writes to one repository. Nothing else in slimctl writes to a registry.
type writer struct {
	repo    name.Repository
	refs    []name.Reference
	opt     image.Options
	src     *image.Source
	book    *counter
	options []remote.Option
	pusher  *remote.Pusher
}

// tries is how often the steps of a push are tried. A blob's upload is one step of three requests.
const tries = 4

// connect authenticates for pushing to the repository and for reading the repositories to mount from. It sets the one
// policy by which requests are tried again.
func (w *writer) connect(ctx context.Context, t http.RoundTripper, mounts []name.Repository) error {
	scopes := []string{w.repo.Scope(transport.PushScope)}
	for _, r := range mounts {
		scopes = append(scopes, r.Scope(transport.PullScope))
	}
	wait := remote.Backoff{Duration: w.opt.Backoff, Factor: 3, Jitter: 0.1, Steps: tries}
	t = transport.NewRetry(t, transport.WithRetryBackoff(wait), transport.WithRetryPredicate(isTemporary), transport.WithRetryStatusCodes(temporaryStatus...))
	t, err := image.Login(ctx, w.repo, w.opt, mounter{t}, scopes...)
	if err == nil {
		w.options = []remote.Option{remote.WithTransport(t), remote.WithRetryBackoff(wait), remote.WithRetryPredicate(isTemporary)}
		w.pusher, err = remote.NewPusher(w.options...)
	}
	return w.explain("connect to push to", err)
}

// explain returns err with the step and the repository, if it doesn't already name where it happened.
func (w *writer) explain(step string, err error) error {
	var re *image.RegistryError
	var de *image.DigestError
	switch {
	case errors.As(err, &re): // of the base's registry, within the request's error
		return re
	case errors.As(err, &de):
		return de
	}
	return image.RegistryFailure(step, w.repo.String(), w.repo.RegistryStr(), err)
}

// prepare uploads everything but the root manifest. w.refs then holds the references that don't point at it yet.
func (w *writer) prepare(ctx context.Context, t http.RoundTripper, c *contents) error {
	if err := w.connect(ctx, t, w.mountRepos(c)); err != nil {
		return err
	}
	if err := w.findMissing(ctx, c.root.desc.Digest); err != nil || len(w.refs) == 0 {
		return err
	}
	if err := each(ctx, w.opt.Jobs, w.ownFirst(c.blobs), w.pushBlob); err != nil {
		return err
	}
	if err := each(ctx, w.opt.Jobs, c.referrers, w.pushReferrer); err != nil {
		return err
	}
	return each(ctx, w.opt.Jobs, c.manifests, func(ctx context.Context, it item) error {
		return w.putManifest(ctx, w.repo.Digest(it.desc.Digest.String()), it)
	})
}

// findMissing reduces w.refs to those that don't point at digest yet.
func (w *writer) findMissing(ctx context.Context, digest v1.Hash) error {
	var missing []name.Reference
	var mu sync.Mutex
	err := each(ctx, w.opt.Jobs, w.refs, func(ctx context.Context, r name.Reference) error {
		d, err := remote.Head(r, append(w.options, remote.WithContext(ctx))...)
		var answer *transport.Error
		// Some registries answer 403 for missing manifests (Artifactory). If it is a refusal, the push fails later.
		absent := errors.As(err, &answer) && (answer.StatusCode == http.StatusNotFound || answer.StatusCode == http.StatusForbidden)
		if err != nil && !absent {
			return w.explain("look up "+r.Identifier()+" in", err)
		}
		if absent || d.Digest != digest {
			mu.Lock()
			defer mu.Unlock()
			missing = append(missing, r)
		}
		return nil
	})
	w.refs = missing
	return err
}

// pushReferrer pushes the manifest of an artifact whose blobs are in the repository. The registry lists it by the API
// or by a tag (OCI distribution specification, "Pushing Manifests with Subject"). A registry that refuses artifacts
// because it is too old causes no error; w.book records its answer.
func (w *writer) pushReferrer(ctx context.Context, it item) error {
	err := w.putManifest(ctx, w.repo.Digest(it.desc.Digest.String()), it)
	var r *image.RegistryError
	if errors.As(err, &r) && slices.Contains(invalid, r.Status) && slices.Contains(invalidCodes, r.Code) {
		w.book.refused.Store(err.Error())
		return nil
	}
	return err
}

// invalid and invalidCodes are a registry's answers to an unknown kind of manifest: HTTP statuses, and codes of the
// distribution specification, if it sends one.
var (
	invalid      = []int{http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity}
	invalidCodes = []string{"MANIFEST_INVALID", "UNSUPPORTED", ""}
)

// ownFirst returns items with uploads before mounts, so that long work starts first.
func (w *writer) ownFirst(items []item) []item {
	var own, base []item
	for _, it := range items {
		if _, ofBase := w.home(it); ofBase {
			base = append(base, it)
		} else {
			own = append(own, it)
		}
	}
	return append(own, base...)
}

// mountRepos returns the other repositories of this registry with layers of the image.
func (w *writer) mountRepos(c *contents) []name.Repository {
	var out []name.Repository
	for _, it := range c.blobs {
		if r, ok := w.home(it); ok && r.RegistryStr() == w.repo.RegistryStr() && r.RepositoryStr() != w.repo.RepositoryStr() && !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	return out
}

// home returns the repository that a layer of the base came from.
func (w *writer) home(it item) (name.Repository, bool) {
	if ml, ok := it.layer.(*remote.MountableLayer); ok {
		return ml.Reference.Context(), true
	}
	if it.layer != nil && w.src != nil && w.src.Name() != nil && w.src.Holds(it.desc.Digest) {
		return w.src.Name().Context(), true // a wrapper may hide the layer's type
	}
	return name.Repository{}, false
}

// putManifest pushes a manifest or an index under ref.
func (w *writer) putManifest(ctx context.Context, ref name.Reference, it item) error {
	err := w.pusher.Put(ctx, ref, it)
	if err == nil {
		w.book.up.Add(it.desc.Size)
	}
	return w.explain("push manifest "+ref.Identifier()+" to", err)
}

// RawManifest returns the bytes of a document.
func (it item) RawManifest() ([]byte, error) { return it.raw, nil }

// MediaType returns the type of the blob.
func (it item) MediaType() (ocitypes.MediaType, error) { return it.desc.MediaType, nil }

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
