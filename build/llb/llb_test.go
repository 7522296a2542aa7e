package llb_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	bk "github.com/moby/buildkit/client/llb"
	"github.com/moby/buildkit/solver/pb"
	"github.com/moby/patternmatcher"
	"github.com/opencontainers/go-digest"

	"github.com/slimctl/slimctl/build"
	"github.com/slimctl/slimctl/build/ledger/ledgertest"
	"github.com/slimctl/slimctl/build/llb"
	"github.com/slimctl/slimctl/image"
)

func recipe() *build.Recipe {
	return &build.Recipe{
		Profile: "l0", Platform: v1.Platform{OS: "linux", Architecture: "arm64"}, Epoch: time.Unix(1e9, 0).UTC(),
		Base: build.Base{
			Reference: "registry.example:5000/aio/sandbox:1.9.3@sha256:" + strings.Repeat("0", 64), Image: empty.Image,
			Index: v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("ab", 32)},
		},
		Dirs: map[string]image.Entry{"/opt": {Path: "/opt", Type: image.TypeDir, Mode: 0o755}},
		Removals: []build.Remove{
			{Path: "/opt/a"},
			{Path: "/opt/b"},
		},
		Overlays: []build.Lay{
			{Name: "payload", Files: []image.File{image.Bytes("/opt/c", 0o644, []byte("c"))}},
		},
	}
}

// vertex is one operation of a definition, in printable form.
type vertex struct {
	Digest   digest.Digest
	Name     string
	Platform string
	Inputs   []digest.Digest
	Op       *pb.Op
}

// vertices returns the operations of a definition, inputs first. It omits the last one, which only names the result.
func vertices(def *bk.Definition) ([]vertex, error) {
	var out []vertex
	for _, dt := range def.Def {
		var op pb.Op
		if err := op.UnmarshalVT(dt); err != nil {
			return nil, err
		}
		if op.Op == nil {
			continue
		}
		v := vertex{Digest: digest.FromBytes(dt), Op: &op}
		v.Name = def.Metadata[v.Digest].Description["llb.customname"]
		if p := op.Platform; p != nil {
			v.Platform = p.OS + "/" + p.Architecture
		}
		for _, in := range op.Inputs {
			v.Inputs = append(v.Inputs, digest.Digest(in.Digest))
		}
		out = append(out, v)
	}
	return out, nil
}

func definition(t *testing.T, form llb.Form) *bk.Definition {
	t.Helper()
	def, err := llb.Marshal(t.Context(), recipe(), llb.Options{Form: form})
	if err != nil {
		t.Fatal(err)
	}
	return def
}

// names lists the vertices, each with those it reads.
func names(t *testing.T, def *bk.Definition) []string {
	t.Helper()
	all, err := vertices(def)
	if err != nil {
		t.Fatal(err)
	}
	byDigest := map[string]string{}
	var out []string
	for _, v := range all {
		name := strings.TrimPrefix(v.Name, "[linux/arm64] ")
		if name == v.Name {
			t.Errorf("vertex %q doesn't say its platform", v.Name)
		}
		byDigest[v.Digest.String()] = name
		line := name
		for i, in := range v.Inputs {
			line += []string{" <- ", ", "}[min(i, 1)] + byDigest[in.String()]
		}
		out = append(out, line)
	}
	return out
}

func TestForms(t *testing.T) {
	base := "base registry.example:5000/aio/sandbox:1.9.3@sha256:" + strings.Repeat("0", 64)
	for form, want := range map[llb.Form][]string{
		// Nothing reads the base but the merge: that is what keeps it lazy.
		llb.Merge: {
			base,
			"context",
			"stub of what is removed, with the base's directories <- context",
			"remove 2 paths <- stub of what is removed, with the base's directories",
			"removals as whiteouts <- stub of what is removed, with the base's directories, remove 2 paths",
			"lay payload (1 files) <- context",
			"l0 on " + strings.TrimPrefix(base, "base ") + " <- " + base + ", removals as whiteouts, lay payload (1 files)",
		},
		llb.Simple: {
			base,
			"remove 2 paths <- " + base,
			"context",
			"lay payload (1 files) <- remove 2 paths, context",
		},
	} {
		if diff := cmp.Diff(want, names(t, definition(t, form))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", form, diff)
		}
	}
}

