package tree

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/zstd"

	"github.com/slimctl/slimctl/image"
)

// index is the cached description of one layer.
type index struct {
	entries []Entry
	odd     []Odd
	pack    pack
	// compression is Layer.Compression, and foreign is Layer.Foreign.
	compression, foreign string

	// elfs is the digest of the content that describes the ELF files, and elfSize its size, or 0 if there are none.
	elfs    Digest
	elfSize int64

	unread bool
}

// indexVersion is part of the cache's path. Raise it when the file's format, the reading of layers or the choice of
// kept contents changes.
const indexVersion = "v15"

// indexFile returns the cache path of a layer's index, or "" without a cache.
func (c Cache) indexFile(kind string, digest v1.Hash) string {
	if c.Dir == "" {
		return ""
	}
	return filepath.Join(c.Dir, kind, indexVersion, digest.Algorithm+"-"+digest.Hex+".idx")
}

// The file is a header, the compressed records, and the chunks of the pack. Numbers in the header are little-endian.
// Those in the records are varints. The records are
//
//	the chunks of the pack, and the offset of each of its contents
//	the compression, and what is foreign
//	the digest and the size of the description of ELF files
//	what is odd: path and text
//	per entry: type and flags, mode, owner, path (length of the prefix shared with the path before, and the rest), time
//	    since the entry before; by type size, link, device; and attributes
//	the digests of the entries that have one
type header struct {
	Magic [8]byte
	// Blob and DiffID are the layer's digests.
	Blob, DiffID [32]byte
	// FileSize is the size of the file. Packed and Records are the sizes of the records, compressed and uncompressed.
	FileSize, Packed, Records uint64
	// Entries is the number of entries, and Names the total size of their paths, links and attributes, in bytes.
	Entries, Names uint64
	// Sum is the CRC-32C of the header without Sum and of the compressed records, which also have zstd's checksum.
	// Contents have their digests. The sums detect damage only: anyone who can write to the cache can forge an index.
	Sum uint32
}

var magic = [8]byte{'s', 'l', 'i', 'm', 'i', 'd', 'x', 8}

// The first byte of an entry is the index of its type in types, with flags.
const (
	typeBits  = 0x0f
	hasXattrs = 0x10
	hasNanos  = 0x20
	hasDigest = 0x40
)

// maxRecords limits the records of one index, in bytes.
const maxRecords = 1 << 30

