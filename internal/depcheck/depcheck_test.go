// Package depcheck holds the map of rooms: which of our packages may import which, and who may speak BuildKit.
package depcheck

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/slimctl/slimctl/"

// rooms has, for each package, what it may import of ours. "*" at the end of a name stands for any rest. A package
// that isn't here may not exist: put it on the map, and think where it belongs.
var rooms = map[string][]string{
	"image":             {"internal/rawname"},
	"image/deb822":      {},
	"image/elf":         {},
	"image/elf/elftest": {},
	"image/tree":        {"image", "image/elf"},
	"image/output":      {"image"},
	"assets":            {},
	"profiles":          {},

	"slim": {"assets", "build", "build/*", "image", "image/*", "inspect", "inspect/*", "internal/standin", "internal/standin/live", "profiles",
		"server/egress", "server/front", "server/gate", "server/policy"}, // what reads the files that a profile lays

	"build":                   {"build/ledger", "image", "image/output"},
	"build/profile":           {"internal/nearest"},
	"build/resolve":           {"build", "build/keep", "build/ledger", "build/lock", "build/profile", "build/strip", "image", "image/tree", "internal/version"},
	"build/lock":              {"build/profile", "build/strip", "image", "image/elf", "image/tree", "internal/rawname"},
	"build/keep":              {"build/profile", "image", "image/deb822", "image/elf", "image/tree"},
	"build/strip":             {"image", "image/tree", "internal/rawname"},
	"build/ledger":            {"image", "internal/nearest", "internal/rawname"},
	"build/ledger/ledgertest": {"build/ledger"},
	"build/overlays":          {"image", "internal/capture"},
	"build/llb":               {"build", "image"},
	"build/dockerfile":        {"build", "image"},
	"build/embedded":          {"build", "build/ledger", "image"},
	"build/buildkit":          {"build", "build/llb", "image", "image/output"},

	"server":             {"internal/lazyregexp", "server/audit", "server/cdp", "server/egress", "server/front", "server/output", "server/policy", "server/process", "server/protocol", "server/strictjson"},
	"server/audit":       {"internal/lazyregexp"},
	"server/cage":        {},
	"server/cdp":         {},
	"server/cdp/cdptest": {},
	"server/egress":      {"internal/lazyregexp", "server/audit", "server/listen", "server/policy", "server/strictjson"},
	"server/listen":      {},
	"server/gate":        {"internal/lazyregexp", "server/strictjson"},
	"server/front":       {"internal/lazyregexp", "server/audit", "server/listen", "server/protocol", "server/strictjson"},
	"server/output":      {"internal/lazyregexp", "server/strictjson"},
	"server/policy":      {"internal/lazyregexp", "internal/nearest", "server/strictjson"},
	"server/process":     {"internal/capture"},
	"server/protocol":    {"internal/lazyregexp"},
	"server/strictjson":  {},

	"hub":       {"hub/guard", "internal/capture", "server/audit", "server/strictjson"},
	"hub/guard": {},

	"inspect":             {"image", "image/tree", "inspect/mcp", "inspect/nginx", "inspect/packages", "inspect/privilege", "inspect/size", "inspect/start", "inspect/supervisord"},
	"inspect/mcp":         {"image", "image/tree", "server/strictjson"},
	"inspect/nginx":       {"image/tree", "inspect/nginx/*"},
	"inspect/nginx/conf":  {"image", "image/tree"},
	"inspect/packages":    {"image", "image/deb822", "image/tree"},
	"inspect/privilege":   {"image", "image/tree"},
	"inspect/size":        {"image", "image/tree", "inspect/packages"},
	"inspect/shell":       {"image", "image/tree"},
	"inspect/start":       {"image/tree", "inspect/shell"},
	"inspect/supervisord": {"image", "image/tree"},
	"inspect/expect":      {},
	"inspect/diff":        {"image", "image/tree", "inspect", "inspect/*", "internal/rawname"},
	"inspect/verify":      {"image", "image/tree", "inspect", "inspect/*", "internal/rawname"},
	"inspect/acceptance":  {"image", "inspect/expect", "inspect/verify", "inspect/sandbox", "server/policy"}, // which page an image may open
	"inspect/report":      {"image", "image/tree", "inspect", "inspect/*", "internal/rawname"},

	"inspect/sandbox":                            {"image", "inspect/sandbox/rootfs", "internal/capture", "internal/tether", "server/audit", "server/egress", "server/policy", "internal/rawname"}, // one chain, one set of codes, what lets out
	"inspect/sandbox/bridge":                     {"image/tree", "inspect/sandbox", "internal/rawname", "server", "server/policy", "server/protocol"},                                              // its tool, as the image has it
	"inspect/sandbox/rootfs":                     {"image"},
	"inspect/sandbox/sandboxtest":                {},
	"inspect/sandbox/sandboxtest/testdata/guest": {"internal/tether"},
	"inspect/sandbox/compose":                    {"inspect/sandbox", "server/policy"},

	"internal/buildkitd":             {"internal/need"},
	"internal/lazyregexp":            {},
	"internal/cache":                 {},
	"internal/nearest":               {},
	"internal/dockerd":               {"internal/need"},
	"internal/need":                  {},
	"internal/buildkitd/testdata/rm": {},
	"internal/capture":               {},
	"internal/depcheck":              {},
	"internal/docstest":              {},
	"internal/version":               {},
	"internal/imagetest":             {"internal/registry"},
	"internal/ocitest":               {"image"},
	"internal/progress":              {"image", "internal/rawname"},
	"internal/rawname":               {},
	"internal/registry":              {},
	"internal/registry/testregistry": {"internal/registry"},
	"internal/standin":               {"image", "image/tree"},
	"internal/tether":                {},
	"internal/standin/live":          {"image", "image/tree", "internal/standin"},

	"e2e":               {},
	"e2e/seeds":         {},
	"bench/harness":     {"image"},
	"bench/mcp":         {"bench/harness"},
	"bench/mcp/standin": {},
	"bench/inspect":     {"bench/harness", "image", "image/output"},
	"bench/strip":       {"bench/harness", "build/lock", "build/strip", "image", "image/tree", "inspect/sandbox", "inspect/sandbox/rootfs", "slim"}, // its compressor is the floor; what boots
	"bench":             {"bench/harness", "internal/*", "image", "image/*", "build", "build/*", "inspect", "inspect/*"},
	"cmd/mcp-hub":       {"hub", "internal/version", "server/audit", "server/strictjson"}, // on the host; the image's program may not import hub
	"cmd/browser-shell": {"internal/rawname", "internal/tether", "internal/version", "server", "server/*"},
	"cmd/slimctl": {"slim",
		"build/buildkit", "build/dockerfile", "build/ledger", "build/llb", "build/overlays", "inspect/sandbox", "inspect/sandbox/bridge", "inspect/sandbox/compose",
		"internal/cache", "internal/standin", "internal/standin/live", // rooms of one command each
		"build", "build/profile", "build/resolve", "image", "image/output", "image/tree", "inspect", "inspect/diff", "inspect/report", "inspect/verify",
		"internal/nearest", "internal/progress", "internal/rawname", "internal/version", "profiles", "server/egress", "server/policy"}, // what it prints, and reads of flags
}

