package tree

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/slimctl/slimctl/image/elf"
)

const (
	// maxELF limits the size of an ELF file to parse, in bytes. The file is copied to the disk, and hostile images may
	// compress it to almost nothing.
	maxELF = 1 << 30
	// maxELFs limits the number of ELF files in an index, and maxELFText the size of their description, in bytes.
	maxELFs, maxELFText = 1 << 16, MaxRead
)

// addELFs adds the description of the ELF files to the pack, as one more content.
func (p *packer) addELFs(files map[Digest]*elf.File) (at Digest, size int64, err error) {
	if len(files) == 0 {
		return at, 0, nil
	}
	data, err := json.Marshal(files)
	if err != nil {
		return at, 0, err
	}
	if len(data) > maxELFText {
		return at, 0, fmt.Errorf("the names in its ELF files have %d bytes, too many", len(data))
	}
	at = sha256.Sum256(data)
	p.append(at, data)
	return at, int64(len(data)), nil
}

// ELF returns, by content, what the dynamic loader reads of each ELF file in the layers; read only. A file without an
// entry is missing or one that the loader would refuse.
func (im *Image) ELF() (map[Digest]*elf.File, error) { return im.elfs() }

func (im *Image) readELFs() (map[Digest]*elf.File, error) {
	out := map[Digest]*elf.File{}
	for i, x := range im.indexes {
		if x.elfSize == 0 {
			continue
		}
		content := map[Digest][]byte{}
		x.pack.read(map[Digest]int64{x.elfs: x.elfSize}, content)
		data, ok := content[x.elfs]
		if !ok {
			return nil, fmt.Errorf("layer %s: %w", im.Layers[i].Digest, errors.New("its index in the cache is damaged; delete slimctl's cache directory"))
		}
		if err := json.Unmarshal(data, &out); err != nil {
			return nil, fmt.Errorf("layer %s: %w", im.Layers[i].Digest, err)
		}
	}
	return out, nil
}
