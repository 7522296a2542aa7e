package verify

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"

	"github.com/aymanbagabas/go-udiff/lcs"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/diff"
)

// Want is the image that the profile makes from its base. An identical image is proven.
type Want struct {
	// Index is the index that a build writes. It is nil for an image of one platform, and if only some of the profile's
	// platforms were requested.
	Index []byte
	// Annotations are those of the index.
	Annotations map[string]string
	// Images maps platforms, as os/arch, to images: manifest, config and files. Layers common to both images may be
	// unread.
	Images map[string]*inspect.Image
	// Ledgers maps platforms to the digest of the image's ledger; an image with its base's own layers has none.
	Ledgers map[string]string
	// SameTree accepts different layers, as from a Dockerfile: only the merged tree and the image config must be equal.
	SameTree bool
}

// Kinds of Report.Proven.
const (
	ByDigest = "digest" // every manifest equals the profile's byte for byte
	ByTree   = "tree"   // Want.SameTree: tree and config equal the profile's
)

// The rules of a comparison. The rule platform belongs to them, but is also checked without a comparison.
var (
	indexRule = Rule{
		ID: "index", Title: "The index is the one that the profile gives", Severity: Error,
		Why: "Programs choose the image by the index: another media type, a URL, data in an entry or a key that one of them knows leads to something that nobody verified.",
		Fix: "Publish the index as it was built.",
	}
	manifestRule = Rule{
		ID: "manifest", Title: "The manifest is the one that the profile gives", Severity: Error,
		Why: "Programs go by the media types: what one of them unpacks another passes over or takes for an artifact. A subject attaches the image to another, data stands for a blob that nobody looked at, and a URL has a layer come from elsewhere.",
		Fix: "Publish the image as it was built, its layers compressed by gzip, or by zstd if the profile says so.",
	}
	annotationRule = Rule{
		ID: "annotation", Title: "The annotations are those of the build", Severity: Error,
		Why: "Runtimes act on annotations: with some of them another runtime, a systemd property or all privileges come with the image (run.oci.handler, org.systemd.property, io.podman.annotations.privileged). Scanners look the base up by them.",
		Fix: "Build again without it. One of your own, of build --annotation x=y, is accepted by verify --annotation x=y.",
	}
	configRule = Rule{
		ID: "config", Title: "The image config is the one that the profile gives", Severity: Error,
		Why: "Variables, user, directory, ports, volumes, labels and health check are what a container starts with, and what machines act on: a label has an editor start it with all privileges.",
		Fix: "Give verify the --profile and --set that built the image; else build again. A label of your own, of build --label x=y, is accepted by verify --set config.labels.x=y; write config.labels.\"a.b\"=y for a name with dots.",
	}
	historyRule = Rule{
		ID: "history", Title: "The history is the base's and the build's", Severity: Error,
		Why: "People and scanners read from it what made a layer; a wrong one gives a layer another maker.",
		Fix: "Build again.",
	}
	baseLayerRule = Rule{
		ID: "base-layer", Title: "The lowest layers are the base's", Severity: Error,
		Why: "What an image is made from cannot be told by its annotations: whoever publishes it writes them. Layers have digests.",
		Fix: "Name the base that the image was built from with --base or --lock; else build again from the base that the lock names.",
	}
	layerRule = Rule{
		ID: "layer", Title: "The layers above the base are those that the profile gives", Severity: Error,
		Why: "A layer that the profile does not give can replace any program of the base under its own name: nginx, Node, a library that all of them load. One that holds the same and is written otherwise may be unpacked otherwise.",
		Fix: "Give verify the --profile, --set and --allow-host that built the image; else build again. verify --same tree accepts other layers that hold the same.",
	}
	ledgerRule = Rule{
		ID: "ledger", Title: "The ledger beside the image is the one that the profile gives", Severity: Error,
		Why: "Slimctl why and diff answer from the ledger. Anyone who may push to the repository can attach one that explains away what the image has, or lacks.",
		Fix: "Remove it from the registry, or publish the image under another name.",
	}
	fileRule = Rule{
		ID: "file", Title: "Every file is the one that the profile gives", Severity: Error, Holes: []string{"j"},
		Why: "A changed browser-shell, policy or supervisord.conf is another product under the same name; one file more may be read by any program, and one less opens what it closed.",
		Fix: "Give verify the --profile, --set and --allow-host that built the image; else build again.",
	}
)

