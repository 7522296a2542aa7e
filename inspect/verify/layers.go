package verify

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect/expect"
)

const (
	baseDigest = image.AnnotationBaseDigest
	baseName   = image.AnnotationBaseName
)

// BaseKnown is the rule that the base is known.
const BaseKnown = "base-known"

var layerRules = []rule{
	{Rule: Rule{
		ID: "base-layers", Title: "The lowest layers are the base's", Severity: Error,
		Why: "What an image is made from cannot be told by its annotations: whoever publishes it writes them. Layers have digests.",
		Fix: "Build again from the base that the lock names.",
	}, each: baseLayers},
	{Rule: Rule{
		ID: BaseKnown, Title: "The base is known", Severity: Warning,
		Why: "Without it nobody can tell the base's layers from somebody's: a program in one of them takes the place of nginx or the browser, and nothing else is to be seen of it. An image does not pass before it was compared with its base.",
		Fix: "Name the base with --base IMAGE, or the lock that pins it with --lock FILE.",
	}, each: func(h *held) error {
		if len(h.want.Base.Layers) == 0 {
			h.found("base", nil, "the base is not known: its programs and libraries were taken as they are")
		}
		return nil
	}},
	{Rule: Rule{
		ID: "base-annotation", Title: "The annotations name the base", Severity: Error,
		Why: "Scanners and people look up by them what an image must be rebuilt for; a wrong one hides a base with known holes.",
		Fix: "Build again; slimctl writes the annotations.",
	}, each: baseAnnotations, all: indexAnnotations},
	{Rule: Rule{
		ID: "annotation", Title: "Annotations only describe the image", Severity: Error,
		Why: "Runtimes act on annotations of the manifest: with some of them another runtime, a systemd property or all privileges come with the image (run.oci.handler, org.systemd.property, io.podman.annotations.privileged).",
		Fix: "Build again without it. One of your own, of build --annotation x=y, is accepted by verify --annotation x=y.",
	}, each: annotationsKnown, all: indexAnnotationsKnown},
	{Rule: Rule{
		ID: "layer-foreign", Title: "Layers above the base hold what the profile lays and removes", Severity: Error,
		Why: "A layer that slimctl did not make can replace any program of the base under its own name: nginx, Node, a library that all of them load. With the base known, each layer is one that a build makes: all removals in one, then one for each overlay.",
		Fix: "Give verify the --profile, --set and --allow-host that built the image; else build again, and add what is needed to the profile.",
	}, each: layersForeign},
	{Rule: Rule{
		ID: "layer-archive", Title: "Every program that unpacks a layer above the base finds the same in it", Severity: Error,
		Why: "The archive of a layer can be made so that one program lays other files than the next: a path that is there twice, headers of which one counts, something behind the end. What was verified is what slimctl, containerd and Docker read. Of the base's layers it is told by not-understood.",
		Fix: "Build again; the archives of a build have none of it.",
	}, each: layersOdd},
	{Rule: Rule{
		ID: "manifest", Title: "Manifest and index say what a build's say", Severity: Error,
		Why: "Programs go by the media types: what one of them unpacks another passes over or takes for an artifact. A subject attaches the image to another, and data in the manifest stands for a blob that nobody looked at.",
		Fix: "Publish the image as it was built, its layers compressed by gzip.",
	}, each: manifestBuilt, all: indexBuilt},
	{Rule: Rule{
		ID: "layer-annotation", Title: "Nothing but a layer's archive says what is in it", Severity: Error,
		Why: "What pulls lazily (stargz, zstd:chunked, overlaybd, nydus) takes a layer's files by an index that an annotation names, and may find others there than the archive has, which was verified. An URL has a layer come from elsewhere.",
		Fix: "Publish the image as it was built.",
	}, each: layersAnnotated},
	{Rule: Rule{
		ID: "layer-unread", Title: "Every layer was read", Severity: Warning,
		Why: "Nothing is known of what is in a layer that was not read.",
		Fix: "Verify without leaving layers out.",
	}, each: layersUnread},
}

// above is the position of the lowest layer that is not the base's. Where nothing tells which those are, it is the lowest
// one with a laid file, or the one below that if it removes something that the profile does, and sure is false.
func (h *held) above() (n int, sure bool) {
	if !h.counted {
		h.counted = true
		h.first, h.sure = h.lowest()
	}
	return h.first, h.sure
}

func (h *held) lowest() (n int, sure bool) {
	if want := h.want.Base.Layers; len(want) > 0 && h.onBase() {
		return len(want), true
	}
	for i := range h.Files.Layers {
		for _, e := range h.Files.Layers[i].Entries {
			if f, laid := h.laid[e.Path]; laid && f.SHA256 != "" && f.Size > 0 && e.Digest.String() == f.SHA256 {
				if i > 0 && h.removes(i-1) {
					i--
				}
				return i, false
			}
		}
	}
	return len(h.Files.Layers), false
}

