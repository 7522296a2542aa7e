package output

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
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
	transport := image.Transport(src, opt)
	var todo []*pusher
	for _, r := range refs {
		i := slices.IndexFunc(todo, func(p *pusher) bool { return p.repo == r.Context() })
		if i < 0 {
			i = len(todo)
			todo = append(todo, &pusher{repo: r.Context(), transport: transport, opt: opt, src: src, book: &book})
		}
		todo[i].refs = append(todo[i].refs, r)
	}
	each := func(step func(context.Context, *pusher) error) error {
		g, ctx := errgroup.WithContext(ctx)
		for _, p := range todo {
			g.Go(func() error { return step(ctx, p) })
		}
		return g.Wait()
	}
	err = each(func(ctx context.Context, p *pusher) error { return p.prepare(ctx, c) })
	if err == nil {
		err = each(func(ctx context.Context, p *pusher) error { return p.pushRoot(ctx, c.root) })
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = fmt.Errorf("push interrupted: %w", cause)
	}
	return book.sum(), err
}

// Attach pushes only the referrers of an image that is already in the repository of each reference, like Push.
func Attach(ctx context.Context, referrers []v1.Image, refs []name.Tag, opt image.Options) (Transfer, error) {
	opt = opt.WithDefaults()
	c := &contents{seen: map[v1.Hash]bool{}}
	if err := c.addReferrers(referrers); err != nil {
		return Transfer{}, err
	}
	var book counter
	transport := image.Transport(nil, opt)
	done := map[name.Repository]bool{}
	for _, r := range refs {
		if done[r.Context()] || len(referrers) == 0 {
			continue
		}
		done[r.Context()] = true
		p := &pusher{repo: r.Context(), transport: transport, opt: opt, book: &book}
		err := p.connect(ctx, nil)
		if err == nil {
			err = p.parallel(ctx, c.blobs, p.pushBlob)
		}
		if err == nil {
			err = p.parallel(ctx, c.referrers, p.pushReferrer)
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
	transport := image.Transport(nil, opt)
	todo, roots := make([]*pusher, len(refs)), make([]item, len(refs))
	each := func(step func(context.Context, int) error) error {
		g, ctx := errgroup.WithContext(ctx)
		for i := range refs {
			g.Go(func() error { return step(ctx, i) })
		}
		return g.Wait()
	}
	err := each(func(ctx context.Context, i int) error {
		at := refs[i].Context().Digest(digest.String())
		d, err := image.Manifest(ctx, at, opt, transport)
		if err != nil {
			return err
		}
		roots[i] = item{desc: d.Descriptor, raw: d.Manifest}
		todo[i] = &pusher{repo: at.Context(), transport: transport, opt: opt, book: &counter{}}
		return todo[i].connect(ctx, nil)
	})
	if err == nil {
		err = each(func(ctx context.Context, i int) error { return todo[i].putManifest(ctx, refs[i], roots[i]) })
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = fmt.Errorf("push interrupted: %w", cause)
	}
	return err
}

// pusher pushes to one repository.
type pusher struct {
	repo      name.Repository
	refs      []name.Reference
	transport http.RoundTripper
	client    *http.Client
	opt       image.Options
	src       *image.Source
	book      *counter
}

// prepare uploads everything but the root manifest. p.refs then holds the references that don't point at it yet.
func (p *pusher) prepare(ctx context.Context, c *contents) error {
	if err := p.connect(ctx, p.mountRepos(c)); err != nil {
		return err
	}
	missing, err := p.missing(ctx, c.root.desc.Digest)
	if err != nil {
		return err
	}
	p.refs = missing
	if len(missing) == 0 {
		return nil
	}
	if err := p.parallel(ctx, p.ownFirst(c.blobs), p.pushBlob); err != nil {
		return err
	}
	if err := p.parallel(ctx, c.referrers, p.pushReferrer); err != nil {
		return err
	}
	return p.parallel(ctx, c.manifests, func(ctx context.Context, it item) error {
		return p.putManifest(ctx, p.repo.Digest(it.desc.Digest.String()), it)
	})
}

// pushReferrer pushes the manifest of an artifact whose blobs are in the repository. The registry lists it by the API
// or by a tag (OCI distribution specification, "Pushing Manifests with Subject"). A registry that refuses artifacts
// because it is too old causes no error; p.book records its answer.
func (p *pusher) pushReferrer(ctx context.Context, it item) error {
	p.book.up.Add(it.desc.Size)
	err := image.PutReferrer(ctx, p.repo.Digest(it.desc.Digest.String()), it.artifact, p.opt, p.transport)
	var r *image.RegistryError
	if errors.As(err, &r) && slices.Contains(invalid, r.Status) && slices.Contains(invalidCodes, r.Code) {
		p.book.refused.Store(err.Error())
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
func (p *pusher) ownFirst(items []item) []item {
	var own, base []item
	for _, it := range items {
		if _, ofBase := p.home(it); ofBase {
			base = append(base, it)
		} else {
			own = append(own, it)
		}
	}
	return append(own, base...)
}

// pushRoot pushes the root manifest under each reference.
func (p *pusher) pushRoot(ctx context.Context, root item) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(p.opt.Jobs)
	for _, r := range p.refs {
		g.Go(func() error { return p.putManifest(ctx, r, root) })
	}
	return g.Wait()
}

func (p *pusher) parallel(ctx context.Context, items []item, do func(context.Context, item) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(p.opt.Jobs)
	for _, it := range items {
		g.Go(func() error { return do(ctx, it) })
	}
	return g.Wait()
}

// missing returns the references that don't point at digest yet.
func (p *pusher) missing(ctx context.Context, digest v1.Hash) ([]name.Reference, error) {
	there := make([]bool, len(p.refs))
	g, gctx := errgroup.WithContext(ctx)
	for i, r := range p.refs {
		g.Go(func() (err error) {
			there[i], err = p.pointsAt(gctx, r, digest)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	var out []name.Reference
	for i, r := range p.refs {
		if !there[i] {
			out = append(out, r)
		}
	}
	return out, nil
}

// mountRepos returns the other repositories of this registry with layers of the image.
func (p *pusher) mountRepos(c *contents) []name.Repository {
	var out []name.Repository
	for _, it := range c.blobs {
		if r, ok := p.home(it); ok && p.canMount(r) && !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	return out
}

// home returns the repository that a layer of the base came from.
func (p *pusher) home(it item) (name.Repository, bool) {
	if ml, ok := it.layer.(*remote.MountableLayer); ok {
		return ml.Reference.Context(), true
	}
	if it.layer != nil && p.src != nil && p.src.Name() != nil && p.src.Holds(it.desc.Digest) {
		return p.src.Name().Context(), true // a wrapper may hide the layer's type
	}
	return name.Repository{}, false
}

func (p *pusher) canMount(from name.Repository) bool {
	return from.RegistryStr() == p.repo.RegistryStr() && from.RepositoryStr() != p.repo.RepositoryStr()
}

// headFrom is the size, in bytes, from which a blob is worth a request for its existence.
const headFrom = 1 << 20

// pushBlob ensures that the repository has a blob.
func (p *pusher) pushBlob(ctx context.Context, it item) error {
	if it.layer != nil && !it.desc.MediaType.IsDistributable() {
		return nil
	}
	from, ofBase := p.home(it)
	return p.retry(ctx, "push blob "+it.desc.Digest.String()+" to", func() error {
		switch {
		case ofBase && p.canMount(from):
			return p.mountOrUpload(ctx, it, from, &p.book.mounted, true)
		case ofBase:
			if there, err := p.hasBlob(ctx, it.desc.Digest); err != nil || there {
				return err
			}
			return p.upload(ctx, it, "")
		}
		// A mount from the target repository itself asks for the blob, and otherwise starts an upload, in one request.
		return p.mountOrUpload(ctx, it, p.repo, &p.book.existing, it.desc.Size >= headFrom)
	})
}

// mountOrUpload tries to mount a blob, otherwise uploads it. look asks for the blob's existence between the two.
func (p *pusher) mountOrUpload(ctx context.Context, it item, from name.Repository, count *atomic.Int64, look bool) error {
	location, mounted, err := p.startUpload(ctx, it.desc.Digest, from.RepositoryStr())
	if mounted {
		count.Add(1)
		return nil
	}
	if err != nil {
		if isTemporary(err) || !isAnswer(err) {
			return err
		}
		location = "" // some registries answer with an error, but accept a plain upload
	}
	if look {
		if there, err := p.hasBlob(ctx, it.desc.Digest); err != nil || there {
			return err
		}
	}
	return p.upload(ctx, it, location)
}

// upload sends a blob. location is an upload that has begun, or empty.
func (p *pusher) upload(ctx context.Context, it item, location string) (err error) {
	if location == "" {
		if location, _, err = p.startUpload(ctx, v1.Hash{}, ""); err != nil {
			return err
		}
	}
	task := p.opt.Progress.Task("push "+image.Short(it.desc.Digest), it.desc.Size)
	defer func() { task.Done(err) }()
	if err := p.putBlob(ctx, location, it, task); err != nil {
		return err
	}
	p.book.uploaded.Add(1)
	return nil
}

// retry tries three times with increasing waits after temporary errors, like go-containerregistry.
func (p *pusher) retry(ctx context.Context, op string, do func() error) error {
	wait := p.opt.Backoff
	for try := 1; ; try++ {
		err := do()
		if err == nil {
			return nil
		}
		if try == 3 || !isTemporary(err) || ctx.Err() != nil {
			return image.RegistryFailure(op, p.repo.String(), p.repo.RegistryStr(), err)
		}
		if err := sleep(ctx, wait); err != nil {
			return image.RegistryFailure(op, p.repo.String(), p.repo.RegistryStr(), err)
		}
		wait *= 3
	}
}

var errNoLocation = errors.New("the answer to an upload request has no Location")
