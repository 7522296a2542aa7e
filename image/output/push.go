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

// Transfer is what a push moved.
type Transfer struct {
	// Blobs by how they came to be in the target repository; one that several platforms share counts once. All are
	// zero when every tag was already there.
	Mounted, Uploaded, Existing int
	// BytesUp counts bodies sent, manifests included; BytesDown base layers read from another registry to be uploaded.
	BytesUp, BytesDown int64
	// Refused is the answer of a registry that takes no artifacts about images; the image is there without them.
	Refused string `json:",omitempty"`
}

// counter is a Transfer that several goroutines write.
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

// Push uploads b and lets refs point at it: blobs of all platforms at once, base layers by mounting them from the
// base's repository, then the platforms' manifests, and when all this is there in every repository, the tags. When a
// tag is there already and the same, nothing is sent for it. An error leaves every tag that is not yet pushed as it
// was; the Transfer says what was moved until then. src may be nil.
func Push(ctx context.Context, b image.Built, refs []name.Reference, src *image.Source, opt image.Options) (Transfer, error) {
	opt = opt.WithDefaults()
	c, err := contentsOf(b)
	if err != nil {
		return Transfer{}, err
	}
	digest := c.root.desc.Digest
	for _, r := range refs {
		if d, ok := r.(name.Digest); ok && d.DigestStr() != digest.String() {
			return Transfer{}, fmt.Errorf("push %s: the image has digest %s", r, digest)
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
		err = each(func(ctx context.Context, p *pusher) error { return p.point(ctx, c.root) })
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = fmt.Errorf("push interrupted: %w", cause)
	}
	return book.sum(), err
}

// Attach pushes the referrers of an image that is in the repository of each reference, as Push does, and nothing else. It
// returns what was moved.
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
			err = p.parallel(ctx, c.blobs, p.blob)
		}
		if err == nil {
			err = p.parallel(ctx, c.referrers, p.referrer)
		}
		if err != nil {
			return book.sum(), err
		}
	}
	return book.sum(), nil
}

// Tag lets refs point at an index or manifest that is in each of their repositories already. What isn't there is
// ErrNotFound, and then no reference moves.
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
		err = each(func(ctx context.Context, i int) error { return todo[i].manifest(ctx, refs[i], roots[i]) })
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

// prepare brings everything but the root manifest; it leaves in p.refs what still has to be pointed.
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
	if err := p.parallel(ctx, p.ownFirst(c.blobs), p.blob); err != nil {
		return err
	}
	if err := p.parallel(ctx, c.referrers, p.referrer); err != nil {
		return err
	}
	return p.parallel(ctx, c.manifests, func(ctx context.Context, it item) error {
		return p.manifest(ctx, p.repo.Digest(it.desc.Digest.String()), it)
	})
}

// referrer pushes the manifest of an artifact, whose blobs are there, and has the registry list it, by the API or by a tag
// (OCI distribution specification, "Pushing Manifests with Subject"). Registries older than artifacts refuse it, which is noted
// and no error.
func (p *pusher) referrer(ctx context.Context, it item) error {
	p.book.up.Add(it.desc.Size)
	err := image.PutReferrer(ctx, p.repo.Digest(it.desc.Digest.String()), it.artifact, p.opt, p.transport)
	var r *image.RegistryError
	if errors.As(err, &r) && slices.Contains(invalid, r.Status) && slices.Contains(invalidCodes, r.Code) {
		p.book.refused.Store(err.Error())
		return nil
	}
	return err
}

// invalid and invalidCodes are what a registry answers to a kind of manifest that it doesn't know, by status and by the code of
// the distribution specification, if it sends one.
var (
	invalid      = []int{http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity}
	invalidCodes = []string{"MANIFEST_INVALID", "UNSUPPORTED", ""}
)

// ownFirst puts what has to be sent before what is mounted: long work starts while there are jobs free.
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

// point pushes the root manifest under each reference.
func (p *pusher) point(ctx context.Context, root item) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(p.opt.Jobs)
	for _, r := range p.refs {
		g.Go(func() error { return p.manifest(ctx, r, root) })
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

// missing lists the references that don't point at digest yet.
func (p *pusher) missing(ctx context.Context, digest v1.Hash) ([]name.Reference, error) {
	there := make([]bool, len(p.refs))
	g, gctx := errgroup.WithContext(ctx)
	for i, r := range p.refs {
		g.Go(func() (err error) {
			there[i], err = p.points(gctx, r, digest)
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

// mountRepos lists the other repositories of this registry that hold layers of the image.
func (p *pusher) mountRepos(c *contents) []name.Repository {
	var out []name.Repository
	for _, it := range c.blobs {
		if r, ok := p.home(it); ok && p.canMount(r) && !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	return out
}

// home is the repository that a layer of the base came from.
func (p *pusher) home(it item) (name.Repository, bool) {
	if ml, ok := it.layer.(*remote.MountableLayer); ok {
		return ml.Reference.Context(), true
	}
	if it.layer != nil && p.src != nil && p.src.Name() != nil && p.src.Holds(it.desc.Digest) {
		return p.src.Name().Context(), true // a wrapper may have hidden it
	}
	return name.Repository{}, false
}

func (p *pusher) canMount(from name.Repository) bool {
	return from.RegistryStr() == p.repo.RegistryStr() && from.RepositoryStr() != p.repo.RepositoryStr()
}

// headFrom is the size from which asking whether a blob is there pays: in bytes.
const headFrom = 1 << 20

// blob makes sure that the repository has one blob.
func (p *pusher) blob(ctx context.Context, it item) error {
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
		// Mounting from the target itself asks "is it there, else let me upload" in one request.
		return p.mountOrUpload(ctx, it, p.repo, &p.book.existing, it.desc.Size >= headFrom)
	})
}

// mountOrUpload tries the mount first; look says to ask once more, when the mount was refused, before sending.
func (p *pusher) mountOrUpload(ctx context.Context, it item, from name.Repository, count *atomic.Int64, look bool) error {
	location, mounted, err := p.start(ctx, it.desc.Digest, from.RepositoryStr())
	if mounted {
		count.Add(1)
		return nil
	}
	if err != nil {
		if isTemporary(err) || !isAnswer(err) {
			return err
		}
		location = "" // some registries answer an error where a plain upload would do
	}
	if look {
		if there, err := p.hasBlob(ctx, it.desc.Digest); err != nil || there {
			return err
		}
	}
	return p.upload(ctx, it, location)
}

// upload sends a blob; location is an upload that was begun, or empty.
func (p *pusher) upload(ctx context.Context, it item, location string) (err error) {
	if location == "" {
		if location, _, err = p.start(ctx, v1.Hash{}, ""); err != nil {
			return err
		}
	}
	task := p.opt.Progress.Task("push "+image.Short(it.desc.Digest), it.desc.Size)
	defer func() { task.Done(err) }()
	if err := p.put(ctx, location, it, task); err != nil {
		return err
	}
	p.book.uploaded.Add(1)
	return nil
}

// retry does what go-containerregistry does: three times, waiting longer each time, for trouble that may pass.
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
