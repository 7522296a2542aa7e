package verify

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/expect"
)

var fileRules = []rule{
	{Rule: Rule{
		ID: "file-missing", Title: "Every laid file is there", Severity: Error,
		Why: "Without its policy, gate or configuration a program falls back on something else, or the image does not work. A layer above can hide a file without a trace in the others.",
		Fix: "Build again; no layer above slimctl's may remove the file.",
	}, each: filesMissing},
	{Rule: Rule{
		ID: "file-changed", Title: "Every laid file is what was laid", Severity: Error,
		Why: "A changed browser-shell, policy or supervisord.conf is another product under the same name; a symlink in a file's place is whatever it leads to.",
		Fix: "Give verify the --profile, --set and --allow-host that built the image; else build again: no layer above slimctl's may replace the file.",
	}, each: filesChanged},
	{Rule: Rule{
		ID: "file-rights", Title: "Every laid file has its mode and owner", Severity: Error,
		Why: "A policy that the desktop user may write is his to change; a secret directory that everybody may enter is none.",
		Fix: "Build again; do not change modes or owners in a layer above.",
	}, each: filesRights},
	{Rule: Rule{
		ID: "file-directory", Title: "Only root may replace what root's programs read", Severity: Error,
		Why: "Who may write a directory renames the file in it and puts his own there, whatever the file's mode.",
		Fix: "Give the directory to root, mode 0755.",
	}, each: fileDirectories},
	{Rule: Rule{
		ID: "file-architecture", Title: "Every laid program is of the image's architecture", Severity: Error,
		Why: "An arm64 program in an amd64 image does not start, or is emulated; it is found when the first container runs.",
		Fix: "Build that platform again with its own payload.",
	}, each: fileArchitectures},
	{Rule: Rule{
		ID: "file-extra", Title: "Nothing lies among the payload's files", Severity: Error,
		Why: "Node loads a module from the nearest node_modules: a file beside the payload's own is run in its place.",
		Fix: "Remove the file.",
	}, each: filesExtra},
	{Rule: Rule{
		ID: "payload-node", Title: "The tool finds the Node that its payload runs on", Severity: Error,
		Why: "agent-browser before 0.20 starts its daemon with the node of agent_browser.search_path: without one the image boots, and every open fails.",
		Fix: "Keep a node of the base in a directory of agent_browser.search_path (the tool's policy), or take an agent-browser from 0.20 on.",
	}, each: payloadNode},
	{Rule: Rule{
		ID: "file-removed", Title: "What the profile removes is gone", Severity: Error,
		Why: "Each removal closes something; the profile's line says what.",
		Fix: "Build again; no layer above slimctl's may bring it back.",
	}, each: filesRemoved},
	{Rule: Rule{
		ID: "file-closed", Title: "Owned directories hold only what the profile lays and keeps", Severity: Error,
		Why: "Some directories are read by name or by glob: a file in them is a route, a program, a browser policy or a rule of sudo.",
		Fix: "Remove the file. Lay it by an overlay, or name it in keep of that line of own, only if your profile means it.",
	}, each: filesClosed},
}

// past says what layers did to laid paths: the last one that brought each, and the last one that hid each path of all.
type past struct{ brought, hidden map[string]int }

// history reads all layers. Positions count from 1; 0 is none.
func (h *held) history() past {
	p := past{map[string]int{}, map[string]int{}}
	for i := range h.Files.Layers {
		for _, e := range h.Files.Layers[i].Entries {
			switch e.Type {
			case tree.TypeWhiteout, tree.TypeOpaque:
				p.hidden[e.Path] = i + 1
			default:
				if _, laid := h.laid[e.Path]; laid {
					p.brought[e.Path] = i + 1
				}
			}
		}
	}
	return p
}

// of gives both for one path: a directory above it that was hidden hides it too.
func (p past) of(path string) (brought, hidden int) {
	for _, at := range append(image.Parents(path), path) {
		hidden = max(hidden, p.hidden[at])
	}
	return p.brought[path], hidden
}

// layer names a layer for a sentence.
func (h *held) layer(i int) string {
	l := h.Files.Layers[i]
	return fmt.Sprintf("layer %d (%s)", i+1, image.Short(l.Digest))
}