// comparison compares the images of one run of Check with Want.
type comparison struct {
	*checker
	want *Want
	n    int // differences so far
}

// compare runs the rules of a comparison, and sets Report.Proven.
func (k *checker) compare(want *Want) error {
	c := &comparison{checker: k, want: want}
	if err := c.compareIndex(); err != nil {
		return err
	}
	same := true // all manifests are equal
	for _, h := range k.held {
		p := &pair{comparison: c, have: h, want: want.Images[platformOf(h.Image)]}
		if p.want == nil {
			return fmt.Errorf("there is no other image for %s to compare with", platformOf(h.Image))
		}
		if bytes.Equal(p.have.RawManifest, p.want.RawManifest) {
			continue
		}
		same = false
		if err := p.compare(); err != nil {
			return fmt.Errorf("%s: %w", platformOf(h.Image), err)
		}
	}
	c.compareLedgers()
	for _, r := range compareRules {
		k.rule = r.Rule
		k.report.Rules = append(k.report.Rules, r.ID)
		k.addCounted()
	}
	switch {
	case c.n > 0 || len(k.held) == 0:
	case same:
		k.report.Proven = ByDigest
	case want.SameTree:
		k.report.Proven = ByTree
	}
	return nil
}

// compareLedgers compares the ledgers that refer to the images. They aren't part of the image, so they don't affect
// Proven.
func (c *comparison) compareLedgers() {
	for _, h := range c.held {
		platform := platformOf(h.Image)
		want := c.want.Ledgers[platform]
		for _, have := range c.in.Ledgers[platform] {
			if have == want {
				continue
			}
			c.rule = ledgerRule
			c.addFinding(Finding{Platform: platform, Subject: have, Message: fmt.Sprintf("the ledger %s refers to the image; a build gives %s", have, cmp.Or(want, "none"))})
		}
	}
}

// addDifference adds a difference, a finding of a rule.
func (c *comparison) addDifference(r Rule, f Finding, format string, args ...any) {
	c.n++
	c.rule, f.Message = r, fmt.Sprintf(format, args...)
	c.addFinding(f)
}

// compareIndex compares the index. The rule platform finds missing and additional platforms, and false attestations.
func (c *comparison) compareIndex() error {
	if c.in.Index == nil || bytes.Equal(c.in.Index, c.want.Index) {
		return nil
	}
	have, err := image.Object(c.in.Index)
	if err != nil {
		c.addDifference(indexRule, Finding{}, "the index can't be read in one way only: %v", err)
		return nil
	}
	docker := c.want.SameTree && have["mediaType"] == string(types.DockerManifestList)
	tell := func(where string) func(key string, have, want any) {
		return func(key string, have, want any) {
			c.addDifference(indexRule, Finding{Subject: where + key}, "%s of the index is %s; a build writes %s", where+key, written(have), written(want))
		}
	}
	before := c.n
	different(have, map[string]any{
		"schemaVersion": json.Number("2"), "mediaType": mediaType(docker, string(types.OCIImageIndex)),
		"manifests": have["manifests"], "annotations": have["annotations"],
	}, tell(""))
	c.compareAnnotations("the index", "", docker, object(have["annotations"]), stringValues(c.want.Annotations))
	entries, _ := have["manifests"].([]any)
	extra := false
	for i, e := range entries {
		e := object(e)
		platform := object(e["platform"])
		name := fmt.Sprintf("%v/%v", platform["os"], platform["architecture"])
		img := c.want.Images[name]
		if img == nil {
			extra = true
			if platform["os"] == "unknown" { // an attestation; see (*image.Source).Ignored
				different(e, map[string]any{
					"mediaType": e["mediaType"], "digest": e["digest"], "size": e["size"], "annotations": e["annotations"], "artifactType": e["artifactType"],
					"platform": map[string]any{"os": "unknown", "architecture": "unknown"},
				}, tell(fmt.Sprintf("manifests[%d].", i)))
			}
			continue
		}
		different(e, map[string]any{
			"mediaType": mediaType(docker, string(types.OCIManifestSchema1)), "digest": e["digest"], "size": e["size"],
			"platform": map[string]any{"os": img.Platform.OS, "architecture": img.Platform.Architecture},
		}, tell(fmt.Sprintf("manifests[%d].", i)))
	}
	if c.want.Index == nil || extra || c.want.SameTree || c.n > before {
		return nil
	}
	for _, h := range c.held {
		if want := c.want.Images[platformOf(h.Image)]; want == nil || !bytes.Equal(h.RawManifest, want.RawManifest) {
			return nil // reported for the image
		}
	}
	c.addDifference(indexRule, Finding{}, "the index says what a build's says, and is written otherwise")
	return nil
}

