// Package elftest makes ELF files for tests. The loader accepts them, but they contain no code.
package elftest

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
)

// File describes the ELF file to make.
type File struct {
	Machine elf.Machine // default EM_X86_64
	Interp  string
	Needed  []string
	RPath   string
	RunPath string
	Filter  string
}

// Make returns the bytes of the file.
func Make(f File) []byte {
	if f.Machine == 0 {
		f.Machine = elf.EM_X86_64
	}
	const headers, program = 64, 56
	var text bytes.Buffer
	text.WriteByte(0)
	put := func(s string) uint64 {
		at := text.Len()
		text.WriteString(s + "\x00")
		return uint64(at)
	}
	var tags []elf.Dyn64
	for _, n := range f.Needed {
		tags = append(tags, elf.Dyn64{Tag: int64(elf.DT_NEEDED), Val: put(n)})
	}
	for tag, s := range map[elf.DynTag]string{elf.DT_RPATH: f.RPath, elf.DT_RUNPATH: f.RunPath, elf.DT_FILTER: f.Filter} {
		if s != "" {
			tags = append(tags, elf.Dyn64{Tag: int64(tag), Val: put(s)})
		}
	}
	interp := put(f.Interp)
	const load = 0x1000 // the address of the start of the file
	textAt := uint64(headers + 3*program)
	dynamicAt := textAt + uint64(text.Len())
	tags = append(tags, elf.Dyn64{Tag: int64(elf.DT_STRTAB), Val: load + textAt}, elf.Dyn64{Tag: int64(elf.DT_STRSZ), Val: uint64(text.Len())}, elf.Dyn64{})
	size := dynamicAt + uint64(len(tags)*16)
	progs := []elf.Prog64{
		{Type: uint32(elf.PT_LOAD), Vaddr: load, Filesz: size, Memsz: size},
		{Type: uint32(elf.PT_DYNAMIC), Off: dynamicAt, Vaddr: load + dynamicAt, Filesz: uint64(len(tags) * 16)},
	}
	if f.Interp != "" {
		progs = append(progs, elf.Prog64{Type: uint32(elf.PT_INTERP), Off: textAt + interp, Filesz: uint64(len(f.Interp) + 1)})
	}
	h := elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1},
		Type:  uint16(elf.ET_DYN), Machine: uint16(f.Machine), Version: 1, Phoff: headers, Ehsize: headers, Phentsize: program, Phnum: uint16(len(progs)),
	}
	var out bytes.Buffer
	for _, part := range []any{h, progs} {
		_ = binary.Write(&out, binary.LittleEndian, part) // writing to a buffer never fails
	}
	out.Write(make([]byte, int(textAt)-out.Len()))
	out.Write(text.Bytes())
	_ = binary.Write(&out, binary.LittleEndian, tags)
	return out.Bytes()
}