// removes reports whether a layer removes something that the profile does: a build removes all in one layer, below those that
// it lays.
func (h *held) removes(layer int) bool {
	removed := h.removals()
	return slices.ContainsFunc(h.Files.Layers[layer].Entries, func(e tree.Entry) bool {
		return e.Type == tree.TypeWhiteout && removed.of(e.Path)
	})
}

// onBase says whether the image's lowest layers are the base's.
func (h *held) onBase() bool {
	want := h.want.Base.Layers
	if len(want) > len(h.Files.Layers) {
		return false
	}
	for i, d := range want {
		if h.Files.Layers[i].DiffID.String() != d {
			return false
		}
	}
	return true
}

func baseLayers(h *held) error {
	want := h.want.Base.Layers
	if len(want) == 0 {
		h.unchecked("whether the lowest layers are the base's, which are not known: programs and libraries of the base are taken as they are")
		return nil
	}
	if h.onBase() {
		return nil
	}
	for i, d := range want {
		if i >= len(h.Files.Layers) {
			h.found("", nil, "the image has %d layers, its base %d", len(h.Files.Layers), len(want))
			return nil
		}
		if l := h.Files.Layers[i]; l.DiffID.String() != d {
			h.found(fmt.Sprintf("layer %d", i+1), []tree.Place{{Path: "/", Layer: l.Digest.String()}}, "%s is not the base's: its content is %s instead of %s", h.layer(i), short(l.DiffID.String()), short(d))
			return nil // those above it are no news
		}
	}
	return nil
}

// annotated compares one set of annotations.
func (k *checker) annotated(have map[string]string, want expect.Base, where string, tell func(what, format string, args ...any)) {
	for _, a := range []struct{ key, want string }{{baseDigest, want.Digest}, {baseName, want.Name}} {
		switch value, ok := have[a.key]; {
		case a.want != "" && !ok:
			tell(a.key, "%s lacks the annotation %s; it should be %s", where, a.key, a.want)
		case a.want != "" && value != a.want:
			tell(a.key, "%s has %s=%s; it should be %s", where, a.key, value, a.want)
		case a.key == baseDigest && !ok:
			tell(a.key, "%s lacks the annotation %s", where, a.key)
		}
	}
}

func baseAnnotations(h *held) error {
	h.annotated(h.Annotations, h.want.Base, "the manifest", func(what, format string, args ...any) { h.found(what, nil, format, args...) })
	return nil
}

func indexAnnotations(k *checker) error {
	if len(k.held) == 0 || len(k.in.Images) == 1 && k.in.Annotations == nil {
		return nil
	}
	k.annotated(k.in.Annotations, k.held[0].want.Base, "the index", func(what, format string, args ...any) {
		k.add(Finding{Subject: what, Message: fmt.Sprintf(format, args...)})
	})
	return nil
}

// undescribed are the annotations that do more than describe the image, and that the build was not told.
func undescribed(have, told map[string]string) []string {
	var out []string
	for _, key := range sortedKeys(have) {
		if value, ok := told[key]; !strings.HasPrefix(key, ociLabel) && (!ok || value != have[key]) {
			out = append(out, key)
		}
	}
	return out
}

func annotationsKnown(h *held) error {
	for _, key := range undescribed(h.Annotations, h.want.Annotations) {
		h.found(cut(key), nil, "the manifest has the annotation %s=%s, which a build does not write", cut(key), cut(h.Annotations[key]))
	}
	return nil
}

func indexAnnotationsKnown(k *checker) error {
	if len(k.held) == 0 {
		return nil
	}
	for _, key := range undescribed(k.in.Annotations, k.held[0].want.IndexAnnotations) {
		k.add(Finding{
			Subject: cut(key),
			Message: fmt.Sprintf("the index has the annotation %s=%s, which a build does not write", cut(key), cut(k.in.Annotations[key])),
		})
	}
	return nil
}