// compareAnnotations compares those of an index or a manifest. With SameTree, additional annotations that describe an
// image to people are accepted. All may be missing where there is no place for them: in a document of Docker's own
// media type (docker is true) and in an image that Docker stored.
func (c *comparison) compareAnnotations(of, platform string, docker bool, have, want map[string]any) {
	none := len(have) == 0 && c.want.SameTree && (docker || c.in.FromDocker)
	for _, key := range union(have, want) {
		a, is := have[key]
		b, was := want[key]
		f := Finding{Platform: platform, Subject: cut(key)}
		switch {
		case is && was && reflect.DeepEqual(a, b), c.want.SameTree && strings.HasPrefix(key, describes) && key != image.AnnotationBaseDigest && key != image.AnnotationBaseName:
		case none:
		case !is && key == image.AnnotationBaseName:
			c.addDifference(annotationRule, f, "%s lacks the annotation %s=%s: it was built with another --base; pass that one", of, cut(key), cutAny(b))
		case !is:
			c.addDifference(annotationRule, f, "%s lacks the annotation %s=%s", of, cut(key), cutAny(b))
		case !was:
			c.addDifference(annotationRule, f, "%s has the annotation %s=%s, which the build was not told", of, cut(key), cutAny(a))
		default:
			c.addDifference(annotationRule, f, "%s has the annotation %s=%s; it should be %s", of, cut(key), cutAny(a), cutAny(b))
		}
	}
}

// describes lists prefixes of annotations and labels that describe an image to people (OCI image specification,
// annotations.md).
const describes = "org.opencontainers.image."

func stringValues(m map[string]string) map[string]any {
	out := map[string]any{}
	for k, v := range m {
		out[k] = v
	}
	return out
}

func cutAny(v any) string {
	if s, ok := v.(string); ok {
		return cut(s)
	}
	return written(v)
}

// pair is an image and its expected image.
type pair struct {
	*comparison
	have *held
	want *inspect.Image
}

func (p *pair) addDifference(r Rule, f Finding, format string, args ...any) {
	f.Platform = platformOf(p.have.Image)
	p.comparison.addDifference(r, f, format, args...)
}

// compare compares manifest, config and layers, in this order.
func (p *pair) compare() error {
	before := p.n
	want, err := image.Object(p.want.RawManifest)
	if err != nil {
		return fmt.Errorf("the manifest to compare with: %w", err)
	}
	have, err := image.Object(p.have.RawManifest)
	if err != nil {
		p.addDifference(manifestRule, Finding{}, "the manifest can't be read in one way only: %v", err)
		return nil
	}
	docker := p.comparison.want.SameTree && have["mediaType"] == string(types.DockerManifestSchema2)
	config, wantConfig := object(have["config"]), object(want["config"])
	p.compareDocument("", have, map[string]any{
		"schemaVersion": want["schemaVersion"], "mediaType": mediaType(docker, string(types.OCIManifestSchema1)),
		"annotations": have["annotations"], "layers": have["layers"], "config": have["config"],
	})
	p.compareDocument("config.", config, map[string]any{
		"mediaType": mediaType(docker, string(types.OCIConfigJSON)), "digest": config["digest"], "size": config["size"],
	})
	p.compareAnnotations("the manifest", platformOf(p.have.Image), docker, object(have["annotations"]), object(want["annotations"]))
	if config["digest"] != wantConfig["digest"] {
		if err := p.compareConfig(); err != nil {
			return err
		}
	}
	layers, wantLayers := asList(have["layers"]), asList(want["layers"])
	if len(layers) != len(p.have.Files.Layers) || len(wantLayers) != len(p.want.Files.Layers) {
		return fmt.Errorf("the manifest names %d layers, of which %d were opened", len(layers), len(p.have.Files.Layers))
	}
	if p.comparison.want.SameTree {
		p.plainLayers(layers, wantLayers, docker)
		return p.compareTrees()
	}
	p.compareLayers(layers, wantLayers)
	if p.n == before {
		p.addDifference(manifestRule, Finding{}, "the manifest says what a build's says, and is written otherwise")
	}
	return nil
}

