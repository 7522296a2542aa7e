package verify

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// Reach returns a finding for each file of the base that programs opened where the image has all of the base, and that the image
// lacks. opened has the files, with the program that opened each.
func Reach(platform string, opened map[string]string, base, files *tree.Image) []Finding {
	rule := byID()[reachRule]
	var out []Finding
	for _, p := range slices.Sorted(maps.Keys(opened)) {
		if e, ok := base.Lookup(p); !ok || e.IsDir() {
			continue // of a layer of ours, or made while it ran
		}
		if _, ok := files.Lookup(p); ok {
			continue
		}
		out = append(out, Finding{
			Rule: rule.ID, Severity: rule.Severity, Platform: platform, Subject: p, Fix: rule.Fix,
			Message: fmt.Sprintf("%s is not in the image; with all of the base %s opened it", p, opener(opened[p])),
		})
	}
	return out
}

func opener(program string) string {
	if program == "" {
		return "a program that had ended"
	}
	return program
}

// Use tells how much of an image was opened.
type Use struct {
	Opened Amount `json:"opened"`
	All    Amount `json:"all"`
	// Idle are files that were never opened, the largest first.
	Idle []IdleFile `json:"idle"`
}

// Amount counts regular files.
type Amount struct {
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
}

func (a *Amount) add(size int64) { a.Files, a.Bytes = a.Files+1, a.Bytes+size }

// IdleFile is a file that was never opened.
type IdleFile struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
}

// maxIdle is how many idle files are named.
const maxIdle = 100

// UseOf counts what of the files was opened.
func UseOf(files *tree.Image, opened map[string]string) *Use {
	u := &Use{Idle: []IdleFile{}}
	for e := range files.Walk("/") {
		if e.Type != image.TypeFile {
			continue
		}
		u.All.add(e.Size)
		if _, ok := opened[e.Path]; ok {
			u.Opened.add(e.Size)
		} else {
			u.Idle = append(u.Idle, IdleFile{path.Clean(e.Path), e.Size})
		}
	}
	slices.SortStableFunc(u.Idle, func(a, b IdleFile) int { return cmp.Compare(b.Bytes, a.Bytes) })
	u.Idle = slices.Clip(u.Idle[:min(len(u.Idle), maxIdle)])
	return u
}

const reachRule = "run-reach"
