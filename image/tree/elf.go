package tree

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/slimctl/slimctl/image/elf"
)

const (
	// maxELF is the size of the largest ELF file that is read, in bytes: it comes by way of the disk, and a hostile image's may
	// be compressed to nothing.
	maxELF = 1 << 30
	// maxELFs is of how many ELF files an index tells, and maxELFText how many bytes that has.
	maxELFs, maxELFText = 1 << 16, MaxRead
)

// addELFs keeps what is known of ELF files as one more content.
func (p *packer) addELFs(files map[Digest]*elf.File) (at Digest, size int64, err error) {
	if len(files) == 0 {
		return at, 0, nil
	}
	data, err := json.Marshal(files)
	if err != nil {
		return at, 0, err
	}
	if len(data) > maxELFText {
		return at, 0, fmt.Errorf("its ELF files have %d bytes of names", len(data))
	}
	at = sha256.Sum256(data)
	p.append(at, data)
	return at, int64(len(data)), nil
}

// ELF returns what the dynamic loader reads of each ELF file among the layers, by its content. A file that a layer brings and
// that isn't here is none, or the loader would not take it.
func (im *Image) ELF() (map[Digest]*elf.File, error) {
	out := map[Digest]*elf.File{}
	for i, x := range im.indexes {
		if x.elfSize == 0 {
			continue
		}
		content := map[Digest][]byte{}
		x.pack.read(map[Digest]int64{x.elfs: x.elfSize}, content)
		data, ok := content[x.elfs]
		if !ok {
			return nil, fmt.Errorf("layer %s: %w", im.Layers[i].Digest, errors.New("its index in the cache is damaged; run `slimctl cache prune`"))
		}
		if err := json.Unmarshal(data, &out); err != nil {
			return nil, fmt.Errorf("layer %s: %w", im.Layers[i].Digest, err)
		}
	}
	return out, nil
}
