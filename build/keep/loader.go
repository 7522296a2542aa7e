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

// readConfCost is the cost of reading a file of ld.so.conf, which may take a pass over a layer, in units of spend.
const readConfCost = 5_000_000

// listLoaderDirs sets the directories of ld.so.conf(5), in order, and the loader's default directories (ld.so(8)).
func (k *keeper) listLoaderDirs() error {
	var dirs []string
	read, lines := map[string]bool{}, 0
	var readConf func(file string) error
	readConf = func(file string) error {
		real, _, ok := k.followLinks(file)
		e, _ := k.img.Lookup(real)
		if !ok || e.IsDir() || read[real] { // a repeated file adds no directory
			return nil
		}
		read[real] = true
		if !k.spend(file, readConfCost) {
			return context.Cause(k.ctx)
		}
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
				files, err := tree.Glob(k, glob, maxLdLines)
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
		return err
	}
	var defaults []string
	for _, arch := range []string{"x86_64-linux-gnu", "aarch64-linux-gnu"} {
		defaults = append(defaults, "/lib/"+arch, "/usr/lib/"+arch)
	}
	defaults = append(defaults, "/lib64", "/usr/lib64", "/lib", "/usr/lib")
	missing := func(dir string) bool { return !k.Exists(dir, true) }
	k.confDirs, k.defaultDirs = slices.DeleteFunc(dirs, missing), slices.DeleteFunc(defaults, missing)
	return context.Cause(k.ctx)
}

// Names and Exists make a keeper the tree.Dirs of its image, with the time that they take limited by spend.

// Names returns the names in a directory.
func (k *keeper) Names(dir string) []string {
	real, _, ok := k.followLinks(dir)
	if !ok {
		return nil
	}
	names := k.img.Names(real)
	k.spend(dir, 500*len(names))
	return names
}

// Exists reports whether p exists; with asDir, whether it is a directory or a link to one.
func (k *keeper) Exists(p string, asDir bool) bool {
	real, _, ok := k.followLinks(p)
	e, _ := k.img.Lookup(real)
	return ok && (!asDir || e.IsDir())
}

// findLibraries returns, for each of the named libraries, the paths at which the loader may find it for the ELF file
// at p.
func (k *keeper) findLibraries(p string, names []string) map[string][]string {
	machine, own := k.readELF(p).Machine, k.listOwnDirs(p)
	if !k.spend(p, 1000*(len(own)+len(k.confDirs)+len(k.defaultDirs))*(1+len(names))) {
		return nil
	}
	out := map[string][]string{}
	for _, name := range names {
		if strings.Contains(name, "/") {
			if k.isLoadable(name, machine) {
				out[name] = []string{name}
			}
			continue
		}
		found := k.findInDirs(machine, name, own)
		if len(found) == 0 {
			// The loader reads ld.so.cache in place of ld.so.conf. If ldconfig wasn't run after a change, the
			// cache names the file in a default directory, or none.
			found = append(k.findInDirs(machine, name, k.confDirs), k.findInDirs(machine, name, k.defaultDirs)...)
		}
		out[name] = found
	}
	return out
}

// findInDirs returns the paths of a library for a machine in the first directory that has it: all variants for other
// processors (glibc-hwcaps).
func (k *keeper) findInDirs(machine elf.Machine, name string, dirs []string) []string {
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
