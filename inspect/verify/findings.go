package verify

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// Merged is a finding with the platforms on which it is the same.
type Merged struct {
	Finding
	Platforms []string
}

// Merged joins equal findings of several platforms, in the report's order.
func (r *Report) Merged() []Merged {
	var out []Merged
	at := map[string]int{}
	for _, f := range r.Findings {
		k := f.Rule + "\x00" + f.Subject + "\x00" + f.Message
		i, ok := at[k]
		if !ok {
			i = len(out)
			at[k] = i
			out = append(out, Merged{Finding: f})
		}
		if f.Platform != "" && !slices.Contains(out[i].Platforms, f.Platform) {
			out[i].Platforms = append(out[i].Platforms, f.Platform)
		}
	}
	return out
}

// Name returns the image's reference with its digest.
func (r *Report) Name() string {
	if r.Digest == "" || strings.Contains(r.Reference, r.Digest) {
		return r.Reference
	}
	return r.Reference + "@" + r.Digest
}

// Count counts the findings of a severity; one on several platforms counts once.
func (r *Report) Count(severity string) (n int) {
	for _, f := range r.Merged() {
		if f.Severity == severity {
			n++
		}
	}
	return n
}

// ByID maps ids to rules.
func ByID() map[string]Rule {
	out := map[string]Rule{}
	for _, r := range Rules() {
		out[r.ID] = r
	}
	return out
}

// RuleIDs returns the rules of the report: those checked, and those with findings.
func (r *Report) RuleIDs() []string {
	out := slices.Clone(r.Rules)
	for _, f := range r.Findings {
		out = append(out, f.Rule)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Fingerprint is stable for one finding across builds: it contains no lines, layers or digests.
func (f Finding) Fingerprint() string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\x00%s\x00%s", f.Rule, f.Platform, f.Subject)
	var paths []string
	for _, p := range f.Places {
		paths = append(paths, p.Path)
	}
	slices.Sort(paths)
	for _, p := range slices.Compact(paths) {
		fmt.Fprintf(h, "\x00%s", p)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}