func layersForeign(h *held) error {
	first, sure := h.above()
	if !sure {
		h.unchecked("what the lowest %d layers hold besides what other rules name", first)
	}
	parents := map[string]bool{} // of what is laid or removed
	for p := range h.laid {
		for _, dir := range image.Parents(p) {
			parents[dir] = true
		}
	}
	planned := sure && h.want.Base.Above != nil
	if n, want := len(h.Files.Layers)-first, len(h.want.Base.Above); planned && n != want {
		h.found("layers", nil, "the image has %d layers above the base's; a build makes %d", n, want)
		planned = false
	}
	removed := h.removals()
	var dirs []tree.Entry
	for i := first; i < len(h.Files.Layers); i++ {
		by, of := h.layer(i), ""
		if planned {
			of = h.want.Base.Above[i-first]
		}
		for _, e := range h.Files.Layers[i].Entries {
			if h.full() {
				return nil
			}
			e.Layer = i
			f, laid := h.laid[e.Path]
			at := []tree.Place{{Path: e.Path, Layer: h.Files.Layers[i].Digest.String()}}
			switch {
			case e.Type == tree.TypeOpaque:
				h.found(e.Path, at, "%s hides all that was in %s", by, e.Path)
			case e.Type == tree.TypeWhiteout:
				switch {
				case removed.of(e.Path) && of == "", laid && !planned, !planned && h.privilegedBelow(e.Path, i):
				case removed.of(e.Path):
					h.found(e.Path, at, "%s removes %s; it is the layer of the overlay %s, and a build removes in another", by, e.Path, of)
				default:
					h.found(e.Path, at, "%s removes %s, and the profile does not", by, e.Path)
				}
			case laid && planned && f.Overlay != of && f.Type != string(image.TypeDir):
				h.found(e.Path, at, "%s brings %s, which a build lays in the layer of the overlay %s", by, e.Path, f.Overlay)
			case laid && string(e.Type) == f.Type && (f.SHA256 == "" || e.Digest.String() == f.SHA256) && e.Link == f.Link:
			case laid:
				h.found(e.Path, at, "%s has another %s than the one that is laid", by, e.Path)
			case e.IsDir():
				dirs = append(dirs, e)
			default:
				h.found(e.Path, at, "%s brings %s, which the profile does not lay", by, e.Path)
			}
		}
	}
	h.directories(dirs, first, parents)
	return nil
}

// removals are the profile's, written out: by path where there is no pattern, with what each excepts.
type removals struct {
	paths map[string][]string
	globs map[string][]string
}