// compareDocument compares the keys of two objects of a manifest.
func (p *pair) compareDocument(where string, have, want map[string]any) {
	different(have, want, func(key string, a, b any) {
		p.addDifference(manifestRule, Finding{Subject: where + key}, "%s of the manifest is %s; a build writes %s", where+key, written(a), written(b))
	})
}

// different calls tell for each key with different values in two objects.
func different(have, want map[string]any, tell func(key string, have, want any)) {
	for _, key := range union(have, want) {
		if a, b := have[key], want[key]; !reflect.DeepEqual(a, b) {
			tell(cut(key), a, b)
		}
	}
}

// mediaType returns the equivalent OCI media type; docker build may write Docker's.
func mediaType(docker bool, oci string) string {
	if !docker {
		return oci
	}
	switch types.MediaType(oci) {
	case types.OCIImageIndex:
		return string(types.DockerManifestList)
	case types.OCIManifestSchema1:
		return string(types.DockerManifestSchema2)
	case types.OCIConfigJSON:
		return string(types.DockerConfigJSON)
	case types.OCILayer:
		return string(types.DockerLayer)
	}
	return oci
}

// place returns a layer as evidence.
func place(p string, l tree.Layer) []tree.Place {
	return []tree.Place{{Path: p, Layer: l.Digest.String()}}
}

// compareLayers compares the layers one by one. Layers in the same order in both manifests are equal by their digests.
func (p *pair) compareLayers(have, want []any) {
	digests := func(layers []any) (out []string) {
		for _, l := range layers {
			out = append(out, fmt.Sprint(object(l)["digest"]))
		}
		return out
	}
	mine, theirs := digests(have), digests(want)
	for _, at := range align(mine, theirs) {
		switch {
		case at.have >= 0 && at.want >= 0 && mine[at.have] == theirs[at.want]:
			p.compareDocument(fmt.Sprintf("layers[%d].", at.have), object(have[at.have]), object(want[at.want]))
		case at.have < 0:
			l := p.want.Files.Layers[at.want]
			p.addDifference(p.layerRule(at.want), Finding{Subject: p.layerName(at.want)}, "%s is missing", p.layerName(at.want))
			if rule := p.layerRule(at.want); rule.ID == layerRule.ID {
				p.compareEntries(nil, l, nil)
			}
		case at.want < 0:
			l := p.have.Files.Layers[at.have]
			name := p.have.layer(at.have)
			p.addDifference(layerRule, Finding{Subject: fmt.Sprintf("layer %d", at.have+1), Places: place("/", l)}, "%s is none that a build makes: %s", name, summarize(l))
			p.compareEntries(&l, tree.Layer{}, p.want.Files)
		default:
			p.describeChange(at.have, at.want)
		}
	}
}

// describeChange returns the differences between a layer and its expected layer.
func (p *pair) describeChange(i, j int) {
	have, want := p.have.Files.Layers[i], p.want.Files.Layers[j]
	f := Finding{Subject: p.layerName(j), Places: place("/", have)}
	what := fmt.Sprintf("%s is not %s: its digest is %s instead of %s", p.have.layer(i), p.layerName(j), image.Short(have.Digest), image.Short(want.Digest))
	switch {
	case have.DiffID == want.DiffID:
		p.addDifference(p.layerRule(j), f, "%s; it holds the same, compressed otherwise", what)
	case have.Unread || want.Unread:
		p.addDifference(p.layerRule(j), f, "%s", what)
	default:
		if p.compareEntries(&have, want, nil) == 0 {
			p.addDifference(p.layerRule(j), f, "%s; it holds the same, written otherwise", what)
			return
		}
		p.addDifference(p.layerRule(j), f, "%s", what)
	}
}

