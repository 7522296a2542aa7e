package verify

import (
	"fmt"
	"maps"
	"strings"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

var fileRules = []rule{
	{Rule: Rule{
		ID: "file-directory", Title: "Only root may replace what root's programs read", Severity: Error,
		Why: "Who may write a directory renames the file in it and puts his own there, whatever the file's mode.",
		Fix: "Give the directory to root, mode 0755.",
	}, each: fileDirectories},
	{Rule: Rule{
		ID: "config-volume", Title: "The image has no volume over laid files", Severity: Error,
		Why: "A volume keeps its first content: the next version of the image starts with the files of the one before, a policy among them, and whatever a container wrote there.",
		Fix: "Build from a base without the volume.",
	}, each: configVolumes},
}

func fileDirectories(h *held) {
	told := map[string]bool{}
	for _, p := range sortedKeys(h.want.Laid) {
		if f, ok := h.Files.Lookup(p); ok && f.UID != 0 {
			continue
		}
		for _, dir := range image.Parents(p) {
			e, ok := h.Files.Lookup(dir)
			if !ok || told[dir] {
				continue
			}
			if who := h.mayWrite(e); who != "" && e.Mode&0o1000 == 0 {
				told[dir] = true
				h.reportFinding(dir, h.at(dir), "%s may write %s, where %s lies", who, dir, p)
			}
		}
	}
}

func configVolumes(h *held) {
	for _, v := range h.Surface.Config.Volumes {
		for _, p := range sortedKeys(h.want.Laid) {
			if e, ok := h.Files.Lookup(p); ok && !e.IsDir() && image.Within(p, image.Clean(v)) {
				h.reportFinding(v, nil, "the volume %s holds laid files, such as %s", v, p)
				break
			}
		}
	}
}

// isLaid reports whether the profile adds a path.
func (h *held) isLaid(p string) bool {
	_, ok := h.want.Laid[p]
	return ok
}

// isLaidProgram reports whether the profile adds a path and it is an executable file.
func (h *held) isLaidProgram(p string) bool {
	e, ok := h.Files.Lookup(p)
	return ok && h.isLaid(p) && e.Type == image.TypeFile && e.Mode&0o111 != 0
}

// shortDigest returns the first twelve digits of a digest.
func shortDigest(digest string) string {
	algorithm, hex, ok := strings.Cut(digest, ":")
	if !ok || len(hex) < 12 {
		return digest
	}
	return algorithm + ":" + hex[:12]
}

// addUnchecked reports a check that was impossible, and the reason.
func (h *held) addUnchecked(format string, args ...any) {
	h.report.Unchecked = append(h.report.Unchecked, platformOf(h.Image)+": "+fmt.Sprintf(format, args...))
}

// readFiles returns the contents of files, reading them together within the limits.
func (h *held) readFiles(paths []string) map[string][]byte {
	out := make(map[string][]byte, len(paths))
	for len(paths) > 0 && h.err == nil {
		n, size := 0, int64(0)
		for n < len(paths) {
			e, _ := h.Files.Stat(paths[n])
			if size += e.Size; n > 0 && size > tree.MaxReadAll {
				break
			}
			n++
		}
		var contents map[string][]byte
		contents, h.err = h.Files.ReadFiles(h.ctx, paths[:n]...)
		maps.Copy(out, contents)
		paths = paths[n:]
	}
	return out
}
