package standin

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"

	"github.com/slimctl/slimctl/image"
)

const (
	weightLayerCount = 10
	weightDir        = "/usr/share/standin/weight"
	// weightRaw is the number of tenths of a byte that compress to one byte: measured, see TestWeight.
	weightRaw = 25
	// weightDirSize limits the entries of a directory, except the topmost.
	weightDirSize = 64
)

// weightLayers returns separate layers that compress to about total bytes together.
func weightLayers(platform string, total int64) []layer {
	var out []layer
	for i := range int64(weightLayerCount) {
		n := (total + weightLayerCount - 1 - i) / weightLayerCount
		if n == 0 {
			break
		}
		dir := fmt.Sprintf("%s/%02d", weightDir, i)
		out = append(out, layer{
			by:     fmt.Sprintf("COPY weight/%02d %s # about %d bytes", i, dir, n),
			weight: func() []image.File { return weightFiles(platform, dir, n*weightRaw/10) },
		})
	}
	return out
}

// weightFiles returns files below dir of total bytes together.
func weightFiles(platform, dir string, total int64) []image.File {
	sizes := seeded(platform + dir)
	var out []image.File
	for i := 0; total > 0; i++ {
		n := min(total, weightSize(sizes))
		p := fmt.Sprintf("%s/%03d/package-%02d/file-%02d.dat", dir, i/weightDirSize/weightDirSize, i/weightDirSize%weightDirSize, i%weightDirSize)
		out = append(out, weightFile(platform, p, n))
		total -= n
	}
	return withParents(out, nil, nil)
}

// weightSize returns 1 to 64 KiB, preferring small sizes, and 1 to 8 MiB for one file in 64: 90 KB on average.
func weightSize(r *rand.PCG) int64 {
	u := r.Uint64()
	low := int64(1<<10) << (u >> 8 % 6)
	high := 2 * low
	if u%64 == 0 {
		low, high = 1<<20, 8<<20
	}
	return low + int64(r.Uint64()%uint64(high-low))
}

func weightFile(platform, p string, n int64) image.File {
	return image.File{
		Entry: image.Entry{Path: p, Type: image.TypeFile, Mode: 0o644, Size: n},
		Open: func() (io.ReadCloser, error) {
			return io.NopCloser(io.LimitReader(&mixture{random: seeded(platform + p)}, n)), nil
		},
	}
}

func seeded(seed string) *rand.PCG {
	sum := sha256.Sum256([]byte(seed))
	return rand.NewPCG(binary.LittleEndian.Uint64(sum[:]), binary.LittleEndian.Uint64(sum[8:]))
}

const (
	phraseOffsets = 2048
	phraseMax     = 8 + 31
	noiseMax      = 11 // so that gzip compresses to two fifths
)

var phrases = prose("weight", phraseOffsets+phraseMax)

// mixture is an endless stream of phrases, each followed by noise. gzip finds phrases and keeps the noise, so it
// decompresses like real files: in short copies and literals.
type mixture struct {
	random *rand.PCG
	buf    [2048]byte
	left   []byte // unread part of buf
}

func (m *mixture) Read(p []byte) (n int, err error) {
	for n < len(p) {
		if len(m.left) == 0 {
			m.fill()
		}
		c := copy(p[n:], m.left)
		m.left = m.left[c:]
		n += c
	}
	return n, nil
}

func (m *mixture) fill() {
	b := m.buf[:0]
	for len(b) <= len(m.buf)-phraseMax-noiseMax {
		u := m.random.Uint64()
		from, length, noise := u%phraseOffsets, 8+u>>11%32, u>>16%(noiseMax+1)
		b = append(b, phrases[from:from+length]...)
		end := len(b) + int(noise)
		b = binary.LittleEndian.AppendUint64(b, m.random.Uint64())
		b = binary.LittleEndian.AppendUint64(b, m.random.Uint64())
		b = b[:end]
	}
	m.left = b
}
