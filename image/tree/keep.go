package tree

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"io"
	"math"
	"os"
	"path"
	"slices"
	"sort"
	"strings"

	"github.com/slimctl/slimctl/image"
)

// What an index keeps of contents, in bytes.
const (
	// maxKept is the largest file that is kept for what it says of the image.
	maxKept = 256 << 10
	// maxStub is the largest executable file that is kept whatever it holds.
	maxStub = 4 << 10
	// maxDatabase is the largest file that is kept for what it says of packages.
	maxDatabase = MaxRead
	// maxPack is how much is kept of one layer; the first come.
	maxPack = 64 << 20
	// chunkSize is how much is compressed together, at least.
	chunkSize = 256 << 10
)

type keep int

const (
	never  keep = iota
	script      // when it begins with "#!"
	always
)

// keeps says whether the content of a regular file is kept beside its layer's index, so that asking what an image is reads
// no layer twice. It is so for
//
//   - files below /etc, /opt/gem and /opt/application;
//   - *.conf, *.ini, *.sh, *.json.template, package.json and *.egg-info anywhere;
//   - what packages' triggers write anew in many layers: *.cache, gschemas.compiled, and the files in /usr/share/mime;
//   - executable files of at most 4 KiB, and executable scripts, which begin with "#!",
//
// all of them if they have at most 256 KiB; and for the databases of package managers if they have at most 16 MiB:
//
//   - /var/lib/dpkg/status, diversions, status.d/*, info/*.list and info/*.md5sums;
//   - METADATA and RECORD in *.dist-info, PKG-INFO and installed-files.txt in *.egg-info.
//
// Other files are read of the layer when they are asked for.
func keeps(e *Entry) keep {
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

// pack is kept contents: parts of a stream that is compressed in chunks.
type pack struct {
	// start has where each content begins in the stream.
	start  map[Digest]int64
	chunks []chunk
	// data has the compressed chunks, one behind the other.
	data []byte
	// file has them from offset on, when data is nil.
	file   string
	offset int64
}

// chunk is a part of the stream: size bytes of it, which end before end, and their compressed form in data.
type chunk struct{ end, size, packedEnd, packedSize int64 }

// packer makes a pack.
type packer struct {
	pack pack
	raw  []byte // of the chunk that is being filled
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

// read gives into the contents that p has of those wanted, by digest with their sizes. What can't be read is not given.
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
		data = io.NewSectionReader(f, p.offset, math.MaxInt64-p.offset)
	}
	var raw []byte
	last := -1
	for _, d := range have {
		start, size := p.start[d], wanted[d]
		i := sort.Search(len(p.chunks), func(i int) bool { return p.chunks[i].end > start })
		if i == len(p.chunks) {
			continue
		}
		if c := p.chunks[i]; i != last {
			packed := make([]byte, c.packedSize)
			if _, err := data.ReadAt(packed, c.packedEnd-c.packedSize); err != nil {
				return
			}
			var err error
			if raw, err = inflate(packed, c.size); err != nil {
				return
			}
			last = i
		}
		start -= p.chunks[i].end - p.chunks[i].size
		if start < 0 || size > int64(len(raw))-start {
			continue
		}
		if content := raw[start : start+size]; sha256.Sum256(content) == d {
			into[d] = bytes.Clone(content)
		}
	}
}