// speakers are the packages that may import BuildKit, which weighs more than all the rest.
var speakers = []string{"build/llb", "build/dockerfile", "build/buildkit", "internal/buildkitd", "cmd/slimctl", "bench"}

func TestImports(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}}{{range .Imports}} {{.}}{{end}}`, module+"...").Output()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		name, ok := strings.CutPrefix(fields[0], module)
		if !ok {
			continue
		}
		seen++
		allowed, ok := room(name)
		if !ok {
			t.Errorf("%s isn't on the map", name)
			continue
		}
		for _, imported := range fields[1:] {
			ours, isOurs := strings.CutPrefix(imported, module)
			if isOurs && !matches(allowed, ours) {
				t.Errorf("%s imports %s; it may import %v", name, ours, allowed)
			}
			if strings.HasPrefix(imported, "github.com/moby/buildkit/") && !matches(speakers, name) {
				t.Errorf("%s imports %s; BuildKit is for %v", name, imported, speakers)
			}
		}
	}
	if seen < 15 {
		t.Fatalf("go list told of %d packages only", seen)
	}
}

func room(name string) ([]string, bool) {
	if allowed, ok := rooms[name]; ok {
		return allowed, true
	}
	for pattern, allowed := range rooms {
		if strings.HasSuffix(pattern, "*") && matches([]string{pattern}, name) {
			return allowed, true
		}
	}
	return nil, false
}

func matches(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		prefix, isPattern := strings.CutSuffix(p, "*")
		return p == name || isPattern && strings.HasPrefix(name, prefix)
	})
}

// budgets are the most production lines of each area, tests and test support left out. The sum may only fall: who needs
// more takes it from another area in the same commit.
var budgets = map[string]int{
	"server cmd/browser-shell": 18_004,
	"hub cmd/mcp-hub":          2_890,
	"inspect":                  25_664,
	"build":                    12_060,
	"image":                    7_720,
	"slim cmd/slimctl":         5_830,
	"internal":                 1_131,
}

// support matches the packages that only tests use.
var support = regexp.MustCompile(`^internal/(testing|standin|registry|imagetest|ocitest|buildkitd|docstest|need|depcheck|dockerd)(/|$)|cdptest|sandboxtest|elftest|ledgertest`)

func TestBudgets(t *testing.T) {
	for areas, most := range budgets {
		lines := 0
		for area := range strings.FieldsSeq(areas) {
			root := filepath.Join("..", "..", area)
			err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
				if err != nil {
					return err
				}
				name, _ := filepath.Rel(filepath.Join("..", ".."), p) // both are relative
				switch {
				case d.IsDir() && (d.Name() == "testdata" || support.MatchString(name)):
					return fs.SkipDir
				case d.IsDir() || !strings.HasSuffix(p, ".go") || strings.HasSuffix(p, "_test.go"):
					return nil
				}
				text, err := os.ReadFile(p)
				lines += bytes.Count(text, []byte("\n"))
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if lines > most {
			t.Errorf("%s: %d lines, budget %d", areas, lines, most)
		}
		t.Logf("%s: %d of %d", areas, lines, most)
	}
}
