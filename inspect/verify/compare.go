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
	"github.com/dustin/go-humanize/english"
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

// compareRules lists the rules of a comparison, for an image with an expected image. The rule platform belongs to them,
// but is also checked without a comparison.
var compareRules = []rule{
	{Rule: Rule{
		ID: "index", Title: "The index is the one that the profile gives", Severity: Error,
		Why: "Programs choose the image by the index: another media type, a URL, data in an entry or an unknown key leads to something that nobody verified.",
		Fix: "Publish the index as it was built. Repeat build's --annotation and --base.",
	}},
	{Rule: Rule{
		ID: "manifest", Title: "The manifest is the one that the profile gives", Severity: Error,
		Why: "Programs go by media types, subject, data and URLs. Runtimes act on annotations: with run.oci.handler, org.systemd.property or io.podman.annotations.privileged another runtime or all privileges come with the image.",
		Fix: "Publish the image as it was built. Repeat build's --annotation and --base; another --base changes base.name and base.digest.",
	}},
	{Rule: Rule{
		ID: "config", Title: "The image config is the one that the profile gives", Severity: Error,
		Why: "A container starts with its variables, user, ports, volumes and health check, and machines act on labels. People and scanners read from the history what made a layer.",
		Fix: "Give verify the --profile and --set that built the image; else build again. A label of your own, of build --label x=y, is accepted by verify --set config.labels.x=y; write config.labels.\"a.b\"=y for a name with dots.",
	}},
	{Rule: Rule{
		ID: "layer", Title: "The layers are the base's and those that the profile gives", Severity: Error,
		Why: "Another layer can replace any program of the base under its own name. An archive can be written so that one program unpacks other files than the next.",
		Fix: "Give verify the --profile, --set and --allow-host that built the image, and its base by --base or --lock; else build again. verify --same tree accepts other layers that hold the same.",
	}},
	{Rule: Rule{
		ID: "file", Title: "Every file is the one that the profile gives", Severity: Error, Holes: []string{"c", "g", "h", "j", "l"},
		Why: "A changed browser-shell, policy or supervisord.conf is another product under the same name; one file more may be read by any program, and one less opens what it closed.",
		Fix: "Give verify the --profile, --set and --allow-host that built the image; else build again.",
	}},
	{Rule: Rule{
		ID: "ledger", Title: "The ledger beside the image is the one that the profile gives", Severity: Error,
		Why: "Slimctl why and diff answer from the ledger. Anyone who may push to the repository can attach one that explains away what the image has, or lacks.",
		Fix: "Remove it from the registry, or publish the image under another name.",
	}},
}

// comparison compares the images of one run of Check with Want.
type comparison struct {
	*checker
	want *Want
	n    int // differences so far
}

