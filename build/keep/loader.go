package keep

import (
	"debug/elf"
	"path"
	"slices"
	"strings"
)

// multiarch are the directories of an architecture's libraries (Debian policy 9.1.1), by ELF machine.
var multiarch = map[elf.Machine]string{elf.EM_X86_64: "x86_64-linux-gnu", elf.EM_AARCH64: "aarch64-linux-gnu"}

// listLoaderDirs returns the directories of ld.so.conf(5) in order, and those that the loader knows by itself (ld.so(8)).
func (k *keeper) listLoaderDirs() ([]string, error) {
	dirs, err := k.readLdConf("/etc/ld.so.conf", 0)
	if err != nil {
		return nil, err
	}
	for _, arch := range []string{"x86_64-linux-gnu", "aarch64-linux-gnu"} {
		dirs = append(dirs, "/lib/"+arch, "/usr/lib/"+arch)
	}
	return append(dirs, "/lib64", "/usr/lib64", "/lib", "/usr/lib"), nil
}

func (k *keeper) readLdConf(file string, depth int) (dirs []string, err error) {
	if e, ok := k.img.Stat(file); !ok || e.IsDir() || depth > 8 {
		return nil, nil
	}
	data, err := k.img.ReadFile(k.ctx, file)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(data)) {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		switch {
		case len(words) == 2 && words[0] == "include":
			glob := words[1]
			if !path.IsAbs(glob) {
				glob = path.Join(path.Dir(file), glob)
			}
			files, err := k.img.Glob(glob)
			if err != nil {
				return nil, err
			}
			slices.Sort(files)
			for _, f := range files {
				more, err := k.readLdConf(f, depth+1)
				if err != nil {
					return nil, err
				}
				dirs = append(dirs, more...)
			}
		case len(words) == 1 && path.IsAbs(words[0]):
			dirs = append(dirs, words[0])
		}
	}
	return dirs, nil
}

// findLibrary returns the paths at which the loader finds a library of the file at p: in the first directory that has one for its machine,
// with all those that it may take instead on another processor (glibc-hwcaps).
func (k *keeper) findLibrary(p, name string) []string {
	f := k.readELF(p)
	if f == nil {
		return nil
	}
	if strings.Contains(name, "/") {
		if k.isLoadable(name, f.Machine) {
			return []string{name}
		}
		return nil
	}
	for _, dir := range append(k.listOwnDirs(p), k.dirs...) {
		var found []string
		if at := path.Join(dir, name); k.isLoadable(at, f.Machine) {
			found = append(found, at)
		}
		caps, err := k.img.Glob(path.Join(escape(dir), "glibc-hwcaps/*", escape(name)))
		if err == nil {
			for _, at := range caps {
				if k.isLoadable(at, f.Machine) {
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

// listOwnDirs returns the directories that a file names: RUNPATH, or its RPATH and that of each file that loads it.
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

var globMeta = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `{`, `\{`)

func escape(p string) string { return globMeta.Replace(p) }