func (h *held) eachLaid(visit func(f expect.File, e tree.Entry, there bool)) {
	for _, p := range sortedKeys(h.laid) {
		e, ok := h.Files.Lookup(p)
		visit(h.laid[p], e, ok)
	}
}

func filesMissing(h *held) error {
	var all past
	h.eachLaid(func(f expect.File, _ tree.Entry, there bool) {
		if there {
			return
		}
		if all.brought == nil {
			all = h.history()
		}
		at := []tree.Place{{Path: f.Path}}
		switch brought, hidden := all.of(f.Path); {
		case brought > 0 && hidden > brought:
			at[0].Layer = h.Files.Layers[hidden-1].Digest.String()
			h.foundIn(f.Source, f.Path, at, "%s of %s is hidden by %s", f.Path, overlay(f), h.layer(hidden-1))
		case brought > 0:
			h.foundIn(f.Source, f.Path, at, "%s of %s is not there, though %s brings it: a directory above it was replaced", f.Path, overlay(f), h.layer(brought-1))
		default:
			h.foundIn(f.Source, f.Path, at, "%s of %s is not there", f.Path, overlay(f))
		}
	})
	return nil
}

func overlay(f expect.File) string {
	if f.Overlay == "" {
		return "the profile"
	}
	return "the overlay " + f.Overlay
}

func filesChanged(h *held) error {
	h.eachLaid(func(f expect.File, e tree.Entry, there bool) {
		if !there {
			return
		}
		var what string
		switch {
		case string(e.Type) != f.Type:
			what = fmt.Sprintf("is a %s, not a %s", e.Type, f.Type)
			if e.Link != "" {
				what += ", and leads to " + e.Link
			}
		case f.Type == string(image.TypeSymlink) && e.Link != f.Link:
			what = fmt.Sprintf("leads to %s, not to %s", e.Link, f.Link)
		case f.Type == string(image.TypeFile) && f.SHA256 != "" && e.Digest.String() != f.SHA256:
			what = fmt.Sprintf("has another content: %s instead of %s", short(e.Digest.String()), short(f.SHA256))
		case f.Type == string(image.TypeFile) && f.SHA256 == "" && e.Size != f.Size:
			what = fmt.Sprintf("has %d bytes instead of %d", e.Size, f.Size)
		default:
			return
		}
		by := ""
		if e.Layer >= 0 && e.Layer < len(h.Files.Layers) {
			by = ", by " + h.layer(e.Layer)
		}
		h.foundIn(f.Source, f.Path, h.at(f.Path), "%s of %s %s%s", f.Path, overlay(f), what, by)
	})
	return nil
}

// short is the first twelve digits of a digest.
func short(digest string) string {
	algorithm, hex, ok := strings.Cut(digest, ":")
	if !ok || len(hex) < 12 {
		return digest
	}
	return algorithm + ":" + hex[:12]
}

func filesRights(h *held) error {
	h.eachLaid(func(f expect.File, e tree.Entry, there bool) {
		if !there || string(e.Type) != f.Type {
			return
		}
		if e.Mode != f.Mode && e.Type != image.TypeSymlink {
			h.foundIn(f.Source, f.Path, h.at(f.Path), "%s has mode %04o instead of %04o", f.Path, e.Mode, f.Mode)
		}
		if e.UID != f.UID || e.GID != f.GID {
			h.foundIn(f.Source, f.Path, h.at(f.Path), "%s belongs to %d:%d instead of %d:%d", f.Path, e.UID, e.GID, f.UID, f.GID)
		}
		if len(e.Xattrs) > 0 {
			h.foundIn(f.Source, f.Path, h.at(f.Path), "%s has the extended attributes %s", f.Path, list(sortedKeys(e.Xattrs)))
		}
	})
	return nil
}

func fileDirectories(h *held) error {
	told := map[string]bool{}
	h.eachLaid(func(f expect.File, _ tree.Entry, _ bool) {
		if f.UID != 0 {
			return
		}
		for _, dir := range image.Parents(f.Path) {
			e, ok := h.Files.Lookup(dir)
			if !ok || told[dir] {
				continue
			}
			if who := h.mayWrite(e); who != "" && e.Mode&0o1000 == 0 {
				told[dir] = true
				h.found(dir, h.at(dir), "%s may write %s, where %s lies", who, dir, f.Path)
			}
		}
	})
	return nil
}

