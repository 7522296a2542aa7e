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

// The keys of an image config that aren't held against the one that a build writes: what other rules do, times, and
// ArgsEscaped, which means something on Windows only.
var (
	otherKeys       = []string{"created", "config", "rootfs", "history"}
	otherConfigKeys = []string{"Env", "Labels", "Entrypoint", "Cmd", "OnBuild", "ArgsEscaped"}
)

// configBuilt holds the image config, as it is stored, against the one that a build on the base writes.
func configBuilt(h *held) error {
	have, want, err := h.configs()
	if want == nil || err != nil {
		return err
	}
	if have == nil {
		h.found("", nil, "the image config can't be read in one way only: %v", h.configFault)
		return nil
	}
	h.keys("", have, want, otherKeys)
	h.keys("rootfs.", object(have["rootfs"]), object(want["rootfs"]), []string{"diff_ids"})
	mine, base := object(have["config"]), object(want["config"])
	held := slices.Clone(otherConfigKeys)
	p := h.want.Config
	for key, is := range map[string]bool{"User": p.User != "", "WorkingDir": p.WorkingDir != "", "ExposedPorts": p.ExposedPorts != nil} {
		if is {
			held = append(held, key)
		}
	}
	if p.Healthcheck != nil {
		held = append(held, "Healthcheck")
		h.keys("config.Healthcheck.", object(mine["Healthcheck"]), object(base["Healthcheck"]), []string{"Test"})
	}
	h.keys("config.", mine, base, held)
	h.variables(mine["Env"], base["Env"])
	return nil
}

// keys compares two objects of an image config by their keys, but for some. A value of nothing is as good as none.
func (h *held) keys(where string, have, want map[string]any, but []string) {
	for _, key := range union(have, want) {
		a, b := have[key], want[key]
		if slices.Contains(but, key) || isNothing(a) && isNothing(b) || reflect.DeepEqual(a, b) {
			continue
		}
		key = where + cut(key)
		h.found(key, nil, "%s of the image config is %s; a build on this base writes %s", key, written(a), written(b))
	}
}

// variables compares those that the profile says nothing of.
func (h *held) variables(have, want any) {
	mine, base := environment(have), environment(want)
	for _, name := range union(mine, base) {
		_, set := h.want.Config.Env[name]
		if set || slices.Contains(h.want.Config.Unset, name) {
			continue
		}
		a, is := mine[name]
		b, was := base[name]
		switch {
		case !was:
			h.found(name, nil, "the variable %s is there, %s; neither base nor profile has it", name, valueOf(name, a))
		case !is:
			h.found(name, nil, "the variable %s is not there; the base's is %s", name, valueOf(name, b))
		case a != b:
			h.found(name, nil, "the variable %s is %s; the base's is %s", name, valueOf(name, a), valueOf(name, b))
		}
	}
}

// labelsBuilt compares the labels that the profile says nothing of, but for those that describe an image to people.
func (h *held) labelsBuilt() {
	have, want, err := h.configs()
	if want == nil && err == nil {
		h.unchecked("whether the labels that the profile does not name are the base's, which are not known")
	}
	if have == nil || want == nil || err != nil {
		return // which is another rule's
	}
	mine, base := object(object(have["config"])["Labels"]), object(object(want["config"])["Labels"])
	for _, name := range union(mine, base) {
		if _, ours := h.want.Config.Labels[name]; !ours && !strings.HasPrefix(name, ociLabel) && !reflect.DeepEqual(mine[name], base[name]) {
			h.found(name, nil, "the label %s is %s; a build on this base writes %s", name, written(mine[name]), written(base[name]))
		}
	}
}

// historyBuilt compares the history but for its times.
func historyBuilt(h *held) error {
	have, want, err := h.configs()
	if have == nil || want == nil || err != nil {
		return err
	}
	mine, base := steps(have["history"]), steps(want["history"])
	for i := range max(len(mine), len(base)) {
		var a, b any
		if i < len(mine) {
			a = mine[i]
		}
		if i < len(base) {
			b = base[i]
		}
		if !reflect.DeepEqual(a, b) {
			h.found(fmt.Sprintf("history %d", i+1), nil, "entry %d of the history is %s; a build on this base writes %s", i+1, written(a), written(b))
			return nil // those after it are no news
		}
	}
	return nil
}

// steps are the entries of a history without their times, and without keys that say nothing.
func steps(history any) []any {
	list, _ := history.([]any)
	out := make([]any, len(list))
	for i, e := range list {
		step := map[string]any{}
		for k, v := range object(e) {
			if k != "created" && !isNothing(v) {
				step[k] = v
			}
		}
		out[i] = step
	}
	return out
}

// configs are both image configs. want is nil where the base isn't known; have is nil where h.configFault says why the
// image's own has no one meaning.
func (h *held) configs() (have, want map[string]any, err error) {
	if h.want.Base.Config == nil {
		return nil, nil, nil
	}
	if h.baseConfig == nil {
		if h.baseConfig, err = parseConfig(h.want.Base.Config); err != nil {
			return nil, nil, fmt.Errorf("the config that a build writes: %w", err)
		}
		h.ownConfig, h.configFault = parseConfig(h.RawConfig)
	}
	return h.ownConfig, h.baseConfig, nil
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

// environment has the variables of a list; the first of a name counts, and that there is another is told elsewhere.
func environment(list any) map[string]string {
	out := map[string]string{}
	lines, _ := list.([]any)
	for _, line := range lines {
		s, _ := line.(string)
		name, value, _ := strings.Cut(s, "=")
		if _, twice := out[name]; !twice {
			out[name] = value
		}
	}
	return out
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
