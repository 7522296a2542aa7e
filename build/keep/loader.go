package keep

import (
	"context"
	"debug/elf"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image/tree"
)

// multiarch maps an ELF machine to the directory of its libraries (Debian policy 9.1.1).
var multiarch = map[elf.Machine]string{elf.EM_X86_64: "x86_64-linux-gnu", elf.EM_AARCH64: "aarch64-linux-gnu"}

// maxLdLines limits the lines of ld.so.conf with its includes, and so the globs and directories.
const maxLdLines = 1000

// listLoaderDirs returns the directories of ld.so.conf(5) in order, then the loader's default directories (ld.so(8)).
func (k *keeper) listLoaderDirs() ([]string, error) {
	var dirs []string
	read, lines := map[string]bool{}, 0
	var readConf func(file string) error
	readConf = func(file string) error {
		e, ok := k.img.Stat(file)
		if !ok || e.IsDir() || read[e.Path] { // a repeated file adds no directory
			return nil
		}
		read[e.Path] = true
		data, err := k.img.ReadFile(k.ctx, file)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(data)) {
			line, _, _ = strings.Cut(line, "#")
			words := strings.Fields(line)
			if len(words) == 0 {
				continue
			}
			if lines++; lines > maxLdLines {
				return fmt.Errorf("%s: ld.so.conf with its includes has more than %d lines", file, maxLdLines)
			}
			switch {
			case len(words) == 2 && words[0] == "include":
				glob := words[1]
				if !path.IsAbs(glob) {
					glob = path.Join(path.Dir(file), glob)
				}
				files, err := tree.Glob(k.img, glob, maxLdLines)
				if err != nil {
					return fmt.Errorf("%s: include %s: %w", file, words[1], err)
				}
				for _, f := range files {
					if err := readConf(f); err != nil {
						return err
					}
				}
			case len(words) == 1 && path.IsAbs(words[0]):
				dirs = append(dirs, words[0])
			}
		}
		return nil
	}
	if err := readConf("/etc/ld.so.conf"); err != nil {
		return nil, err
	}
	for _, arch := range []string{"x86_64-linux-gnu", "aarch64-linux-gnu"} {
		dirs = append(dirs, "/lib/"+arch, "/usr/lib/"+arch)
	}
	dirs = append(dirs, "/lib64", "/usr/lib64", "/lib", "/usr/lib")
	dirs = slices.DeleteFunc(dirs, func(dir string) bool {
		real, _, ok := k.followLinks(dir)
		e, _ := k.img.Lookup(real)
		return !ok || !e.IsDir()
	})
	return dirs, context.Cause(k.ctx)
}

// findLibraries returns, for each library that the file at p needs, the paths at which the loader finds it
// (findLibrary).
func (k *keeper) findLibraries(p string) map[string][]string {
	f := k.readELF(p)
	dirs := k.listDirs(p)
	if !k.spend(p, 1000*len(dirs)*(1+len(f.Needed))) {
		return nil
	}
	out := map[string][]string{}
	for _, name := range f.Needed {
		out[name] = k.findLibrary(f.Machine, name, dirs)
	}
	return out
}

// findLibrary returns the paths at which the loader finds a library for a machine: all variants for other processors
// (glibc-hwcaps) in the first directory that has one.
func (k *keeper) findLibrary(machine elf.Machine, name string, dirs []string) []string {
	if strings.Contains(name, "/") {
		if k.isLoadable(name, machine) {
			return []string{name}
		}
		return nil
	}
	for _, dir := range dirs {
		var found []string
		if at := path.Join(dir, name); k.isLoadable(at, machine) {
			found = append(found, at)
		}
		if caps, _, ok := k.followLinks(dir + "/glibc-hwcaps"); ok {
			for _, cpu := range []string{"x86-64-v2", "x86-64-v3", "x86-64-v4"} { // all levels that ld.so(8) knows on our platforms
				if at := path.Join(caps, cpu, name); k.isLoadable(at, machine) {
					found = append(found, at)
				}
			}
		}
		if len(found) > 0 {
			return found
		}
	}
	return nil
}

// listDirs returns the directories in which the loader searches for libraries of the file at p.
func (k *keeper) listDirs(p string) []string { return append(k.listOwnDirs(p), k.dirs...) }

// listOwnDirs returns the directories that a file names: its RUNPATH, or its RPATH and those of the files that load it.
func (k *keeper) listOwnDirs(p string) []string {
	f := k.readELF(p)
	dirs := expand(f.RunPath, p)
	if len(f.RunPath) > 0 {
		return dirs
	}
	for range 40 {
		dirs = append(dirs, expand(f.RPath, p)...)
		r := k.set.Paths[p]
		if r.Rule != ByLibrary && r.Rule != ByDlopen {
			return dirs
		}
		if p = r.From; k.readELF(p) == nil {
			return dirs
		}
		f = k.readELF(p)
	}
	return dirs
}

func expand(dirs []string, p string) []string {
	out := make([]string, 0, len(dirs))
	for _, d := range dirs {
		for _, origin := range []string{"$ORIGIN", "${ORIGIN}"} {
			d = strings.ReplaceAll(d, origin, path.Dir(p))
		}
		if path.IsAbs(d) {
			out = append(out, path.Clean(d))
		}
	}
	return out
}

// isLoadable reports whether the file at p is an ELF file for a machine.
func (k *keeper) isLoadable(p string, machine elf.Machine) bool {
	real, _, ok := k.followLinks(p)
	if !ok {
		return false
	}
	f := k.readELF(real)
	return f != nil && f.Machine == machine
}