var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

func fileArchitectures(h *held) error {
	want, ok := machines[h.Platform.Architecture]
	if !ok {
		h.found(h.Platform.Architecture, nil, "the architecture %q is none that the payload has programs for", h.Platform.Architecture)
		return nil
	}
	h.eachLaid(func(f expect.File, e tree.Entry, there bool) {
		if there && f.Machine != "" && e.Digest.String() == f.SHA256 && f.Machine != want.String() {
			h.found(f.Path, h.at(f.Path), "%s is a program for %s in an image for %s", f.Path, f.Machine, h.Platform.Architecture)
		}
	})
	programs, err := h.programs()
	if err != nil {
		return err
	}
	for _, p := range sortedKeys(programs) {
		data := programs[p]
		if !bytes.HasPrefix(data, []byte(elf.ELFMAG)) {
			continue // a script
		}
		machine, err := machineOf(data)
		switch {
		case err != nil:
			h.found(p, h.at(p), "%s is a broken ELF file: %v", p, err)
		case machine != want:
			h.found(p, h.at(p), "%s is a program for %s in an image for %s", p, machine, h.Platform.Architecture)
		}
	}
	return nil
}

// machineOf reads an ELF header: 64 bit, e_machine at byte 18 in the byte order of byte 5 (System V ABI, chapter 4).
func machineOf(data []byte) (elf.Machine, error) {
	if len(data) < 20 {
		return 0, fmt.Errorf("%d bytes", len(data))
	}
	if elf.Class(data[elf.EI_CLASS]) != elf.ELFCLASS64 {
		return 0, fmt.Errorf("it is of %s", elf.Class(data[elf.EI_CLASS]))
	}
	if elf.Data(data[elf.EI_DATA]) != elf.ELFDATA2LSB {
		return 0, fmt.Errorf("its byte order is %s", elf.Data(data[elf.EI_DATA]))
	}
	return elf.Machine(uint16(data[18]) | uint16(data[19])<<8), nil
}

// unchecked says what could not be looked at, and why.
func (h *held) unchecked(format string, args ...any) {
	h.report.Unchecked = append(h.report.Unchecked, platformOf(h.Image)+": "+fmt.Sprintf(format, args...))
}

// programs reads the laid files that can be executed, but those that are as they were laid and whose machine is known.
func (h *held) programs() (map[string][]byte, error) {
	if h.contents != nil {
		return h.contents, nil
	}
	var paths []string
	h.eachLaid(func(f expect.File, e tree.Entry, there bool) {
		switch {
		case !there || e.Type != image.TypeFile || f.Mode&0o111 == 0 && e.Mode&0o111 == 0:
		case f.Machine != "" && e.Digest.String() == f.SHA256: // known without reading it
		case e.Digest == (tree.Digest{}):
			h.unchecked("the architecture of %s, whose layer was not read", f.Path)
		case e.Size > tree.MaxRead:
			h.unchecked("the architecture of %s, which has %d bytes", f.Path, e.Size)
		default:
			paths = append(paths, f.Path)
		}
	})
	var err error
	h.contents, err = h.read(paths)
	return h.contents, err
}

// payloadRoot is the directory that all regular files of the payload lie in; empty when there is none of their own.
func (h *held) payloadRoot() string {
	root := ""
	for _, p := range sortedKeys(h.laid) {
		f := h.laid[p]
		if f.Overlay != "payload" || f.Type != string(image.TypeFile) {
			continue
		}
		if root == "" {
			root = path.Dir(p)
		}
		for !image.Within(p, root) {
			root = path.Dir(root)
		}
	}
	if strings.Count(root, "/") < 2 {
		return ""
	}
	return root
}

func filesExtra(h *held) error {
	root := h.payloadRoot()
	if root == "" {
		return nil
	}
	parents := map[string]bool{}
	for p := range h.laid {
		for _, dir := range image.Parents(p) {
			parents[dir] = true
		}
	}
	for _, e := range h.below(root) {
		if _, laid := h.laid[e.Path]; !laid && (!e.IsDir() || !parents[e.Path]) {
			h.found(e.Path, h.at(e.Path), "%s lies among the payload's files", e.Path)
		}
	}
	return nil
}