// compare runs the rules of a comparison, and sets Report.Proven.
func (k *checker) compare(want *Want) error {
	c := &comparison{checker: k, want: want}
	if k.in.Index != nil && !bytes.Equal(k.in.Index, want.Index) {
		c.compareIndex()
	}
	same := true // all manifests are equal
	for _, h := range k.held {
		made := want.Images[platformOf(h.Image)]
		if made == nil {
			return fmt.Errorf("there is no other image for %s to compare with", platformOf(h.Image))
		}
		if bytes.Equal(h.RawManifest, made.RawManifest) {
			continue
		}
		same = false
		if err := c.compareImage(h, made); err != nil {
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
		for _, have := range difference(c.in.Ledgers[platform], []string{c.want.Ledgers[platform]}) {
			c.rule = ByID()["ledger"]
			c.addFinding(Finding{Platform: platform, Subject: have, Message: fmt.Sprintf("the ledger %s refers to the image; a build gives %s", have, cmp.Or(c.want.Ledgers[platform], "none"))})
		}
	}
}

// addDifference adds a difference, a finding of a rule.
func (c *comparison) addDifference(rule string, f Finding, format string, args ...any) {
	c.n++
	c.rule, f.Message = ByID()[rule], fmt.Sprintf(format, args...)
	c.addFinding(f)
}

// compareIndex compares the index. The rule platform finds missing and additional platforms, and false attestations: of
// an attestation's entry only the keys are compared.
func (c *comparison) compareIndex() {
	have, err := image.Object(c.in.Index)
	if err != nil {
		c.addDifference("index", Finding{}, "the index can't be read in one way only: %v", err)
		return
	}
	docker := c.want.SameTree && have["mediaType"] == string(types.DockerManifestList)
	want := object{"schemaVersion": json.Number("2"), "mediaType": string(types.OCIImageIndex), "annotations": annotations(c.want.Annotations)}
	entries, extra := []any{}, false
	for _, e := range asList(have["manifests"]) {
		e := asObject(e)
		made := object{"mediaType": string(types.OCIManifestSchema1), "digest": e["digest"], "size": e["size"]}
		p := asObject(e["platform"])
		switch img := c.want.Images[fmt.Sprintf("%v/%v", p["os"], p["architecture"])]; {
		case img != nil:
			made["platform"] = object{"os": img.Platform.OS, "architecture": img.Platform.Architecture}
		case p["os"] == "unknown": // see (*image.Source).Ignored
			extra = true
			made["platform"] = object{"os": "unknown", "architecture": "unknown"}
			for _, key := range []string{"mediaType", "annotations", "artifactType"} {
				made[key] = e[key]
			}
		default:
			extra, made = true, e
		}
		entries = append(entries, made)
	}
	want["manifests"] = entries
	before := c.n
	c.compareDocuments("index", "", have, want, docker)
	if c.want.Index == nil || extra || c.want.SameTree || c.n > before {
		return
	}
	for _, h := range c.held {
		if made := c.want.Images[platformOf(h.Image)]; made == nil || !bytes.Equal(h.RawManifest, made.RawManifest) {
			return // reported for the image
		}
	}
	c.addDifference("index", Finding{}, "the index has a build's values in other bytes: another order or other spaces")
}

// compareImage compares manifest, image config and files of one platform.
func (c *comparison) compareImage(h *held, made *inspect.Image) error {
	before, platform := c.n, platformOf(h.Image)
	want, err := image.Object(made.RawManifest)
	if err != nil {
		return fmt.Errorf("the manifest to compare with: %w", err)
	}
	have, err := image.Object(h.RawManifest)
	if err != nil {
		c.addDifference("manifest", Finding{Platform: platform}, "the manifest can't be read in one way only: %v", err)
		return nil
	}
	if len(asList(have["layers"])) != len(h.Files.Layers) || len(asList(want["layers"])) != len(made.Files.Layers) {
		return fmt.Errorf("the manifest names %d layers, of which %d were opened", len(asList(have["layers"])), len(h.Files.Layers))
	}
	docker := c.want.SameTree && have["mediaType"] == string(types.DockerManifestSchema2)
	sameConfig := asObject(have["config"])["digest"] == asObject(want["config"])["digest"]
	if !sameConfig {
		if err := c.compareConfigs(platform, h.RawConfig, made.RawConfig); err != nil {
			return err
		}
	}
	if config := asObject(want["config"]); !sameConfig || c.want.SameTree { // the config's own differences are told
		config["digest"], config["size"] = asObject(have["config"])["digest"], asObject(have["config"])["size"]
	}
	if c.want.SameTree {
		want["layers"] = c.acceptLayers(h, asList(have["layers"]), asList(want["layers"]))
	}
	c.compareDocuments("manifest", platform, have, want, docker)
	if err := c.compareTrees(h, made); err != nil {
		return err
	}
	if c.n == before && !c.want.SameTree {
		c.addDifference("manifest", Finding{Platform: platform}, "the manifest has a build's values in other bytes: another order or other spaces")
	}
	return nil
}

// compareConfigs compares stored image configs. Runtimes decode them with Go's encoding/json, others' JSON packages or by
// hand; content that these interpret differently is a difference.
func (c *comparison) compareConfigs(platform string, rawHave, rawWant []byte) error {
	want, err := image.Object(rawWant)
	if err != nil {
		return fmt.Errorf("the image config to compare with: %w", err)
	}
	before, f := c.n, Finding{Platform: platform}
	have, err := image.Object(rawHave)
	for _, o := range []object{have, asObject(have["config"]), asObject(have["rootfs"]), asObject(asObject(have["config"])["Healthcheck"])} {
		err = cmp.Or(err, image.SameKeys(o))
	}
	names := map[string]bool{}
	for _, v := range asList(asObject(have["config"])["Env"]) {
		name, _, ok := strings.Cut(fmt.Sprint(v), "=")
		if !ok || name == "" || names[name] {
			err = cmp.Or(err, fmt.Errorf("the variable %q is there twice, or has no name or no value", cut(name)))
		}
		names[name] = true
	}
	if err != nil {
		c.addDifference("config", f, "the image config can't be read in one way only: %v", err)
		return nil
	}
	c.compareDocuments("config", platform, have, want, false)
	if c.n == before && !c.want.SameTree {
		c.addDifference("config", f, "the image config has a build's values in other bytes: another order or other spaces")
	}
	return nil
}

// compareDocuments reports the differences of two documents by their paths. With SameTree what means the same is no
// difference; docker is true for a document of Docker's own media type.
func (c *comparison) compareDocuments(rule, platform string, have, want object, docker bool) {
	if c.want.SameTree {
		for _, o := range []object{have, want} {
			normalizeConfig(o)
		}
		if len(asObject(have["annotations"])) == 0 && (docker || c.in.FromDocker) { // they have no place there
			delete(want, "annotations")
			delete(have, "annotations")
		}
		if docker {
			renameTypes(have)
		}
	}
	eachDifference("", have, want, func(at string, a, b any) {
		of := rule
		if strings.HasPrefix(at, "layers[") && strings.HasSuffix(at, "]") || strings.HasSuffix(at, "].digest") && rule == "manifest" {
			of = "layer"
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(at, "config.Env."), "=")
		c.addDifference(of, Finding{Platform: platform, Subject: at}, "%s of the %s is %s; a build writes %s", at, rule, shown(name, a), shown(name, b))
	})
}

// eachDifference calls tell for each path at which two JSON values differ. The members of lists are aligned first.
func eachDifference(at string, have, want any, tell func(at string, have, want any)) {
	a, b := asObject(have), asObject(want)
	list, other := asList(have), asList(want)
	switch {
	case reflect.DeepEqual(have, want):
	case a != nil && b != nil:
		for _, key := range union(a, b) {
			if key == "size" && a["digest"] != b["digest"] {
				continue
			}
			eachDifference(strings.TrimPrefix(at+"."+cut(key), "."), a[key], b[key], tell)
		}
	case list != nil && other != nil:
		for _, pair := range align(written(list), written(other)) {
			var x, y any
			i := pair.want
			if pair.want >= 0 {
				y = other[pair.want]
			}
			if pair.have >= 0 {
				x, i = list[pair.have], pair.have
			}
			eachDifference(fmt.Sprintf("%s[%d]", at, i), x, y, tell)
		}
	default:
		tell(at, have, want)
	}
}

// normalizeConfig drops from a config whatever differs between images with the same tree: times, history, the list of
// layers, empty values, and annotations and labels that describe an image to people. Variables become an object. A variable
// may be empty instead of absent: a Dockerfile can set one but never unset it.
func normalizeConfig(o object) {
	describes := func(m object) object {
		for key := range m {
			if strings.HasPrefix(key, "org.opencontainers.image.") && key != image.AnnotationBaseDigest && key != image.AnnotationBaseName {
				delete(m, key)
			}
		}
		return m
	}
	describes(asObject(o["annotations"]))
	config := asObject(o["config"])
	if o["rootfs"] == nil || config == nil { // an index or a manifest
		return
	}
	delete(asObject(o["rootfs"]), "diff_ids")
	for _, key := range []string{"created", "history"} {
		delete(o, key)
	}
	delete(config, "ArgsEscaped") // only meaningful on Windows
	describes(asObject(config["Labels"]))
	env := object{}
	for _, v := range asList(config["Env"]) {
		if name, value, _ := strings.Cut(fmt.Sprint(v), "="); value != "" {
			env[name] = value
		}
	}
	config["Env"] = env
	for _, m := range []object{o, config} {
		for key, v := range m {
			if isNothing(v) {
				delete(m, key)
			}
		}
	}
}

// ociTypes maps Docker's media types, which docker build may write, to OCI's.
var ociTypes = map[any]string{
	string(types.DockerManifestList): string(types.OCIImageIndex), string(types.DockerManifestSchema2): string(types.OCIManifestSchema1),
	string(types.DockerConfigJSON): string(types.OCIConfigJSON), string(types.DockerLayer): string(types.OCILayer),
}

// renameTypes replaces Docker's media types of a document and its entries. Mixed ones stay.
func renameTypes(o object) {
	entries := append(append(asList(o["manifests"]), asList(o["layers"])...), o["config"], any(o))
	if slices.ContainsFunc(entries, func(e any) bool {
		return asObject(e) != nil && ociTypes[asObject(e)["mediaType"]] == "" && asObject(e)["mediaType"] != string(types.OCILayerZStd)
	}) {
		return
	}
	for _, e := range entries {
		if t := ociTypes[asObject(e)["mediaType"]]; t != "" {
			asObject(e)["mediaType"] = t
		}
	}
}

// rewrittenTimestamp is an annotation of BuildKit's exporter with rewrite-timestamp=true on each layer whose times it
// changed: the time in seconds since 1970. Only BuildKit uses it, to skip repeated work.
const rewrittenTimestamp = "buildkit/rewritten-timestamp"

// acceptLayers returns what a build would write of other layers, with SameTree.
func (c *comparison) acceptLayers(h *held, have, want []any) (out []any) {
	zstd := slices.ContainsFunc(want, func(w any) bool { return asObject(w)["mediaType"] == string(types.OCILayerZStd) })
	for i, l := range have {
		l := asObject(l)
		made := object{"mediaType": string(types.OCILayer), "digest": l["digest"], "size": l["size"]}
		if zstd && l["mediaType"] == string(types.OCILayerZStd) {
			made["mediaType"] = l["mediaType"]
		}
		same := slices.IndexFunc(want, func(w any) bool { return asObject(w)["digest"] == l["digest"] })
		if same >= 0 {
			made = asObject(want[same])
		}
		ofBase := same == i && i < len(h.want.Base)
		if seconds, ok := asObject(l["annotations"])[rewrittenTimestamp]; ok && !ofBase && isSeconds(seconds) {
			made["annotations"] = object{rewrittenTimestamp: seconds}
		}
		out = append(out, made)
	}
	return out
}

// isSeconds reports whether v is a number of seconds in BuildKit's form.
func isSeconds(v any) bool {
	s, _ := v.(string)
	return s != "" && len(s) < 12 && strings.Trim(s, "0123456789") == "" && (s == "0" || s[0] != '0')
}

// compareTrees compares the merged trees. Without SameTree layers of the base are usually unread; files are compared only
// if the same layers of both images are.
func (c *comparison) compareTrees(h *held, made *inspect.Image) error {
	unread := func(layers []tree.Layer) (out []string) {
		for _, l := range layers {
			if l.Unread {
				out = append(out, l.Digest.String())
			}
		}
		return out
	}
	mine, theirs := unread(h.Files.Layers), unread(made.Files.Layers)
	switch {
	case c.want.SameTree && len(mine)+len(theirs) > 0:
		return fmt.Errorf("layer %s was not read, and merged trees are compared", append(mine, theirs...)[0])
	case !slices.Equal(mine, theirs):
		h.addUnchecked("files: %s", english.Plural(max(len(mine), len(theirs)), "layer was not read", "layers were not read"))
		return nil
	}
	for _, change := range diff.Trees(made.Files, h.Files) {
		f := Finding{Platform: platformOf(h.Image), Subject: change.Path, Places: h.at(change.Path), Source: h.line(change.Path)}
		c.addDifference("file", f, "%s", describeChange(change))
	}
	return nil
}

// describeChange describes the difference at a path.
func describeChange(c diff.Change) string {
	kind := func(e *tree.Entry) string {
		if e.Type == image.TypeSymlink {
			return "a symlink to " + cut(e.Link)
		}
		return "a " + string(e.Type)
	}
	switch c.Kind {
	case diff.Added:
		return fmt.Sprintf("%s is %s, and the profile does not say so", c.Path, kind(c.New))
	case diff.Removed:
		return fmt.Sprintf("%s is not there; it should be %s", c.Path, kind(c.Old))
	case diff.Type:
		return fmt.Sprintf("%s is %s; it should be %s", c.Path, kind(c.New), kind(c.Old))
	}
	var parts []string
	for _, field := range c.Fields {
		old, new := c.Old, c.New
		switch field {
		case "content":
			parts = append(parts, fmt.Sprintf("another content: %s instead of %s", shortDigest(new.Digest.String()), shortDigest(old.Digest.String())))
		case "mode":
			parts = append(parts, fmt.Sprintf("mode %04o instead of %04o", new.Mode, old.Mode))
		case "owner":
			parts = append(parts, fmt.Sprintf("owner %d:%d instead of %d:%d", new.UID, new.GID, old.UID, old.GID))
		case "link":
			parts = append(parts, fmt.Sprintf("a link to %s instead of %s", cut(new.Link), cut(old.Link)))
		case "size":
		default:
			parts = append(parts, "another "+field)
		}
	}
	return fmt.Sprintf("%s has %s", c.Path, strings.Join(parts, ", "))
}

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

// object is a JSON object.
type object = map[string]any

// asObject returns v if it is an object; otherwise nil, which has no keys.
func asObject(v any) object {
	o, _ := v.(object)
	return o
}

func asList(v any) []any {
	l, _ := v.([]any)
	return l
}

func annotations(m map[string]string) any {
	if len(m) == 0 {
		return nil
	}
	out := object{}
	for k, v := range m {
		out[k] = v
	}
	return out
}

// isNothing reports whether a value is equivalent to the key's absence.
func isNothing(v any) bool {
	switch v := v.(type) {
	case []any:
		return len(v) == 0
	case object:
		return len(v) == 0
	case json.Number:
		return v == "0"
	}
	return v == nil || v == "" || v == false
}

func union(a, b object) []string {
	keys := append(sortedKeys(a), sortedKeys(b)...)
	slices.Sort(keys)
	return slices.Compact(keys)
}

// mostShown limits a value in a message, in bytes.
const mostShown = 300

func cut(s string) string {
	if len(s) > mostShown {
		return strings.ToValidUTF8(s[:mostShown], "") + "…"
	}
	return s
}

// written returns the members of a list as JSON.
func written(list []any) (out []string) {
	for _, v := range list {
		var b strings.Builder
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		_ = enc.Encode(v) // it was decoded from JSON
		out = append(out, strings.TrimSpace(b.String()))
	}
	return out
}

// shown returns a value as JSON for a message, unless it looks like a secret. name is a variable's.
func shown(name string, v any) string {
	if v == nil {
		return "none"
	}
	text := written([]any{v})[0]
	value := strings.Trim(text, `"`)
	if secretIn(text) != "" || secretVariable(name, value) {
		return "something that looks like a secret (it is not shown)"
	}
	if key, rest, ok := strings.Cut(value, "="); ok && secretVariable(key, rest) {
		return "something that looks like a secret (it is not shown)"
	}
	return cut(text)
}
