// Package elf reads of a program or library what the dynamic loader reads of it (System V ABI, chapters 4 and 5; ld.so(8)).
// It goes by the program headers: unlike the sections that debug/elf goes by, nobody can strip them.
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

// File is what the loader goes by. Of a file that isn't for 64-bit little-endian machines only Machine is known.
type File struct {
	// Machine is the processor's, as "EM_X86_64".
	Machine elf.Machine `json:"machine"`
	// Interp is the loader's path; empty for a library and for what is linked statically.
	Interp string `json:"interp,omitempty"`
	// Needed are the names of the libraries, DT_NEEDED.
	Needed []string `json:"needed,omitempty"`
	// RPath and RunPath are directories to look for them in, DT_RPATH and DT_RUNPATH, with $ORIGIN as it is written.
	RPath   []string `json:"rpath,omitempty"`
	RunPath []string `json:"runpath,omitempty"`
}

// Bounds: a file that has more isn't one that a linker wrote.
const (
	maxHeaders = 1 << 10 // program headers
	maxDynamic = 1 << 20 // bytes of the dynamic section
	maxStrings = 64 << 20
	maxText    = 4096     // of one name
	maxNames   = 64 << 10 // bytes of all names together
)

// Is tells whether a file begins as an ELF file does.
func Is(head []byte) bool { return bytes.HasPrefix(head, []byte(elf.ELFMAG)) }

// Read reads a file that Is says yes of. What makes no sense is an error.
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
	var kind [4]byte // e_type and e_machine lie alike in both classes
	if _, err := r.ReadAt(kind[:], elf.EI_NIDENT); err != nil {
		return nil, fmt.Errorf("ELF header: %w", err)
	}
	f := &File{Machine: elf.Machine(order.Uint16(kind[2:]))}
	if elf.Class(ident[elf.EI_CLASS]) != elf.ELFCLASS64 || order != binary.LittleEndian {
		return f, nil
	}
	var h elf.Header64
	if err := get(r, 0, &h); err != nil {
		return nil, fmt.Errorf("ELF header: %w", err)
	}
	if h.Phnum == 0 {
		return f, nil // an object file, which nobody loads
	}
	if int(h.Phentsize) != binary.Size(elf.Prog64{}) || h.Phnum > maxHeaders {
		return nil, fmt.Errorf("%d program headers of %d bytes", h.Phnum, h.Phentsize)
	}
	progs := make([]elf.Prog64, h.Phnum)
	if err := get(r, h.Phoff, progs); err != nil {
		return nil, fmt.Errorf("program headers: %w", err)
	}
	for _, p := range progs {
		switch elf.ProgType(p.Type) {
		case elf.PT_INTERP:
			if p.Filesz > maxText {
				return nil, fmt.Errorf("a loader's path of %d bytes", p.Filesz)
			}
			path := make([]byte, p.Filesz)
			if err := get(r, p.Off, path); err != nil {
				return nil, fmt.Errorf("the loader's path: %w", err)
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

func get(r io.ReaderAt, off uint64, into any) error {
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
	if err := get(r, p.Off, tags); err != nil {
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
		return nil // linked statically, but at any address
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
			return "", fmt.Errorf("a name at %d of the %d bytes of strings", at, size)
		}
		b := make([]byte, min(size-at, maxText))
		if err := get(r, off+at, b); err != nil {
			return "", err
		}
		name, _, ended := bytes.Cut(b, []byte{0})
		if !ended {
			return "", errors.New("a name without an end")
		}
		return string(name), nil
	}
	names := 0
	for _, t := range tags {
		tag := elf.DynTag(t.Tag)
		if tag != elf.DT_NEEDED && tag != elf.DT_RPATH && tag != elf.DT_RUNPATH {
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
		case elf.DT_NEEDED:
			f.Needed = append(f.Needed, s)
		case elf.DT_RPATH:
			f.RPath = append(f.RPath, strings.Split(s, ":")...)
		default:
			f.RunPath = append(f.RunPath, strings.Split(s, ":")...)
		}
	}
	return nil
}

// fileOffset is where in the file the loader takes an address from.
func fileOffset(address uint64, progs []elf.Prog64) (uint64, bool) {
	for _, p := range progs {
		if elf.ProgType(p.Type) == elf.PT_LOAD && address >= p.Vaddr && address-p.Vaddr < p.Filesz {
			return p.Off + address - p.Vaddr, true
		}
	}
	return 0, false
}
