// Package ledgertest makes ledgers for tests.
package ledgertest

import (
	"bytes"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/static"

	"github.com/slimctl/slimctl/build/ledger"
)

// Layer returns a ledger in which the paths are removed.
func Layer(t testing.TB, gone ...string) v1.Layer {
	t.Helper()
	var text bytes.Buffer
	w, err := ledger.NewWriter(&text, ledger.Header{})
	for _, p := range gone {
		if err == nil {
			err = w.Add(ledger.Row{Path: p, Goes: "unneeded"})
		}
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return static.NewLayer(text.Bytes(), ledger.MediaType)
}