var encoder = sync.OnceValue(func() *zstd.Encoder {
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(1<<20), zstd.WithLowerEncoderMem(true))
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

func (h *header) sum(packed []byte) uint32 {
	without := *h
	without.Sum = 0
	sum := crc32.New(castagnoli)
	_ = binary.Write(sum, binary.LittleEndian, without) // writing to a hash never fails
	return crc32.Update(sum.Sum32(), castagnoli, packed)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// write writes the index to file, for readIndex.
func (x *index) write(file string, blob, diffID Digest) error {
	h := header{Magic: magic, Blob: blob, DiffID: diffID, Entries: uint64(len(x.entries))}
	records, names := x.records()
	packed := encoder().EncodeAll(records, nil)
	h.Records, h.Packed, h.Names = uint64(len(records)), uint64(len(packed)), names
	h.FileSize = uint64(binary.Size(h)+len(packed)) + uint64(len(x.pack.data))
	h.Sum = h.sum(packed)
	return image.WriteFile(file, 0o644, func(w io.Writer) error {
		if err := binary.Write(w, binary.LittleEndian, h); err != nil {
			return err
		}
		if _, err := w.Write(packed); err != nil {
			return err
		}
		_, err := w.Write(x.pack.data)
		return err
	})
}

func (x *index) records() (b []byte, names uint64) {
	uvarint := func(v uint64) { b = binary.AppendUvarint(b, v) }
	text := func(s string) {
		uvarint(uint64(len(s)))
		b = append(b, s...)
		names += uint64(len(s))
	}
	uvarint(uint64(len(x.pack.chunks)))
	for _, c := range x.pack.chunks {
		uvarint(uint64(c.size))
		uvarint(uint64(c.packedSize))
	}
	uvarint(uint64(len(x.pack.start)))
	for _, d := range slices.SortedFunc(maps.Keys(x.pack.start), func(a, b Digest) int { return bytes.Compare(a[:], b[:]) }) {
		b = append(b, d[:]...)
		uvarint(uint64(x.pack.start[d]))
	}
	text(x.compression)
	text(x.foreign)
	b = append(b, x.elfs[:]...)
	uvarint(uint64(x.elfSize))
	uvarint(uint64(len(x.odd)))
	for _, o := range x.odd {
		text(o.Path)
		text(o.Text)
	}
	before := &Entry{}
	var digests []byte
	for i := range x.entries {
		e := &x.entries[i]
		flags := byte(slices.Index(types, e.Type))
		if len(e.Xattrs) > 0 {
			flags |= hasXattrs
		}
		if e.ModTime.Nanosecond() != 0 {
			flags |= hasNanos
		}
		if e.Digest != (Digest{}) {
			flags |= hasDigest
			digests = append(digests, e.Digest[:]...)
		}
		b = append(b, flags)
		uvarint(uint64(e.Mode))
		b = binary.AppendVarint(b, int64(e.UID))
		b = binary.AppendVarint(b, int64(e.GID))
		shared := sharedPrefix(before.Path, e.Path)
		uvarint(uint64(shared))
		names += uint64(shared)
		text(e.Path[shared:])
		b = binary.AppendVarint(b, e.ModTime.Unix()-before.ModTime.Unix())
		if flags&hasNanos != 0 {
			uvarint(uint64(e.ModTime.Nanosecond()))
		}
		switch e.Type {
		case image.TypeFile:
			uvarint(uint64(e.Size))
		case image.TypeLink:
			uvarint(uint64(e.Size))
			text(e.Link)
		case image.TypeSymlink:
			text(e.Link)
		case image.TypeChar, image.TypeBlock:
			uvarint(uint64(e.Device.Major))
			uvarint(uint64(e.Device.Minor))
		}
		if flags&hasXattrs != 0 {
			uvarint(uint64(len(e.Xattrs)))
			for _, k := range slices.Sorted(maps.Keys(e.Xattrs)) {
				text(k)
				text(e.Xattrs[k])
			}
		}
		before = e
	}
	return append(b, digests...), names
}

// types lists the types in the order of their numbers in the file.
var types = []image.Type{
	image.TypeFile, image.TypeDir, image.TypeSymlink, image.TypeLink, image.TypeChar, image.TypeBlock, image.TypeFifo,
	TypeWhiteout, TypeOpaque,
}

func sharedPrefix(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// errIndex is a file in the cache that is damaged, foreign, or the index of another layer.
var errIndex = errors.New("not the index of the layer")

// readIndex reads an index that write wrote. It accepts only a file whose sum, digests and order are right. l may be
// nil.
func readIndex(file string, blob, diffID Digest, l *limits) (*index, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	var h header
	if err := binary.Read(f, binary.LittleEndian, &h); err != nil {
		return nil, err
	}
	fixed := uint64(binary.Size(h))
	if h.Magic != magic || h.Blob != blob || h.DiffID != diffID || h.FileSize != uint64(info.Size()) ||
		h.Packed > h.FileSize-fixed || h.Records > maxRecords || h.Entries > maxEntries || h.Names > maxNames {
		return nil, errIndex
	}
	packed := make([]byte, h.Packed)
	if _, err := io.ReadFull(f, packed); err != nil {
		return nil, err
	}
	if h.Sum != h.sum(packed) {
		return nil, errIndex
	}
	records, err := inflate(packed, int64(h.Records))
	if err != nil {
		return nil, err
	}
	if err := l.take(int64(h.Entries), int64(h.Names)); err != nil {
		return nil, err
	}
	x := &index{entries: make([]Entry, h.Entries)}
	x.pack.file, x.pack.offset = file, int64(fixed+h.Packed)
	if !x.readRecords(records, h.Names) {
		return nil, errors.Join(errIndex, l.take(-int64(h.Entries), -int64(h.Names)))
	}
	return x, nil
}

// readRecords decodes the records into the index, and reports whether it succeeded and read all of them.
func (x *index) readRecords(records []byte, names uint64) bool {
	r := &recordReader{left: records}
	r.names.Grow(int(names))
	r.pack(&x.pack)
	x.compression = r.text("")
	x.foreign = r.text("")
	copy(x.elfs[:], r.bytes(len(x.elfs)))
	if x.elfSize = int64(r.uvarint()); x.elfSize < 0 || x.elfSize > maxELFText {
		r.fail()
	}
	x.odd = r.odd()
	r.entries(x.entries)
	return !r.bad && len(r.left) == 0
}

// recordReader decodes records. After the first error, bad is true and all results are zero.
type recordReader struct {
	left []byte
	bad  bool
	// names holds all texts, so that they need only one allocation.
	names strings.Builder
}

func (r *recordReader) fail() { r.bad, r.left = true, nil }

func (r *recordReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.left)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.left = r.left[n:]
	return v
}

func (r *recordReader) varint() int64 {
	v, n := binary.Varint(r.left)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.left = r.left[n:]
	return v
}

// count reads the number of items that have at least size bytes each.
func (r *recordReader) count(size int) int {
	n := r.uvarint()
	if n > uint64(len(r.left)/size) {
		r.fail()
		return 0
	}
	return int(n)
}

func (r *recordReader) bytes(n int) []byte {
	if n > len(r.left) {
		r.fail()
		return nil
	}
	b := r.left[:n]
	r.left = r.left[n:]
	return b
}

func (r *recordReader) byte() byte {
	if b := r.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

// text reads a text and prepends before.
func (r *recordReader) text(before string) string {
	b := r.bytes(r.count(1))
	start := r.names.Len()
	if r.names.Cap()-start < len(before)+len(b) {
		r.fail() // more than the header says
		return ""
	}
	r.names.WriteString(before)
	r.names.Write(b)
	return r.names.String()[start:]
}

func (r *recordReader) odd() []Odd {
	n := r.count(2)
	if n > maxOdd {
		r.fail()
		return nil
	}
	out := make([]Odd, n)
	for i := range out {
		out[i] = Odd{r.text(""), r.text("")}
	}
	return out
}

func (r *recordReader) pack(p *pack) {
	var raw, packed int64
	for range r.count(2) {
		size, packedSize := int64(r.uvarint()), int64(r.uvarint())
		if size <= 0 || packedSize <= 0 || size > chunkSize+maxDatabase || packedSize > chunkSize+maxDatabase+1<<20 {
			r.fail()
			return
		}
		raw, packed = raw+size, packed+packedSize
		p.chunks = append(p.chunks, chunk{raw, size, packed, packedSize})
	}
	n := r.count(33)
	p.start = make(map[Digest]int64, n)
	for range n {
		if d := r.bytes(32); d != nil {
			p.start[Digest(d)] = int64(r.uvarint() & (1<<62 - 1))
		}
	}
}

func (r *recordReader) entries(into []Entry) {
	before := &Entry{}
	withDigest := make([]int32, 0, len(into))
	for i := range into {
		e := &into[i]
		flags := r.byte()
		e.Mode, e.UID, e.GID = int64(r.uvarint()), int(r.varint()), int(r.varint())
		shared := r.uvarint()
		if int(flags&typeBits) >= len(types) || shared > uint64(len(before.Path)) {
			r.fail()
			return
		}
		e.Type = types[flags&typeBits]
		e.Path = r.text(before.Path[:shared])
		seconds := before.ModTime.Unix() + r.varint()
		var nanos uint64
		if flags&hasNanos != 0 {
			nanos = r.uvarint() % 1e9
		}
		e.ModTime = time.Unix(seconds, int64(nanos)).UTC()
		switch e.Type {
		case image.TypeFile:
			e.Size = int64(r.uvarint())
		case image.TypeLink:
			e.Size = int64(r.uvarint())
			e.Link = r.text("")
		case image.TypeSymlink:
			e.Link = r.text("")
		case image.TypeChar, image.TypeBlock:
			e.Device = Device{uint32(r.uvarint()), uint32(r.uvarint())}
		}
		if flags&hasXattrs != 0 {
			n := r.count(2)
			e.Xattrs = image.Xattrs{}
			for range n {
				k := r.text("")
				e.Xattrs[k] = r.text("")
			}
		}
		if flags&hasDigest != 0 {
			withDigest = append(withDigest, int32(i))
		}
		if r.bad || !strings.HasPrefix(e.Path, "/") || e.Size < 0 || i > 0 && before.compare(e) >= 0 {
			r.fail()
			return
		}
		before = e
	}
	for _, i := range withDigest {
		if d := r.bytes(32); d != nil {
			into[i].Digest = Digest(d)
		}
	}
}