// layerRule returns the rule for the expected layer at j.
func (p *pair) layerRule(j int) Rule {
	if j < len(p.have.want.Base) {
		return baseLayerRule
	}
	return layerRule
}

// layerName returns the name of the expected layer at j.
func (p *pair) layerName(j int) string {
	l := p.want.Files.Layers[j]
	if j < len(p.have.want.Base) {
		return fmt.Sprintf("the base's layer %d (%s)", j+1, image.Short(l.Digest))
	}
	return fmt.Sprintf("the build's layer %d (%s, %s)", j+1, image.Short(l.Digest), cut(l.CreatedBy))
}

// summarize returns a summary of a layer's content.
func summarize(l tree.Layer) string {
	var names []string
	for _, e := range l.Entries {
		if !e.IsDir() {
			names = append(names, e.Path)
		}
	}
	if l.Unread {
		return "it was not read"
	}
	return "it holds " + joinNames(names)
}

// compareEntries returns the differences between two layers by path, and counts them. have is nil for a missing layer.
// Directories that equal those of lower layers don't count.
func (p *pair) compareEntries(have *tree.Layer, want tree.Layer, below *tree.Image) (n int) {
	var mine []tree.Entry
	layer := want
	if have != nil {
		mine, layer = have.Entries, *have
	}
	for _, change := range diff.Entries(want.Entries, mine) {
		if change.Kind == diff.Added && change.New.IsDir() && below != nil {
			if e, ok := below.Lookup(change.Path); ok && e.IsDir() && e.Mode == change.New.Mode && e.UID == change.New.UID && e.GID == change.New.GID {
				continue
			}
		}
		n++
		p.compareFile(change, layer)
	}
	return n
}

// compareFile reports the difference at one path.
func (p *pair) compareFile(change diff.Change, l tree.Layer) {
	f := Finding{Subject: change.Path, Places: place(change.Path, l), Source: p.have.line(change.Path)}
	p.addDifference(fileRule, f, "%s", p.describeDifference(change))
}

// describeDifference describes the difference at a path.
func (p *pair) describeDifference(c diff.Change) string {
	kind := func(e *tree.Entry) string {
		switch e.Type {
		case tree.TypeWhiteout:
			return "removed"
		case tree.TypeOpaque:
			return "emptied"
		case image.TypeSymlink:
			return "a symlink to " + cut(e.Link)
		}
		return "a " + string(e.Type)
	}
	switch c.Kind {
	case diff.Added:
		return fmt.Sprintf("%s is %s, and the profile does not say so", c.Path, kind(c.New))
	case diff.Removed:
		if c.Old.Type == tree.TypeWhiteout {
			return c.Path + " is not removed, and the profile removes it"
		}
		return fmt.Sprintf("%s is not there; it should be %s", c.Path, kind(c.Old))
	case diff.Type:
		return fmt.Sprintf("%s is %s; it should be %s", c.Path, kind(c.New), kind(c.Old))
	}
	var parts []string
	for _, field := range c.Fields {
		switch field {
		case "content":
			parts = append(parts, fmt.Sprintf("another content: %s instead of %s", shortDigest(c.New.Digest.String()), shortDigest(c.Old.Digest.String())))
		case "mode":
			parts = append(parts, fmt.Sprintf("mode %04o instead of %04o", c.New.Mode, c.Old.Mode))
		case "owner":
			parts = append(parts, fmt.Sprintf("owner %d:%d instead of %d:%d", c.New.UID, c.New.GID, c.Old.UID, c.Old.GID))
		case "link":
			parts = append(parts, fmt.Sprintf("a link to %s instead of %s", cut(c.New.Link), cut(c.Old.Link)))
		case "time":
			parts = append(parts, fmt.Sprintf("time %s instead of %s", c.New.ModTime.UTC().Format(timeFormat), c.Old.ModTime.UTC().Format(timeFormat)))
		case "xattr":
			parts = append(parts, fmt.Sprintf("the extended attributes %s instead of %s", joinNames(sortedKeys(c.New.Xattrs)), joinNames(sortedKeys(c.Old.Xattrs))))
		case "size":
		default:
			parts = append(parts, "another "+field)
		}
	}
	return fmt.Sprintf("%s has %s", c.Path, strings.Join(parts, ", "))
}