func (h *held) removals() removals {
	r := removals{map[string][]string{}, map[string][]string{}}
	for _, d := range h.want.Removed {
		for _, g := range braces(d.Glob) {
			for _, g := range []string{g, h.real(g)} {
				if strings.ContainsAny(g, `*?[{\`) {
					r.globs[g] = d.Except
				} else {
					r.paths[g] = d.Except
				}
			}
		}
	}
	for _, c := range h.want.Closed {
		r.paths[strings.TrimSuffix(c.Glob, "/**")] = nil
	}
	return r
}

// privilegedBelow reports whether a layer below layer n has a file with setuid, setgid or capabilities at p: those go by rule.
func (h *held) privilegedBelow(p string, n int) bool {
	for _, l := range h.Files.Layers[:n] {
		for i := range l.Entries {
			if e := &l.Entries[i]; e.Path == p && !e.IsDir() {
				if mode, capability := h.Files.Rights(e); mode&0o6000 != 0 || capability != "" {
					return true
				}
			}
		}
	}
	return false
}

// of says whether the profile removes p, or a directory above it.
func (r removals) of(p string) bool {
	for _, at := range append(image.Parents(p), p) {
		if except, ok := r.paths[at]; ok && !matchesAny(except, p) {
			return true
		}
		for g, except := range r.globs {
			if strings.HasPrefix(at, fixed(g)) && matchesAny([]string{g}, at) && !matchesAny(except, p) {
				return true
			}
		}
	}
	return false
}

// directories holds those that layers above the base bring only to put something in them against what the base has there.
func (h *held) directories(dirs []tree.Entry, first int, parents map[string]bool) {
	base := map[string]tree.Entry{}
	for _, e := range dirs {
		base[e.Path] = tree.Entry{Layer: -1}
	}
	hidden := map[string]int{} // by directory, the last layer that hides what is in it, counted from 1
	for i := range h.Files.Layers[:first] {
		for _, e := range h.Files.Layers[i].Entries { // a whiteout comes before what has the same path
			_, asked := base[e.Path]
			switch {
			case e.Type == tree.TypeOpaque:
				hidden[e.Path] = i + 1
			case e.Type == tree.TypeWhiteout:
				hidden[e.Path] = i + 1
				if asked {
					base[e.Path] = tree.Entry{Layer: -1}
				}
			case asked:
				e.Layer = i
				base[e.Path] = e
			}
		}
	}
	for p, e := range base {
		for _, at := range image.Parents(p) {
			if hidden[at] > e.Layer+1 {
				base[p] = tree.Entry{Layer: -1}
			}
		}
	}
	if slices.ContainsFunc(h.Files.Layers[:first], func(l tree.Layer) bool { return l.Unread }) {
		for p, e := range base {
			if d, ok := h.want.Base.Dirs[p]; ok && e.Layer < 0 {
				e = tree.Entry{Entry: image.Dir(p, d.Mode).Entry}
				e.UID, e.GID = d.UID, d.GID
				base[p] = e
			}
		}
	}
	for _, e := range dirs {
		at := []tree.Place{{Path: e.Path, Layer: h.Files.Layers[e.Layer].Digest.String()}}
		was, by := base[e.Path], h.layer(e.Layer)
		switch {
		case e.Path == "/" && was.Layer < 0:
			was = tree.Entry{Entry: image.Dir("/", 0o755).Entry}
		case was.Layer < 0 && !parents[e.Path]:
			h.found(e.Path, at, "%s brings the directory %s, which the profile does not lay", by, e.Path)
			continue
		case was.Layer < 0:
			was = tree.Entry{Entry: image.Dir(e.Path, 0o755).Entry}
		}
		switch {
		case !was.IsDir():
			h.found(e.Path, at, "%s makes %s, a %s of the base, a directory", by, e.Path, was.Type)
		case e.Mode != was.Mode || e.UID != was.UID || e.GID != was.GID:
			h.found(e.Path, at, "%s gives %s mode %04o and owner %d:%d; it had %04o and %d:%d", by, e.Path, e.Mode, e.UID, e.GID, was.Mode, was.UID, was.GID)
		case !sameXattrs(e.Xattrs, was.Xattrs):
			h.found(e.Path, at, "%s changes the extended attributes of %s", by, e.Path)
		}
	}
}

func sameXattrs(a, b image.Xattrs) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, ok := b[k]; !ok || v != w {
			return false
		}
	}
	return true
}

// rewrittenTimestamp is what BuildKit's exporter writes, with rewrite-timestamp=true, to each layer whose times it changed:
// the time in seconds since 1970. Nothing acts on it but BuildKit itself, which then need not do so again.
const rewrittenTimestamp = "buildkit/rewritten-timestamp"

// isSeconds reports whether s is a number of seconds as BuildKit writes it.
func isSeconds(s string) bool {
	n, err := strconv.ParseInt(s, 10, 64)
	return err == nil && n >= 0 && strconv.FormatInt(n, 10) == s
}

// layersAnnotated holds a layer of the base to the annotations that a build keeps of it, and lets one above it have that of
// BuildKit's exporter.
func layersAnnotated(h *held) error {
	first, sure := h.above()
	for i, l := range h.Files.Layers {
		want := map[string]string{}
		switch value := l.Annotations[rewrittenTimestamp]; {
		case i < first && sure && i < len(h.want.Base.Manifest):
			want = h.want.Base.Manifest[i].Annotations
		case i < first && !sure:
			want = image.KeptAnnotations(l.Annotations)
		case i >= first && isSeconds(value):
			want[rewrittenTimestamp] = value
		}
		at := []tree.Place{{Path: "/", Layer: l.Digest.String()}}
		for _, key := range union(l.Annotations, want) {
			switch is, ok := want[key]; {
			case !ok || l.Annotations[key] != is && l.Annotations[key] != "":
				h.found(fmt.Sprintf("layer %d", i+1), at, "%s has the annotation %s=%s", h.layer(i), cut(key), cut(l.Annotations[key]))
			case l.Annotations[key] != is:
				h.found(fmt.Sprintf("layer %d", i+1), at, "%s lacks the annotation %s=%s", h.layer(i), cut(key), cut(is))
			}
		}
		if len(l.URLs) > 0 {
			h.found(fmt.Sprintf("layer %d", i+1), at, "%s is to come from %s", h.layer(i), cut(list(l.URLs)))
		}
	}
	return nil
}

func layersOdd(h *held) error {
	first, _ := h.above()
	for i := first; i < len(h.Files.Layers); i++ {
		l := &h.Files.Layers[i]
		for _, n := range l.Notes(i) {
			h.found(n.Place.Path, []tree.Place{n.Place}, "%s", n.Text)
		}
		if l.Foreign != "" {
			h.found(fmt.Sprintf("layer %d", i+1), []tree.Place{{Path: "/", Layer: l.Digest.String()}}, "%s is not written as a build writes it: %s", h.layer(i), l.Foreign)
		}
	}
	return nil
}

func layersUnread(h *held) error {
	for i, l := range h.Files.Layers {
		if l.Unread {
			h.unchecked("%s, which was not read", h.layer(i))
			h.found(fmt.Sprintf("layer %d", i+1), []tree.Place{{Path: "/", Layer: l.Digest.String()}}, "%s was not read", h.layer(i))
		}
	}
	return nil
}