func TestBaseIsPinned(t *testing.T) {
	all, err := vertices(definition(t, llb.Merge))
	if err != nil {
		t.Fatal(err)
	}
	want := "docker-image://registry.example:5000/aio/sandbox@sha256:" + strings.Repeat("ab", 32)
	if got := all[0].Op.GetSource().GetIdentifier(); got != want {
		t.Errorf("base is %s, want %s", got, want)
	}
}

func TestOneRecipeGivesOneDefinition(t *testing.T) {
	for _, form := range []llb.Form{llb.Merge, llb.Simple} {
		var one, two bytes.Buffer
		if err := llb.WritePB(&one, definition(t, form)); err != nil {
			t.Fatal(err)
		}
		if err := llb.WritePB(&two, definition(t, form)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(one.Bytes(), two.Bytes()) {
			t.Errorf("%s: two renderings differ", form)
		}
	}
}

func TestRefusals(t *testing.T) {
	if _, err := llb.Marshal(t.Context(), recipe(), llb.Options{Form: "other"}); err == nil || !strings.Contains(err.Error(), `"other"`) {
		t.Errorf("an unknown form: %v", err)
	}
	r := recipe()
	r.Strip = &build.Strip{Layers: []build.Component{}, Ledger: ledgertest.Layer(t, "/odd\xff")}
	if _, err := llb.Marshal(t.Context(), r, llb.Options{}); err == nil || !strings.Contains(err.Error(), `"/odd\xff", which isn't UTF-8`) {
		t.Errorf("a path that LLB can't say: %v", err)
	}
	r.Strip = &build.Strip{Layers: []build.Component{}}
	if _, err := llb.Marshal(t.Context(), r, llb.Options{}); err == nil {
		t.Error("a stripped base without a ledger is accepted")
	}
}

// TestStripLeavesOut: what goes is left out of the copy by patterns that match nothing else, the highest paths of it alone.
func TestStripLeavesOut(t *testing.T) {
	names := []string{"/opt/a", "/opt/a/b", "/! x", "/usr/[a]*?\\", "/usr/x ", "/usr/\tx\n"}
	r := recipe()
	r.Strip = &build.Strip{Layers: []build.Component{}, Ledger: ledgertest.Layer(t, names...)}
	def, err := llb.Marshal(t.Context(), r, llb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var patterns []string
	for _, raw := range def.Def {
		var op pb.Op
		if err := op.UnmarshalVT(raw); err != nil {
			t.Fatal(err)
		}
		for _, a := range op.GetFile().GetActions() {
			patterns = append(patterns, a.GetCopy().GetExcludePatterns()...)
		}
	}
	if want := len(names) - 1; len(patterns) != want {
		t.Fatalf("%d patterns, want %d: %q", len(patterns), want, patterns)
	}
	for _, name := range names {
		if ok, err := patternmatcher.MatchesOrParentMatches(strings.TrimPrefix(name, "/"), patterns); err != nil || !ok {
			t.Errorf("%q is not left out: %v", name, err)
		}
	}
	for _, name := range []string{"/opt", "/opt/ab", "/! xy", "/usr/aa", "/usr/a", "/usr/x", "/x", "/usr/tx", "/usr"} {
		if ok, err := patternmatcher.MatchesOrParentMatches(strings.TrimPrefix(name, "/"), patterns); err != nil || ok {
			t.Errorf("%q is left out: %v", name, err)
		}
	}
}

func TestContextIsWholeOrNotThere(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "context")
	bad := recipe()
	bad.Overlays = append(bad.Overlays, build.Lay{Name: "broken", Files: []image.File{{Entry: image.Entry{Path: "/x", Type: image.TypeFile, Size: 1}}}})
	if err := llb.WriteContext(dir, []*build.Recipe{recipe(), bad}, nil); err == nil {
		t.Fatal("a file without content is accepted")
	}
	left, err := os.ReadDir(filepath.Dir(dir))
	if err != nil || len(left) > 0 {
		t.Errorf("%v, %v are left of a context that couldn't be written", left, err)
	}
	if err := llb.WriteContext(dir, []*build.Recipe{recipe()}, nil); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"stub.tar", "payload.layer.tar", "config.json"} {
		if _, err := os.Stat(filepath.Join(dir, "linux-arm64", name)); err != nil {
			t.Error(err)
		}
	}
	if err := llb.WriteContext(dir, []*build.Recipe{recipe()}, nil); err == nil {
		t.Error("an existing context is overwritten")
	}
}