// toolPolicy has agent_browser.search_path, by default what server/policy has.
const toolPolicy = "/etc/agent-browser/browser-shell.policy.json"

func payloadNode(h *held) error {
	daemon := path.Join(h.payloadRoot(), "dist/daemon.js")
	_, needed := h.laid[daemon]
	if !needed || slices.ContainsFunc(h.Files.Layers, func(l tree.Layer) bool { return l.Unread }) {
		return nil // of an unread layer another rule tells
	}
	var policy struct {
		AgentBrowser struct {
			SearchPath string `json:"search_path"`
		} `json:"agent_browser"`
	}
	if e, ok := h.Files.Stat(toolPolicy); ok && e.Type == image.TypeFile && e.Size <= tree.MaxRead {
		contents, err := h.read([]string{toolPolicy})
		if err != nil {
			return err
		}
		_ = json.Unmarshal(contents[toolPolicy], &policy) // a broken one has the default here; the image says so at its start
	}
	search := cmp.Or(policy.AgentBrowser.SearchPath, "/usr/local/bin:/usr/bin:/bin")
	for dir := range strings.SplitSeq(search, ":") {
		p := image.Clean(dir + "/node")
		e, ok := h.Files.Stat(p)
		if !ok || e.Type != image.TypeFile || e.Mode&0o001 == 0 || !h.entered(p) || !h.entered(e.Path) {
			continue // as execvp(3) does
		}
		if e.Layer < len(h.want.Base.Layers) || e.Size > tree.MaxRead {
			return nil // a base's own is of the base's architecture
		}
		contents, err := h.read([]string{e.Path})
		if err != nil {
			return err
		}
		if bytes.HasPrefix(contents[e.Path], []byte("#!")) {
			return nil // a wrapper
		}
		if m, err := machineOf(contents[e.Path]); err != nil || m != machines[h.Platform.Architecture] {
			h.found(p, h.at(e.Path), "%s, which %s is run by, is no program for %s", e.Path, daemon, h.Platform.Architecture)
		}
		return nil
	}
	h.found("node", h.at(daemon), "%s needs node, and there is none that the tool's account may run in %s", daemon, search)
	return nil
}

// entered reports whether everybody may enter the directories above a path.
func (h *held) entered(p string) bool {
	return !slices.ContainsFunc(image.Parents(p), func(dir string) bool {
		e, ok := h.Files.Stat(dir)
		return ok && e.Mode&0o001 == 0
	})
}

func filesRemoved(h *held) error {
	kept := map[string]bool{} // directories on the way to a laid file
	for p := range h.laid {
		for _, dir := range image.Parents(p) {
			kept[dir] = true
		}
	}
	for _, r := range h.want.Removed {
		paths, err := h.glob(r.Glob)
		if err != nil {
			return fmt.Errorf("%s: %w", r.Source, err)
		}
		for _, p := range paths {
			if matchesAny(r.Except, p) {
				continue
			}
			e, _ := h.Files.Lookup(p)
			for _, e := range append([]tree.Entry{e}, h.below(p)...) {
				if _, laid := h.laid[e.Path]; !laid && (!e.IsDir() || !kept[e.Path]) {
					h.foundIn(r.Source, e.Path, h.at(e.Path), "%s is there, and the profile removes %s: %s", e.Path, r.Glob, r.Why)
				}
			}
		}
	}
	return nil
}

func filesClosed(h *held) error {
	named := map[string]bool{} // laid, or a directory on the way to what is
	for p := range h.laid {
		named[p] = true
		for _, dir := range image.Parents(p) {
			named[dir] = true
		}
	}
	for _, c := range h.want.Closed {
		paths, err := h.glob(c.Glob)
		if err != nil {
			return fmt.Errorf("%s: %w", c.Source, err)
		}
		for _, p := range paths {
			if !named[p] && !matchesAny(c.Allow, p) {
				h.foundIn(c.Source, p, h.at(p), "%s is there, and the profile closes %s: %s", p, c.Glob, c.Why)
			}
		}
	}
	return nil
}
