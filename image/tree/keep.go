package tree

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"io"
	"os"
	"path"
	"slices"
	"sort"
	"strings"

	"github.com/slimctl/slimctl/image"
)

// Limits on the contents in an index, in bytes.
const (
	// maxKept is the largest configuration file to keep.
	maxKept = 256 << 10
	// maxStub is the largest executable file to keep regardless of its content.
	maxStub = 4 << 10
	// maxDatabase is the largest file of a package database to keep.
	maxDatabase = MaxRead
	// maxPack is the total size per layer. Later contents are not kept.
	maxPack = 64 << 20
	// chunkSize is the minimum size of a unit of compression.
	chunkSize = 256 << 10
)

type keep int

const (
	never  keep = iota
	script      // keep it if it begins with "#!"
	always
)

// keepKind returns whether the content of a regular file is kept beside its layer's index, so that inspecting an image
// reads no layer twice. These files are kept if they have at most 256 KiB:
//
//   - files below /etc, /opt/gem and /opt/application;
//   - *.conf, *.ini, *.sh, *.json.template, package.json and *.egg-info anywhere;
//   - files that packages' triggers rewrite in many layers: *.cache, gschemas.compiled, and the files in /usr/share/mime;
//   - executable files of at most 4 KiB, and executable scripts, which begin with "#!".
//
// These files of package managers are kept if they have at most 16 MiB:
//
//   - /var/lib/dpkg/status, diversions, status.d/*, info/*.list and info/*.md5sums;
//   - METADATA and RECORD in *.dist-info, PKG-INFO and installed-files.txt in *.egg-info.
//
// Other files are read from the layer when needed.
func keepKind(e *Entry) keep {
	p, size := e.Path, e.Size
	dir, base := path.Split(p)
	dir = strings.TrimSuffix(dir, "/")
	ext := path.Ext(base)
	switch {
	case size == 0 || size > maxDatabase:
		return never
	case dir == "/var/lib/dpkg" && (base == "status" || base == "diversions"), dir == "/var/lib/dpkg/status.d", dir == "/var/lib/dpkg/info" && (ext == ".list" || ext == ".md5sums"),
		strings.HasSuffix(dir, ".dist-info") && (base == "METADATA" || base == "RECORD"),
		strings.HasSuffix(dir, ".egg-info") && (base == "PKG-INFO" || base == "installed-files.txt"):
		return always
	case size > maxKept:
		return never
	case image.Within(p, "/etc"), image.Within(p, "/opt/gem"), image.Within(p, "/opt/application"),
		base == "package.json", ext == ".conf", ext == ".ini", ext == ".sh", ext == ".egg-info",
		ext == ".cache", base == "gschemas.compiled", dir == "/usr/share/mime", strings.HasSuffix(base, ".json.template"):
		return always
	case e.Mode&0o111 == 0:
		return never
	case size <= maxStub:
		return always
	}
	return script
}

// pack holds kept contents: parts of a stream that is compressed in chunks.
type pack struct {
	// start holds the offset of each content in the stream.
	start  map[Digest]int64
	chunks []chunk
	// data holds the compressed chunks.
	data []byte
	// file begins with them, if data is nil.
	file string
}

// chunk is a part of the stream: the Size bytes before End, and their compressed form in data.
type chunk struct{ End, Size, PackedEnd, PackedSize int64 }

// packer builds a pack.
type packer struct {
	pack pack
	raw  []byte // of the current chunk
	end  int64  // of the stream
}

func (p *packer) add(d Digest, content []byte) {
	if _, ok := p.pack.start[d]; !ok && p.end+int64(len(content)) <= maxPack {
		p.append(d, content)
	}
}

func (p *packer) append(d Digest, content []byte) {
	if p.pack.start == nil {
		p.pack.start = map[Digest]int64{}
	}
	p.pack.start[d] = p.end
	p.raw = append(p.raw, content...)
	p.end += int64(len(content))
	if len(p.raw) >= chunkSize {
		p.flush()
	}
}

func (p *packer) flush() {
	before := len(p.pack.data)
	p.pack.data = encoder().EncodeAll(p.raw, p.pack.data)
	after := len(p.pack.data)
	p.pack.chunks = append(p.pack.chunks, chunk{p.end, int64(len(p.raw)), int64(after), int64(after - before)})
	p.raw = p.raw[:0]
}

func (p *packer) finish() pack {
	if len(p.raw) > 0 {
		p.flush()
	}
	return p.pack
}

// read adds the wanted contents of p to into. wanted maps digests to sizes. It omits contents that can't be read.
func (p *pack) read(wanted map[Digest]int64, into map[Digest][]byte) {
	var have []Digest
	for d := range wanted {
		if _, ok := p.start[d]; ok {
			have = append(have, d)
		}
	}
	if len(have) == 0 {
		return
	}
	slices.SortFunc(have, func(a, b Digest) int { return cmp.Compare(p.start[a], p.start[b]) })
	var data io.ReaderAt = bytes.NewReader(p.data)
	if p.data == nil {
		f, err := os.Open(p.file)
		if err != nil {
			return
		}
		defer f.Close()
		data = f
	}
	var raw []byte
	last := -1
	for _, d := range have {
		start, size := p.start[d], wanted[d]
		i := sort.Search(len(p.chunks), func(i int) bool { return p.chunks[i].End > start })
		if i == len(p.chunks) {
			continue
		}
		if c := p.chunks[i]; i != last {
			packed := make([]byte, c.PackedSize)
			if _, err := data.ReadAt(packed, c.PackedEnd-c.PackedSize); err != nil {
				return
			}
			var err error
			if raw, err = inflate(packed, c.Size); err != nil {
				return
			}
			last = i
		}
		start -= p.chunks[i].End - p.chunks[i].Size
		if start < 0 || size > int64(len(raw))-start {
			continue
		}
		if content := raw[start : start+size]; sha256.Sum256(content) == d {
			into[d] = bytes.Clone(content)
		}
	}
}
