package tree

import (
	"encoding/binary"
	"encoding/gob"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/zstd"

	"github.com/slimctl/slimctl/image"
)

// index is the cached description of one layer.
type index struct {
	entries []Entry
	pack    pack

	// elfs is the digest of the content that describes the ELF files, and elfSize its size, or 0 if there are none.
	elfs    Digest
	elfSize int64

	unread bool
}

// indexVersion is part of the cache's path. Raise it when the file's format, the reading of layers or the choice of
// kept contents changes.
const indexVersion = "v16"

// indexFile returns the cache path of a layer's index, or "" without a cache.
func (c Cache) indexFile(kind string, digest v1.Hash) string {
	if c.Dir == "" {
		return ""
	}
	return filepath.Join(c.Dir, kind, indexVersion, digest.Algorithm+"-"+digest.Hex+".idx")
}

// header is the first value in an index. The file is the data of the pack; the header and then batches of records, as
// gob in one zstd frame; and the size of the pack's data, as 8 bytes in little-endian order. zstd's checksum detects
// damage only: anyone who can write to the cache can forge an index.
type header struct {
	// Blob and DiffID are the layer's digests.
	Blob, DiffID Digest
	Entries      int
	ELFs         Digest
	ELFSize      int64
	Start        map[Digest]int64
	Chunks       []chunk
}

// record is an Entry. Its digest is a slice, because gob encodes the bytes of an array one by one.
type record struct {
	Entry  image.Entry
	Digest []byte
	Device Device
}

// batchSize is the number of records that are decoded at once, which bounds the memory for decoding.
const batchSize = 512

func newWriter(w io.Writer) (*zstd.Encoder, error) {
	return zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(1<<20), zstd.WithLowerEncoderMem(true), zstd.WithEncoderConcurrency(1))
}

var encoder = sync.OnceValue(func() *zstd.Encoder {
	z, err := newWriter(nil)
	if err != nil {
		panic(err) // only for invalid options
	}
	return z
})

var decoder = sync.OnceValue(func() *zstd.Decoder {
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		panic(err) // only for invalid options
	}
	return z
})

// inflate returns the content of packed. It fails unless the content has size bytes.
func inflate(packed []byte, size int64) ([]byte, error) {
	raw, err := decoder().DecodeAll(packed, make([]byte, 0, size))
	if err == nil && int64(len(raw)) != size {
		err = fmt.Errorf("size mismatch: want %d bytes, got %d", size, len(raw))
	}
	return raw, err
}

func digestOf(h v1.Hash) (d Digest, err error) {
	if h.Algorithm != "sha256" || len(h.Hex) != 64 {
		return d, fmt.Errorf("digest %s: only sha256 is known", h)
	}
	_, err = hex.Decode(d[:], []byte(h.Hex))
	return d, err
}

// write writes the index to file, for readIndex.
func (x *index) write(file string, blob, diffID Digest) error {
	return image.WriteFile(file, 0o644, func(w io.Writer) error {
		if _, err := w.Write(x.pack.data); err != nil {
			return err
		}
		z, err := newWriter(w)
		if err != nil {
			return err
		}
		out := gob.NewEncoder(z)
		err = out.Encode(header{blob, diffID, len(x.entries), x.elfs, x.elfSize, x.pack.start, x.pack.chunks})
		for entries := range slices.Chunk(x.entries, batchSize) {
			batch := make([]record, len(entries))
			for i := range entries {
				e := &entries[i]
				batch[i] = record{Entry: e.Entry, Device: e.Device}
				if e.Digest != (Digest{}) {
					batch[i].Digest = e.Digest[:]
				}
			}
			err = errors.Join(err, out.Encode(batch))
		}
		return errors.Join(err, z.Close(), binary.Write(w, binary.LittleEndian, int64(len(x.pack.data))))
	})
}

// errIndex is a file in the cache that is damaged, foreign, or the index of another layer.
var errIndex = errors.New("not the index of the layer")

// decoders holds decoders that are not in use, because each has large buffers.
var decoders = sync.Pool{New: func() any {
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(8<<20))
	if err != nil {
		panic(err) // only for invalid options
	}
	return z
}}

// readIndex reads an index that write wrote. l may be nil.
func readIndex(file string, blob, diffID Digest, l *limits) (*index, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	end, err := f.Seek(-8, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	var start int64
	if err := binary.Read(f, binary.LittleEndian, &start); err != nil {
		return nil, err
	}
	z := decoders.Get().(*zstd.Decoder) //nolint:forcetypeassert // the pool has nothing else
	defer decoders.Put(z)
	if err := z.Reset(io.NewSectionReader(f, start, end-start)); err != nil {
		return nil, err
	}
	in := gob.NewDecoder(z)
	var h header
	if err := in.Decode(&h); err != nil {
		return nil, err
	}
	if h.Blob != blob || h.DiffID != diffID || h.Entries > maxEntries {
		return nil, errIndex
	}
	x := &index{entries: make([]Entry, 0, h.Entries), elfs: h.ELFs, elfSize: h.ELFSize, pack: pack{start: h.Start, chunks: h.Chunks, file: file}}
	names := 0
	batch := make([]record, batchSize)
	for len(x.entries) < h.Entries {
		clear(batch[:cap(batch)]) // gob leaves out zeros
		if err := in.Decode(&batch); err != nil {
			return nil, err
		}
		for i := range batch {
			r := &batch[i]
			e := Entry{Entry: r.Entry, Device: r.Device}
			copy(e.Digest[:], r.Digest)
			names += len(e.Path) + len(e.Link)
			x.entries = append(x.entries, e)
		}
	}
	if _, err := io.Copy(io.Discard, z); err != nil { // the checksum is at the end
		return nil, err
	}
	return x, l.take(int64(h.Entries), int64(names))
}
