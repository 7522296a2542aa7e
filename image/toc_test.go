package image

import (
	"archive/tar"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

func TestReadTOCRefuses(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"no JSON":             {"x", "invalid character"},
		"a list":              {"[]", "not a JSON object"},
		"a cut list":          {`{"entries":[{"type":"dir"}`, "EOF"},
		"another version":     {`{"version":2,"entries":[]}`, "version 2"},
		"a file of no digest": {`{"entries":[{"type":"reg","name":"x","size":1}]}`, "size 1 or digest"},
		"a negative size":     {`{"entries":[{"type":"reg","name":"x","size":-1,"digest":"sha256:` + strings.Repeat("0", 64) + `"}]}`, "size -1"},
		"an unknown type":     {`{"entries":[{"type":"door","name":"x"}]}`, "unknown type"},
		"entries of no list":  {`{"entries":{}}`, "not a list"},
		"a huge entry":        {`{"entries":[{"name":"` + strings.Repeat("x", 2*maxTOCEntry) + `"}]}`, "more than"},
	} {
		err := readTOC(strings.NewReader(c.text), func(*tar.Header, v1.Hash) error { return nil })
		if err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 1000 {
			t.Errorf("%s: error is %.300v, want one that says %q", name, err, c.want)
		}
	}
}

func TestReadTOCOfAnyLength(t *testing.T) {
	text := `{"version":1,"entries":[` + strings.Repeat(`{"type":"dir","name":"d"},{"type":"chunk","name":"d"},`, 100_000) + `{"type":"fifo","name":"f"}]}`
	n := 0
	err := readTOC(strings.NewReader(text), func(h *tar.Header, _ v1.Hash) error {
		n++
		return nil
	})
	if err != nil || n != 100_001 {
		t.Errorf("%d entries, %v", n, err)
	}
}

// FuzzTOC reads any table of contents: what is told is what there is a tar type of, files with their digests.
func FuzzTOC(f *testing.F) {
	f.Add([]byte(`{"version":1,"entries":[{"type":"reg","name":"x","size":1,"digest":"sha256:` + strings.Repeat("0", 64) + `","xattrs":{"user.x":"AA=="}},{"type":"char","devMajor":1}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		_ = readTOC(strings.NewReader(string(text)), func(h *tar.Header, digest v1.Hash) error {
			if h.Size < 0 && h.Typeflag == tar.TypeReg || h.Typeflag == tar.TypeReg && digest.Algorithm != "sha256" {
				t.Errorf("%v of %v", h, digest)
			}
			return nil
		})
	})
}
