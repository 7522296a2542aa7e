package standin

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
)

// arch holds what differs between the files of two platforms.
type arch struct {
	name    string // GOARCH
	npm     string // npm's name
	triplet string // Debian's multiarch directory
	machine uint16 // e_machine of an ELF header
	exit    []byte // machine code of exit(69)
}

var arches = map[string]arch{
	"linux/amd64": {
		name: "amd64", npm: "x64", triplet: "x86_64-linux-gnu", machine: 62,
		exit: []byte{0xbf, 69, 0, 0, 0, 0xb8, 60, 0, 0, 0, 0x0f, 0x05}, // mov edi,69; mov eax,60; syscall
	},
	"linux/arm64": {
		name: "arm64", npm: "arm64", triplet: "aarch64-linux-gnu", machine: 183,
		exit: []byte{0xa0, 0x08, 0x80, 0xd2, 0xa8, 0x0b, 0x80, 0xd2, 0x01, 0, 0, 0xd4}, // mov x0,69; mov x8,93; svc 0
	},
}

func archOf(platform string) arch { return arches[platform] }

// elf returns a program that only exits with 69 (EX_UNAVAILABLE). name makes its content unique.
func (a arch) elf(name string) []byte {
	const header, programHeader, base = 64, 56, 0x400000
	code := a.exit
	note := "stand-in for " + name + "\n"
	size := uint64(header + programHeader + len(code) + len(note))
	var b bytes.Buffer
	b.Write([]byte{0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	for _, v := range []any{
		uint16(2), a.machine, uint32(1), // executable, machine, version
		uint64(base + header + programHeader), uint64(header), uint64(0), // entry, program headers, section headers
		uint32(0), uint16(header), uint16(programHeader), uint16(1), uint16(0), uint16(0), uint16(0),
		uint32(1), uint32(5), uint64(0), uint64(base), uint64(base), size, size, uint64(0x1000), // one segment, r-x
	} {
		_ = binary.Write(&b, binary.LittleEndian, v) // writing to a buffer never fails
	}
	b.Write(code)
	b.WriteString(note)
	return b.Bytes()
}

// prose returns n bytes of words, which compress to about a fifth and depend only on seed.
func prose(seed string, n int) []byte {
	r := rand.New(rand.NewChaCha8(sha256.Sum256([]byte(seed))))
	var words [256]string
	for i := range words {
		words[i] = fmt.Sprintf("%x", r.Uint64())[:4+r.IntN(8)]
	}
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(words[r.IntN(len(words))])
		b.WriteByte(" \n"[r.IntN(8)/7])
	}
	return []byte(b.String()[:n])
}
