package keep

import (
	"path"
	"slices"
	"strings"
)

// bulk lists, by directory in Debian's layout, prefixes of files that are large in bases and that no desktop needs:
// compilers, debuggers, offices, TeX, codecs, their libraries, and documentation. The directory of one architecture's
// libraries is left out.
var bulk = map[string][]string{
	"/usr/bin/": strings.Fields("aarch64-linux-gnu- cmake cpack ctest gdb gimp lua mf pdf perl x86_64-linux-gnu-"),
	"/usr/lib/": strings.Fields(`ImageMagick aspell debug/ gcc/ gegl gimp/ go- go/ gprofng inkscape jvm/ lapack/ libLLVM libMagick
		libOpenEXR libSDL libSvtAv1 libTECkit libaom libasan libavcodec libavfilter libavformat libclang libcodec2 libetonyek libexiv2
		libfftw libflite libgfortran libgs. libgsl libgtk-x11 libgtkmm libisl libjxl liblab_gamut liblsan libmfx libmwaw libnode libopenmpt
		libperl libplacebo libpoppler libpython librav1e libreoffice/ libstaroffice libtsan libubsan libvpx libwps libx26 llvm mfx/
		openblas perl rustlib/`),
	"/usr/share/": strings.Fields(`cmake doc/ fonts/opentype/noto/NotoSansCJK-B fonts/opentype/noto/NotoSerif
		fonts/truetype/noto/NotoSerif ghostscript gimp go gtk-doc help icons info inkscape javascript liblangtag
		libreoffice locale man matplotlib nodejs perl tcltk tex unicode`),
	"/usr/include/": {""}, "/usr/src/": {""}, "/var/cache/": {""}, "/var/log/": {""},
	"/var/lib/": {"texmf", "ucf"},
}

// IsLikely reports whether a file may stay, judging by its path only. It affects only speed: these files go to a
// tree.Stash.
func IsLikely(p string) bool {
	dir, name := path.Split(p)
	if _, module, ok := strings.Cut(dir, "-packages/"); ok { // of Python
		return strings.HasPrefix(module, "supervisor") || strings.HasPrefix(module, "pkg_resources")
	}
	return name == "copyright" || path.Ext(name) != ".a" && !strings.Contains(dir, "/node_modules/") && !isBulk(p)
}

func isBulk(p string) bool {
	parts := strings.SplitAfterN(p, "/", 4)
	if len(parts) < 4 {
		return false
	}
	rest := parts[3]
	if arch, library, ok := strings.Cut(rest, "/"); ok && strings.HasSuffix(arch, "-linux-gnu") {
		rest = library
	}
	if locale, ok := strings.CutPrefix(rest, "locale/"); ok && locale > "a" && locale != "locale-archive" { // the C locale stays
		return true
	}
	return slices.ContainsFunc(bulk["/"+parts[1]+parts[2]], func(start string) bool { return strings.HasPrefix(rest, start) })
}
