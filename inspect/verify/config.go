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

// config compares the image config, as it is stored. With Want.SameTree what means the same is the same, and so is a variable
// that is empty instead of taken away: a Dockerfile can set one and never unset it. Its layers' digests, its times and its
// history are another build's, then.
func (p *pair) config() error {
	before := p.n
	want, err := parseConfig(p.want.RawConfig)
	if err != nil {
		return fmt.Errorf("the image config to compare with: %w", err)
	}
	have, err := parseConfig(p.have.RawConfig)
	if err != nil {
		p.tell(configRule, Finding{}, "the image config can't be read in one way only: %v", err)
		return nil
	}
	sameTree := p.comparison.want.SameTree
	top, inner := []string{"config", "rootfs", "history"}, []string{"Env", "Labels"}
	if sameTree {
		top, inner = append(top, "created"), append(inner, "ArgsEscaped") // which means something on Windows only
	}
	p.keys("", have, want, top)
	p.keys("rootfs.", object(have["rootfs"]), object(want["rootfs"]), []string{"diff_ids"})
	mine, theirs := object(have["config"]), object(want["config"])
	p.keys("config.", mine, theirs, inner)
	p.labels(object(mine["Labels"]), object(theirs["Labels"]))
	p.variables(mine["Env"], theirs["Env"])
	if sameTree {
		return nil
	}
	p.history(asList(have["history"]), asList(want["history"]))
	ids, wantIDs := object(have["rootfs"])["diff_ids"], object(want["rootfs"])["diff_ids"]
	switch same := reflect.DeepEqual(ids, wantIDs); {
	case p.n > before:
	case !same: // that of a layer which is another is told of the layer
		p.tell(configRule, Finding{Subject: "rootfs.diff_ids"}, "the image config names other layers than a build's")
	default:
		p.tell(configRule, Finding{}, "the image config says what a build's says, and is written otherwise")
	}
	return nil
}

// keys compares two objects of an image config by their keys, but for some. A value of nothing is as good as none.
func (p *pair) keys(where string, have, want map[string]any, but []string) {
	for _, key := range union(have, want) {
		a, b := have[key], want[key]
		if slices.Contains(but, key) || isNothing(a) && isNothing(b) || reflect.DeepEqual(a, b) {
			continue
		}
		key = where + cut(key)
		p.tell(configRule, Finding{Subject: key}, "%s of the image config is %s; a build on this base writes %s", key, written(a), written(b))
	}
}

func (p *pair) labels(have, want map[string]any) {
	for _, name := range union(have, want) {
		a, b := have[name], want[name]
		if reflect.DeepEqual(a, b) || p.comparison.want.SameTree && strings.HasPrefix(name, describes) {
			continue
		}
		p.tell(configRule, Finding{Subject: cut(name)}, "the label %s is %s; a build on this base writes %s", cut(name), written(a), written(b))
	}
}

// variables compares lists of NAME=VALUE. One that is there twice, or without a value, means another thing to each runtime.
func (p *pair) variables(have, want any) {
	mine, theirs := map[string]string{}, map[string]string{}
	for _, line := range asList(have) {
		s, _ := line.(string)
		name, value, ok := strings.Cut(s, "=")
		_, twice := mine[name]
		if !ok || name == "" || twice {
			p.tell(configRule, Finding{Subject: cut(name)}, "the variable %q is there twice, or has no name or no value: runtimes differ on what that means", cut(name))
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
			p.tell(configRule, f, "the variable %s is there, %s; the profile does not set it", cut(name), valueOf(name, a))
		case !is:
			p.tell(configRule, f, "the variable %s is not there; it should be %s", cut(name), valueOf(name, b))
		default:
			p.tell(configRule, f, "the variable %s is %s; it should be %s", cut(name), valueOf(name, a), valueOf(name, b))
		}
	}
}

// history tells of the first entry that differs: those after it are no news.
func (p *pair) history(have, want []any) {
	for i := range max(len(have), len(want)) {
		var a, b any
		if i < len(have) {
			a = have[i]
		}
		if i < len(want) {
			b = want[i]
		}
		if !reflect.DeepEqual(a, b) {
			p.tell(historyRule, Finding{Subject: fmt.Sprintf("history %d", i+1)}, "entry %d of the history is %s; a build on this base writes %s", i+1, written(a), written(b))
			return
		}
	}
}

// parseConfig reads an image config. Runtimes decode it by Go's encoding/json, by that of others, and by hand: what those
// read differently is an error.
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
			return nil, fmt.Errorf("its %s is no object", key)
		}
	}
	return top, nil
}

// object is v if it is one; nil otherwise, which has no keys.
func object(v any) map[string]any {
	o, _ := v.(map[string]any)
	return o
}

func asList(v any) []any {
	l, _ := v.([]any)
	return l
}

// isNothing says whether a value is what its key's absence means.
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

// mostShown is how much of a value a message has, in bytes.
const mostShown = 300

func cut(s string) string {
	if len(s) > mostShown {
		return strings.ToValidUTF8(s[:mostShown], "") + "…"
	}
	return s
}

const notShown = "something that looks like a secret (it is not shown)"

// valueOf is a variable's value for a message.
func valueOf(name, value string) string {
	if secretVariable(name, value) {
		return notShown
	}
	return strconv.Quote(cut(value))
}

// written is a value as JSON, for a message.
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
