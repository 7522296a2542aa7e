package verify

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/slimctl/slimctl/image"
)

// compareConfig compares the stored image config. With Want.SameTree equivalent values are equal, and a variable may be
// empty instead of absent: a Dockerfile can set one but never unset it. Layer digests, times and history may then
// differ, as from another build.
func (p *pair) compareConfig() error {
	before := p.n
	want, err := parseConfig(p.want.RawConfig)
	if err != nil {
		return fmt.Errorf("the image config to compare with: %w", err)
	}
	have, err := parseConfig(p.have.RawConfig)
	if err != nil {
		p.addDifference(configRule, Finding{}, "the image config can't be read in one way only: %v", err)
		return nil
	}
	sameTree := p.comparison.want.SameTree
	top, inner := []string{"config", "rootfs", "history"}, []string{"Env", "Labels"}
	if sameTree {
		top, inner = append(top, "created"), append(inner, "ArgsEscaped") // only meaningful on Windows
	}
	p.compareKeys("", have, want, top)
	p.compareKeys("rootfs.", object(have["rootfs"]), object(want["rootfs"]), []string{"diff_ids"})
	mine, theirs := object(have["config"]), object(want["config"])
	p.compareKeys("config.", mine, theirs, inner)
	p.labels(object(mine["Labels"]), object(theirs["Labels"]))
	p.compareVariables(mine["Env"], theirs["Env"])
	if sameTree {
		return nil
	}
	p.compareHistory(asList(have["history"]), asList(want["history"]))
	ids, wantIDs := object(have["rootfs"])["diff_ids"], object(want["rootfs"])["diff_ids"]
	switch same := reflect.DeepEqual(ids, wantIDs); {
	case p.n > before:
	case !same: // reported for the layer
		p.addDifference(configRule, Finding{Subject: "rootfs.diff_ids"}, "the image config names other layers than a build's")
	default:
		p.addDifference(configRule, Finding{}, "the image config says what a build's says, and is written otherwise")
	}
	return nil
}

// compareKeys compares two objects of an image config by key, except some keys. An empty value equals an absent one.
func (p *pair) compareKeys(where string, have, want map[string]any, but []string) {
	for _, key := range union(have, want) {
		a, b := have[key], want[key]
		if slices.Contains(but, key) || isNothing(a) && isNothing(b) || reflect.DeepEqual(a, b) {
			continue
		}
		key = where + cut(key)
		p.addDifference(configRule, Finding{Subject: key}, "%s of the image config is %s; a build on this base writes %s", key, written(a), written(b))
	}
}

func (p *pair) labels(have, want map[string]any) {
	for _, name := range union(have, want) {
		a, b := have[name], want[name]
		if reflect.DeepEqual(a, b) || p.comparison.want.SameTree && strings.HasPrefix(name, describes) {
			continue
		}
		p.addDifference(configRule, Finding{Subject: cut(name)}, "the label %s is %s; a build on this base writes %s", cut(name), written(a), written(b))
	}
}

// compareVariables compares lists of NAME=VALUE. Runtimes interpret a repeated variable, or one without a value,
// differently.
func (p *pair) compareVariables(have, want any) {
	mine, theirs := map[string]string{}, map[string]string{}
	for _, line := range asList(have) {
		s, _ := line.(string)
		name, value, ok := strings.Cut(s, "=")
		_, twice := mine[name]
		if !ok || name == "" || twice {
			p.addDifference(configRule, Finding{Subject: cut(name)}, "the variable %q is there twice, or has no name or no value: runtimes differ on what that means", cut(name))
			continue
		}
		mine[name] = value
	}
	for _, line := range asList(want) {
		name, value, _ := strings.Cut(fmt.Sprint(line), "=")
		theirs[name] = value
	}
	for _, name := range union(mine, theirs) {
		a, is := mine[name]
		b, was := theirs[name]
		f := Finding{Subject: cut(name)}
		switch {
		case is && was && a == b, !was && a == "" && p.comparison.want.SameTree:
		case !was:
			p.addDifference(configRule, f, "the variable %s is there, %s; the profile does not set it", cut(name), valueOf(name, a))
		case !is:
			p.addDifference(configRule, f, "the variable %s is not there; it should be %s", cut(name), valueOf(name, b))
		default:
			p.addDifference(configRule, f, "the variable %s is %s; it should be %s", cut(name), valueOf(name, a), valueOf(name, b))
		}
	}
}

// compareHistory reports the first different entry only: later ones usually follow from it.
func (p *pair) compareHistory(have, want []any) {
	for i := range max(len(have), len(want)) {
		var a, b any
		if i < len(have) {
			a = have[i]
		}
		if i < len(want) {
			b = want[i]
		}
		if !reflect.DeepEqual(a, b) {
			p.addDifference(historyRule, Finding{Subject: fmt.Sprintf("history %d", i+1)}, "entry %d of the history is %s; a build on this base writes %s", i+1, written(a), written(b))
			return
		}
	}
}

// parseConfig parses an image config. Runtimes decode it with Go's encoding/json, others' JSON packages or by hand;
// content that these interpret differently is an error.
func parseConfig(raw []byte) (map[string]any, error) {
	top, err := image.Object(raw)
	if err != nil {
		return nil, err
	}
	for _, o := range []map[string]any{top, object(top["config"]), object(top["rootfs"]), object(object(top["config"])["Healthcheck"])} {
		if err := image.SameKeys(o); err != nil {
			return nil, err
		}
	}
	for _, key := range []string{"config", "rootfs"} {
		if _, ok := top[key].(map[string]any); !ok && top[key] != nil {
			return nil, fmt.Errorf("%s is not an object", key)
		}
	}
	return top, nil
}

// object returns v if it is an object; otherwise nil, which has no keys.
func object(v any) map[string]any {
	o, _ := v.(map[string]any)
	return o
}

func asList(v any) []any {
	l, _ := v.([]any)
	return l
}

// isNothing reports whether a value is equivalent to the key's absence.
func isNothing(v any) bool {
	switch v := v.(type) {
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	case json.Number:
		return v == "0"
	}
	return v == nil || v == "" || v == false
}

func union[V any](a, b map[string]V) []string {
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

const notShown = "something that looks like a secret (it is not shown)"

// valueOf returns a variable's value for a message.
func valueOf(name, value string) string {
	if secretVariable(name, value) {
		return notShown
	}
	return strconv.Quote(cut(value))
}

// written returns a value as JSON for a message.
func written(v any) string {
	if v == nil {
		return "none"
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Sprintf("%T", v)
	}
	if secretIn(b.String()) != "" {
		return notShown
	}
	return cut(strings.TrimSpace(b.String()))
}
