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

// Reach returns a finding for each file of the base that the image lacks and programs opened in the image with the
// complete base. opened maps files to the program that opened them.
func Reach(platform string, opened map[string]string, base, files *tree.Image) []Finding {
	rule := ByID()[reachRule]
	var out []Finding
	for _, p := range slices.Sorted(maps.Keys(opened)) {
		if e, ok := base.Lookup(p); !ok || e.IsDir() {
			continue // from our layers, or created at run time
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

// Use is the amount of an image that was opened.
type Use struct {
	Opened Amount `json:"opened"`
	All    Amount `json:"all"`
	// Idle lists files that were never opened, largest first.
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

// maxIdle limits the number of listed idle files.
const maxIdle = 100

// UseOf counts the opened files.
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
