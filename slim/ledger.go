package slim

import (
	"context"
	"fmt"
	"io"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/slimctl/slimctl/build/ledger"
	"github.com/slimctl/slimctl/image"
)

// Account is what the ledger beside an image says of a path. It is its publisher's word; Verify compares it.
type Account struct {
	Platform string `json:"platform"`
	// Ledger is the digest of the ledger, Base that of the base's manifest.
	Ledger string `json:"ledger"`
	Base   string `json:"base"`
	// Rows begin with that of the path; each of the others is what the one before comes from.
	Rows []ledger.Row `json:"rows"`
}

// AskLedger returns what the ledgers of an image's platforms say of a path, and reads nothing else of the image. A platform
// whose image has no ledger, or several that differ, or one that doesn't know the path, has no Account.
func AskLedger(ctx context.Context, o InspectOptions, path string) ([]Account, error) {
	a, err := o.Access.withDefaults()
	if err != nil {
		return nil, err
	}
	src, platforms, err := a.openPlatforms(ctx, o)
	if err != nil {
		return nil, err
	}
	var out []Account
	for _, p := range platforms {
		img, err := src.Image(p)
		if err != nil {
			return nil, err
		}
		l := a.onlyLedger(ctx, src, img)
		if l == nil {
			continue
		}
		digest, err := l.Digest()
		if err != nil {
			return nil, err
		}
		var h ledger.Header
		var rows []ledger.Row
		err = readLedger(l, func(in io.Reader) (err error) {
			h, rows, err = ledger.Find(in, path)
			return err
		})
		if err != nil {
			a.Log("%s, %s: no ledger is used: %v", o.Image, p, err)
			continue
		}
		if len(rows) > 0 {
			out = append(out, Account{p.String(), digest.String(), h.Base, rows})
		}
	}
	return out, nil
}

// onlyLedger returns the ledger of an image; nil where there is none, or where it isn't known which one it is.
func (a Access) onlyLedger(ctx context.Context, src *image.Source, img v1.Image) v1.Layer {
	found, err := findLedgers(ctx, src, img)
	if err == nil && len(found) > 1 {
		err = fmt.Errorf("%d ledgers refer to it; slimctl verify tells which is false", len(found))
	}
	for _, l := range found {
		if err == nil && l == nil {
			err = errNoLedger
		}
		if err == nil {
			return l
		}
	}
	if err != nil {
		a.Log("%s: no ledger is used: %v", src.Reference(), err)
	}
	return nil
}

var errNoLedger = fmt.Errorf("what refers to it is not one layer of the type %s", ledger.MediaType)

// readLedger passes the ledger in layer l to read, and returns an error unless its bytes have the digest of l.
func readLedger(l v1.Layer, read func(io.Reader) error) error {
	in, err := l.Compressed()
	if err != nil {
		return err
	}
	defer in.Close()
	err = read(in)
	if _, rest := io.Copy(io.Discard, in); rest != nil { // the digest is compared at the end
		return rest
	}
	return err
}

// findLedgers returns the layers of the artifacts that refer to an image as its ledger, by digest. An artifact that is no ledger
// has a nil layer under its own digest. After an error the map may be incomplete.
func findLedgers(ctx context.Context, src *image.Source, img v1.Image) (map[v1.Hash]v1.Layer, error) {
	subject, err := img.Digest()
	if err != nil {
		return nil, err
	}
	artifacts, err := src.Referrers(ctx, subject, ledger.ArtifactType)
	out := map[v1.Hash]v1.Layer{}
	for _, a := range artifacts {
		l, lerr := image.OnlyLayer(a, ledger.MediaType, ledger.MaxSize)
		name := a.Digest
		if lerr == nil {
			name = l.Digest
		}
		h, herr := name()
		if herr != nil {
			return nil, herr
		}
		out[h] = l
	}
	return out, err
}

// ledgers returns the digests of the ledgers of the images found, by platform; unchecked names those that can't be read.
func (f *found) ledgers(ctx context.Context) (out map[string][]string, unchecked []string) {
	out = map[string][]string{}
	for i, img := range f.manifests {
		platform := profilePlatform(f.platforms[i]).String()
		found, err := findLedgers(ctx, f.source, img)
		if err != nil {
			unchecked = append(unchecked, fmt.Sprintf("%s: the ledger: %v", platform, err))
		}
		for h := range found {
			out[platform] = append(out[platform], h.String())
		}
		slices.Sort(out[platform])
	}
	return out, unchecked
}
