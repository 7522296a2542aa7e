package image

import "strings"

// Environment returns the variables of an image config by name, without the blank ones: a Dockerfile can't take a variable of
// its base away, only blank it, so two configs that differ in blank variables alone are the same.
func Environment(env []string) map[string]string {
	out := map[string]string{}
	for _, kv := range env {
		if k, v, _ := strings.Cut(kv, "="); v != "" {
			out[k] = v
		}
	}
	return out
}
