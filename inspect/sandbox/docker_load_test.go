//go:build linux

package sandbox

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/slimctl/slimctl/inspect/sandbox/sandboxtest"
)

// sparseLayer has a file of so many bytes, none of which are in it (GNU tar's old format).
func sparseLayer(t *testing.T, size int64) []byte {
	t.Helper()
	layer := sandboxtest.Layer(t, sandboxtest.File("sparse", ""))
	h := layer[:512]
	h[156] = 'S'
	copy(h[257:], "ustar  \x00")
	clear(h[345:512])
	number := append([]byte{0x80, 0, 0, 0}, binary.BigEndian.AppendUint64(nil, uint64(size))...)
	copy(h[386:], number)
	copy(h[398:], fmt.Sprintf("%011o\x00", 0))
	copy(h[483:], number)
	copy(h[148:156], "        ")
	sum := 0
	for _, b := range h {
		sum += int(b)
	}
	copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
	return layer
}

// TestDockerLoadIsBounded guards Docker's disk: an image that holds more than it may isn't loaded, however small its layers are.
func TestDockerLoadIsBounded(t *testing.T) {
	t.Parallel()
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(sandboxtest.Layer(t, sandboxtest.File("zeros", strings.Repeat("\x00", 3<<20)))); err != nil {
		t.Fatal(err)
	}
	z.Close()
	small, many := sandboxtest.Layer(t, sandboxtest.File("x", "x")), []sandboxtest.Item{}
	for i := range 200 {
		many = append(many, sandboxtest.File(fmt.Sprint(i), ""))
	}
	for what, c := range map[string]struct {
		layers [][]byte
		bytes  int64
		want   string
	}{
		"as much as may be":     {[][]byte{small, zipped.Bytes(), small}, 4 << 20, ""},
		"a zip bomb":            {[][]byte{small, zipped.Bytes()}, 1 << 20, "bytes"},
		"two that are too much": {[][]byte{zipped.Bytes(), small, sparseLayer(t, 2<<20)}, 4 << 20, "bytes"},
		"a sparse file":         {[][]byte{sparseLayer(t, 1<<32)}, 4 << 20, "bytes"},
		"many files":            {[][]byte{sandboxtest.Layer(t, many...)}, 4 << 20, "files and directories"},
		"no archive":            {[][]byte{[]byte(strings.Repeat("no archive", 200))}, 4 << 20, "header"},
	} {
		img := build(t, v1.Config{}, c.layers...)
		err := tarball.Write(name.MustParseReference("x:y"), &boundedImage{img.Image, c.bytes, 100}, io.Discard)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
}
