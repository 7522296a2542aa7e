package tree

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/slimctl/slimctl/image/elf"
)

const (
	// maxSpool is how much of an ELF file is held in memory while it comes, in bytes; the rest goes to a temporary file.
	maxSpool = 1 << 20
	// maxELF is the size of the largest ELF file that is read, in bytes: it comes by way of the disk, and a hostile image's may
	// be compressed to nothing.
	maxELF = 1 << 30
	// maxELFs is of how many ELF files an index tells, and maxELFText how many bytes that has.
	maxELFs, maxELFText = 1 << 16, MaxRead
)

// spool is a file that comes as a stream and is then read anywhere.
type spool struct {
	head []byte
	file *os.File // nil while all is in head
}

func (s *spool) write(b []byte) error {
	n := min(len(b), maxSpool-len(s.head))
	s.head = append(s.head, b[:n]...)
	if b = b[n:]; len(b) == 0 {
		return nil
	}
	if s.file == nil {
		var err error
		if s.file, err = os.CreateTemp("", "slimctl-elf-"); err != nil {
			return err
		}
		if err := os.Remove(s.file.Name()); err != nil {
			return err
		}
	}
	_, err := s.file.Write(b)
	return err
}

// close has the spool take another file.
func (s *spool) close() {
	if s.file != nil {
		s.file.Close()
	}
	s.head, s.file = s.head[:0], nil
}

// ReadAt implements io.ReaderAt.
func (s *spool) ReadAt(b []byte, off int64) (int, error) {
	head := int64(len(s.head))
	if s.file == nil || off+int64(len(b)) <= head {
		return bytes.NewReader(s.head).ReadAt(b, off)
	}
	n := 0
	if off < head {
		n = copy(b, s.head[off:])
	}
	m, err := s.file.ReadAt(b[n:], off+int64(n)-head)
	return n + m, err
}

var _ io.ReaderAt = (*spool)(nil)

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
