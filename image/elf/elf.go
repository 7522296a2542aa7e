// Package elf reads the parts of a program or library that the dynamic loader reads (System V ABI, chapters 4 and 5;
// ld.so(8)). It uses the program headers, which can't be stripped, unlike the sections that debug/elf uses.
package elf

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// File holds the fields that the loader uses. For a file that isn't 64-bit little-endian, only Machine is set.
type File struct {
	// Machine is the processor, such as elf.EM_X86_64.
	Machine elf.Machine `json:"machine"`
	// Interp is the loader's path; empty for libraries and static programs.
	Interp string `json:"interp,omitempty"`
	// Needed lists the names of the required libraries, DT_NEEDED and DT_FILTER. The loader fails without either.
	Needed []string `json:"needed,omitempty"`
	// RPath and RunPath list the directories to search for them, DT_RPATH and DT_RUNPATH, with $ORIGIN unexpanded.
	RPath   []string `json:"rpath,omitempty"`
	RunPath []string `json:"runpath,omitempty"`
}

// These limits are larger than anything that linkers write.
const (
	maxHeaders = 1 << 10 // program headers
	maxDynamic = 1 << 20 // bytes of the dynamic section
	maxStrings = 64 << 20
	maxText    = 4096     // bytes of one name
	maxNames   = 64 << 10 // bytes of all names together
)

// Is reports whether a file begins with the ELF magic number.
func Is(head []byte) bool { return bytes.HasPrefix(head, []byte(elf.ELFMAG)) }

// Read reads the headers of an ELF file. It fails if they are invalid.
func Read(r io.ReaderAt) (*File, error) {
	var ident [elf.EI_NIDENT]byte
	if _, err := r.ReadAt(ident[:], 0); err != nil {
		return nil, fmt.Errorf("ELF header: %w", err)
	}
	if !Is(ident[:]) {
		return nil, errors.New("not an ELF file")
	}
	order := binary.ByteOrder(binary.LittleEndian)
	if elf.Data(ident[elf.EI_DATA]) == elf.ELFDATA2MSB {
		order = binary.BigEndian
	}
	var kind [4]byte // e_type and e_machine have the same place in both classes
	if _, err := r.ReadAt(kind[:], elf.EI_NIDENT); err != nil {
		return nil, fmt.Errorf("ELF header: %w", err)
	}
	f := &File{Machine: elf.Machine(order.Uint16(kind[2:]))}
	if elf.Class(ident[elf.EI_CLASS]) != elf.ELFCLASS64 || order != binary.LittleEndian {
		return f, nil
	}
	var h elf.Header64
	if err := readAt(r, 0, &h); err != nil {
		return nil, fmt.Errorf("ELF header: %w", err)
	}
	if h.Phnum == 0 {
		return f, nil // the loader doesn't load object files
	}
	if int(h.Phentsize) != binary.Size(elf.Prog64{}) || h.Phnum > maxHeaders {
		return nil, fmt.Errorf("it has %d program headers of %d bytes", h.Phnum, h.Phentsize)
	}
	progs := make([]elf.Prog64, h.Phnum)
	if err := readAt(r, h.Phoff, progs); err != nil {
		return nil, fmt.Errorf("program headers: %w", err)
	}
	for _, p := range progs {
		switch elf.ProgType(p.Type) {
		case elf.PT_INTERP:
			if p.Filesz > maxText {
				return nil, fmt.Errorf("its loader's path has %d bytes", p.Filesz)
			}
			path := make([]byte, p.Filesz)
			if err := readAt(r, p.Off, path); err != nil {
				return nil, fmt.Errorf("loader's path: %w", err)
			}
			f.Interp = string(bytes.TrimRight(path, "\x00"))
		case elf.PT_DYNAMIC:
			if err := f.dynamic(r, p, progs); err != nil {
				return nil, fmt.Errorf("dynamic section: %w", err)
			}
		default:
		}
	}
	return f, nil
}

func readAt(r io.ReaderAt, off uint64, into any) error {
	if off > 1<<62 {
		return io.ErrUnexpectedEOF
	}
	return binary.Read(io.NewSectionReader(r, int64(off), int64(binary.Size(into))), binary.LittleEndian, into)
}

func (f *File) dynamic(r io.ReaderAt, p elf.Prog64, progs []elf.Prog64) error {
	if p.Filesz > maxDynamic {
		return fmt.Errorf("it has %d bytes", p.Filesz)
	}
	tags := make([]elf.Dyn64, p.Filesz/uint64(binary.Size(elf.Dyn64{})))
	if err := readAt(r, p.Off, tags); err != nil {
		return err
	}
	if end := slices.IndexFunc(tags, func(t elf.Dyn64) bool { return elf.DynTag(t.Tag) == elf.DT_NULL }); end >= 0 {
		tags = tags[:end]
	}
	var table, size uint64
	for _, t := range tags {
		switch elf.DynTag(t.Tag) {
		case elf.DT_STRTAB:
			table = t.Val
		case elf.DT_STRSZ:
			size = t.Val
		default:
		}
	}
	if table == 0 {
		return nil // a static position-independent program
	}
	if size > maxStrings {
		return fmt.Errorf("its strings have %d bytes", size)
	}
	off, ok := fileOffset(table, progs)
	if !ok {
		return fmt.Errorf("its strings at address %#x are in no segment", table)
	}
	text := func(at uint64) (string, error) {
		if at >= size {
			return "", fmt.Errorf("a name at offset %d, but its strings have %d bytes", at, size)
		}
		b := make([]byte, min(size-at, maxText))
		if err := readAt(r, off+at, b); err != nil {
			return "", err
		}
		name, _, ended := bytes.Cut(b, []byte{0})
		if !ended {
			return "", errors.New("a name has no end")
		}
		return string(name), nil
	}
	names := 0
	for _, t := range tags {
		tag := elf.DynTag(t.Tag)
		if tag != elf.DT_NEEDED && tag != elf.DT_FILTER && tag != elf.DT_RPATH && tag != elf.DT_RUNPATH {
			continue
		}
		s, err := text(t.Val)
		if err != nil {
			return err
		}
		if names += len(s) + 1; names > maxNames {
			return fmt.Errorf("its names have more than %d bytes", maxNames)
		}
		switch tag {
		case elf.DT_NEEDED, elf.DT_FILTER:
			f.Needed = append(f.Needed, s)
		case elf.DT_RPATH:
			f.RPath = append(f.RPath, strings.Split(s, ":")...)
		default:
			f.RunPath = append(f.RunPath, strings.Split(s, ":")...)
		}
	}
	return nil
}

// fileOffset returns the offset in the file of an address in memory.
func fileOffset(address uint64, progs []elf.Prog64) (uint64, bool) {
	for _, p := range progs {
		if elf.ProgType(p.Type) == elf.PT_LOAD && address >= p.Vaddr && address-p.Vaddr < p.Filesz {
			return p.Off + address - p.Vaddr, true
		}
	}
	return 0, false
}