const timeFormat = "2006-01-02T15:04:05.999999999Z"

// line returns the profile's line that adds or removes a path or a directory above it.
func (h *held) line(p string) string {
	for ; ; p = path.Dir(p) {
		if at, ok := h.want.Laid[p]; ok {
			return at
		}
		if at, ok := h.want.Removed[p]; ok || p == "/" {
			return at
		}
	}
}

// aligned holds a position in each of two lists; -1 stands for no entry.
type aligned struct{ have, want int }

// align pairs the digests of two lists: the longest common sequence, and between its members the others one by one if
// both sides have equally many.
func align(have, want []string) (out []aligned) {
	i, j := 0, 0
	pair := func(n int) {
		for range n {
			out = append(out, aligned{i, j})
			i, j = i+1, j+1
		}
	}
	for _, d := range lcs.DiffLines(want, have) {
		pair(d.Start - j)
		if d.ReplEnd-d.ReplStart == d.End-d.Start {
			pair(d.End - d.Start)
		}
		for ; i < d.ReplEnd; i++ {
			out = append(out, aligned{i, -1})
		}
		for ; j < d.End; j++ {
			out = append(out, aligned{-1, j})
		}
	}
	pair(len(want) - j)
	return out
}

// plainLayers checks, with SameTree, that the manifest's layer entries have only fields that a build writes.
func (p *pair) plainLayers(layers, wanted []any, docker bool) {
	zstd := slices.ContainsFunc(wanted, func(w any) bool { return object(w)["mediaType"] == string(types.OCILayerZStd) })
	for i, l := range layers {
		l := object(l)
		annotations, kind := any(nil), string(types.OCILayer)
		same := slices.IndexFunc(wanted, func(w any) bool { return object(w)["digest"] == l["digest"] })
		ofBase := same == i && i < len(p.have.want.Base)
		switch {
		case same >= 0:
			annotations, kind = object(wanted[same])["annotations"], fmt.Sprint(object(wanted[same])["mediaType"])
		case zstd && l["mediaType"] == string(types.OCILayerZStd):
			kind = string(types.OCILayerZStd)
		}
		if !ofBase && isSeconds(object(l["annotations"])[rewrittenTimestamp]) {
			annotations = map[string]any{rewrittenTimestamp: object(l["annotations"])[rewrittenTimestamp]}
		}
		p.compareDocument(fmt.Sprintf("layers[%d].", i), l, drop(map[string]any{
			"mediaType": mediaType(docker, kind), "digest": l["digest"], "size": l["size"], "annotations": annotations,
		}))
	}
}

func drop(o map[string]any) map[string]any {
	for k, v := range o {
		if v == nil {
			delete(o, k)
		}
	}
	return o
}

// rewrittenTimestamp is an annotation of BuildKit's exporter with rewrite-timestamp=true on each layer whose times it
// changed: the time in seconds since 1970. Only BuildKit uses it, to skip repeated work.
const rewrittenTimestamp = "buildkit/rewritten-timestamp"

// isSeconds reports whether v is a number of seconds in BuildKit's form.
func isSeconds(v any) bool {
	s, _ := v.(string)
	return s != "" && len(s) < 12 && strings.Trim(s, "0123456789") == "" && (s == "0" || s[0] != '0')
}

// compareTrees compares the merged trees; all layers must have been read.
func (p *pair) compareTrees() error {
	for _, files := range []*tree.Image{p.have.Files, p.want.Files} {
		if i := slices.IndexFunc(files.Layers, func(l tree.Layer) bool { return l.Unread }); i >= 0 {
			return fmt.Errorf("layer %s was not read, and merged trees are compared", files.Layers[i].Digest)
		}
	}
	for _, change := range diff.Trees(p.want.Files, p.have.Files) {
		l := tree.Layer{}
		if e := change.New; e != nil && e.Layer >= 0 {
			l = p.have.Files.Layers[e.Layer]
		}
		p.compareFile(change, l)
	}
	return nil
}
