package main

import (
	"context"
	"debug/elf"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/internal/ocitest"
	"github.com/slimctl/slimctl/internal/registry"
	"github.com/slimctl/slimctl/internal/standin"
)

// testContext outlives each test; what belongs to one is stopped by it.
var testContext = context.Background()

// TestScripts runs testdata/script. Each script says in its first comment what it guards; commands below are the words
// that scripts have beside testscript's own.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:   filepath.Join("testdata", "script"),
		Setup: setupScript,
		Condition: func(cond string) (bool, error) {
			if cond == "root" {
				return os.Getuid() == 0, nil
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"fails": cmdFails, "registry": cmdRegistry, "planted": cmdPlanted, "pasted": cmdPasted, "grown": cmdGrown, "drifted": cmdDrifted, "tree": cmdTree, "file": cmdFile,
			"elf": cmdELF, "config": cmdConfig, "digest": cmdDigest, "same": cmdSame, "ls": cmdLs, "flip": cmdFlip,
			"other": cmdOther, "append": cmdAppend, "cache": cmdCache, "onlypath": cmdOnlyPath, "login": cmdLogin, "status": cmdStatus,
		},
		RequireUniqueNames: true,
	})
}

func setupScript(e *testscript.Env) error {
	env, err := privateEnv(e.WorkDir)
	if err != nil {
		return err
	}
	for _, kv := range env {
		k, v, _ := strings.Cut(kv, "=")
		if k != "PATH" { // testscript's own has slimctl
			e.Setenv(k, v)
		}
	}
	for _, line := range []string{"A", "B", "C"} {
		paths, err := shared()
		if err != nil {
			return err
		}
		for _, p := range paths {
			if strings.HasPrefix(filepath.Base(p), "standin-"+strings.ToLower(line)+"-") {
				e.Setenv("LINE_"+line, p)
			}
		}
	}
	assets, err := filepath.Abs("../../assets")
	e.Setenv("ASSETS", assets)
	e.Values[registryKey{}] = new(atomic.Pointer[registry.Server])
	return err
}

type registryKey struct{}

// scriptTB lets helpers for testing.TB fail a script.
type scriptTB struct {
	testing.TB
	ts *testscript.TestScript
}

func (s scriptTB) Helper()                           {}
func (s scriptTB) Fatal(args ...any)                 { s.ts.Fatalf("%s", fmt.Sprint(args...)) }
func (s scriptTB) Fatalf(format string, args ...any) { s.ts.Fatalf(format, args...) }

// fails CODE PROGRAM ARGS...: the program must end with that code and say so properly.
func cmdFails(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: fails CODE PROGRAM ARGS...")
	}
	err := ts.Exec(args[1], args[2:]...)
	var exit *exec.ExitError
	code := 0
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	stderr := ts.ReadFile("stderr")
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("exit code %d, want %s; stderr:\n%s", code, args[0], stderr)
	}
	if code == 0 {
		return
	}
	if bad := badFailure(ts.ReadFile("stdout"), stderr); bad != "" {
		ts.Fatalf("%s", bad)
	}
}

// status CODE PROGRAM ARGS...: the program must end with that code.
func cmdStatus(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status CODE PROGRAM ARGS...")
	}
	err := ts.Exec(args[1], args[2:]...)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || strconv.Itoa(exit.ExitCode()) != args[0] {
		ts.Fatalf("%v, want exit status %s; stderr:\n%s", err, args[0], ts.ReadFile("stderr"))
	}
}

// badFailure tells what is wrong with how a failure was reported.
func badFailure(stdout, stderr string) string {
	switch {
	case stdout != "":
		return fmt.Sprintf("a failure prints no result, and this one printed %q", stdout)
	case strings.Contains(stderr, "goroutine ") || strings.Contains(stderr, "panic:"):
		return "panic: " + stderr
	case strings.Contains(stderr, "failed to"):
		return "the error says that something failed, and not what is wrong: " + stderr
	case strings.Contains(stderr, "%!"):
		return "the error's format is wrong: " + stderr
	}
	if n := strings.Count(stderr, "slimctl: error: "); n != 1 {
		return fmt.Sprintf("%d errors on stderr, want one: %s", n, stderr)
	}
	return ""
}

// registry start [USER:PASSWORD [bearer]]: a new one, at $REGISTRY
// registry load REPO:TAG LAYOUT | tag REPO:TAG VARIABLE
// registry fault METHOD PATH ACTION | fault off: see parseFault
// registry reset: forgets the requests so far
// registry pulled-less BYTES | pushed-blobs BYTES | requests REGEXP COUNT: checks what was requested since
func cmdRegistry(ts *testscript.TestScript, neg bool, args []string) {
	slot := ts.Value(registryKey{}).(*atomic.Pointer[registry.Server])
	if len(args) == 0 || neg {
		ts.Fatalf("usage: registry start|load|fault|latency|reset|...")
	}
	if args[0] == "start" {
		var o registry.Options
		if len(args) > 1 {
			o.User, o.Password, _ = strings.Cut(args[1], ":")
			o.Bearer = len(args) > 2 && args[2] == "bearer"
		}
		s, err := registry.Serve(testContext, "", o)
		ts.Check(err)
		ts.Defer(s.Stop)
		slot.Store(s)
		ts.Setenv("REGISTRY", s.Host)
		return
	}
	s := slot.Load()
	if s == nil {
		ts.Fatalf("registry start comes first")
	}
	switch args[0] {
	case "load":
		repo, tag, _ := strings.Cut(args[1], ":")
		ts.Check(s.LoadLayout(repo, tag, ts.MkAbs(args[2])))
	case "fault":
		if args[1] == "off" {
			s.Fault(nil)
			return
		}
		action, err := parseFault(args[3])
		ts.Check(err)
		s.Fault(faultOn(args[1], args[2], action))
	case "reset":
		s.Reset()
	case "pulled-less", "pushed-blobs":
		want, err := strconv.ParseInt(args[1], 10, 64)
		ts.Check(err)
		st := s.Stats()
		switch {
		case args[0] == "pulled-less" && (st.BytesOut >= want || st.BytesOut == 0):
			ts.Fatalf("%d bytes were pulled, want less than %d and more than none: %v", st.BytesOut, want, st.ByKind)
		case args[0] == "pushed-blobs" && st.BlobBytesIn != want:
			ts.Fatalf("%d bytes of blobs were pushed, want %d: %v", st.BlobBytesIn, want, st.ByKind)
		}
	case "tag": // registry tag REPO:TAG VARIABLE
		n, err := name.ParseReference(s.Host + "/" + args[1])
		ts.Check(err)
		desc, err := remote.Head(n)
		ts.Check(err)
		ts.Setenv(args[2], desc.Digest.String())
	case "requests":
		re := regexp.MustCompile(args[1])
		n := 0
		for _, r := range s.Records() {
			if re.MatchString(r.Method + " " + r.Path) {
				n++
			}
		}
		if strconv.Itoa(n) != args[2] {
			ts.Fatalf("%d requests match %s, want %s", n, args[1], args[2])
		}
	default:
		ts.Fatalf("registry %s: unknown", args[0])
	}
}

// parseFault reads 401, hang, cut, cut=N, gone (done, but not answered) or corrupt.
func parseFault(s string) (registry.Fault, error) {
	word, number, _ := strings.Cut(s, "=")
	switch word {
	case "hang":
		return registry.Fault{Hang: true}, nil
	case "gone":
		return registry.Fault{CutAfter: -1}, nil
	case "corrupt":
		return registry.Fault{Corrupt: true}, nil
	case "cut":
		n, err := strconv.ParseInt(number, 10, 64)
		if number == "" {
			n, err = 100, nil
		}
		return registry.Fault{CutAfter: n}, err
	}
	status, err := strconv.Atoi(word)
	return registry.Fault{Status: status, Body: `{"errors":[{"code":"TEST","message":"the test says so"}]}`}, err
}

// faultOn plays f at every request of the method whose path matches.
func faultOn(method, path string, f registry.Fault) func(*http.Request) *registry.Fault {
	re := regexp.MustCompile(path)
	return func(r *http.Request) *registry.Fault {
		if r.Method == method && re.MatchString(r.URL.Path) {
			return &f
		}
		return nil
	}
}

// planted DIR LINE PATH...: a stand-in with one more file at each path; without what -PATH names; with a program at +PATH, one
// of another machine at @PATH, and a symlink at PATH>TARGET.
func cmdPlanted(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: planted DIR LINE PATH...")
	}
	o := standin.Options{Line: args[1], Platforms: []string{"linux/amd64"}}
	for _, p := range args[2:] {
		machine := elf.EM_X86_64
		link, target, isLink := strings.Cut(p, ">")
		switch {
		case isLink:
			o.Extra = append(o.Extra, image.Symlink(link, target))
		case p[0] == '-':
			o.Extra = append(o.Extra, image.Whiteout(p[1:]))
		case p[0] == '@':
			machine = elf.EM_AARCH64
			fallthrough
		case p[0] == '+':
			header := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 57)...)
			binary.LittleEndian.PutUint16(header[16:], uint16(elf.ET_EXEC))
			binary.LittleEndian.PutUint16(header[18:], uint16(machine))
			o.Extra = append(o.Extra, image.Bytes(p[1:], 0o755, header))
		default:
			o.Extra = append(o.Extra, image.Bytes(p, 0o644, []byte("planted\n")))
		}
	}
	_, err := standin.Write(testContext, ts.MkAbs(args[0]), o)
	ts.Check(err)
}

// pasted FILE: the profile that the last command's error advises, in a file.
func cmdPasted(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: pasted FILE")
	}
	_, advice, ok := strings.Cut(ts.ReadFile("stderr"), "build with a profile that names it:\n")
	if !ok {
		ts.Fatalf("the error advises no profile")
	}
	text := ""
	for line := range strings.Lines(advice) {
		rest, ok := strings.CutPrefix(line, "  ")
		if !ok {
			break
		}
		text += rest
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o644))
}

// grown DIR LINE [renamed]: a stand-in with what a later base may bring; with all that only the base's own programs know by
// name called otherwise. DIR.told has what slimctl must say of it.
func cmdGrown(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 || len(args) > 3 {
		ts.Fatalf("usage: grown DIR LINE [renamed]")
	}
	o := standin.Options{Line: args[1], Platforms: []string{"linux/amd64"}}
	var told []string
	o.Extra, o.Env, told = standin.News(args[1])
	if len(args) == 3 {
		o.Rename = rand.Uint64()
		ts.Logf("seed %d", o.Rename)
	}
	dir := ts.MkAbs(args[0])
	_, err := standin.Write(testContext, dir, o)
	ts.Check(err)
	if o.Rename != 0 {
		kept := []string{"/opt/skills", "/opt/aio", "/opt/terminal", "/opt/browser-ui", "/opt/repl-servers", "/opt/aio-staged-configs"} // that nothing of the image reads
		for p, e := range ocitest.Tree(scriptTB{ts: ts}, scriptImage(ts, []string{"oci:" + args[0], "linux/amd64"}, "grown DIR LINE")) {
			new := slices.ContainsFunc(o.Extra, func(f image.File) bool { return f.Path == p })
			in := func(dir string) bool { return image.Within(p, dir) }
			if !new && e.Type != image.TypeDir && slices.ContainsFunc(standin.Renamed, in) && !slices.ContainsFunc(kept, in) {
				told = append(told, p)
			}
		}
	}
	slices.Sort(told)
	ts.Check(os.WriteFile(dir+".told", []byte(strings.Join(told, "\n")+"\n"), 0o644))
}

// drifted DIR IMAGE: the last program named each line of DIR.told as removed, and nothing else, and IMAGE has none of it.
func cmdDrifted(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: drifted DIR IMAGE")
	}
	want := strings.Fields(strings.ReplaceAll(ts.ReadFile(args[0]+".told"), " ", "\x00"))
	var got []string
	for line := range strings.Lines(ts.ReadFile("stderr")) {
		if name, ok := strings.CutPrefix(line, "new upstream, removed: "); ok {
			name, _, _ = strings.Cut(name, " (")
			got = append(got, strings.ReplaceAll(name, " ", "\x00"))
		}
	}
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		ts.Fatalf("told (-want +got):\n%s", d)
	}
	img := scriptImage(ts, []string{args[1], "linux/amd64"}, "drifted DIR IMAGE")
	tree := ocitest.Tree(scriptTB{ts: ts}, img)
	for _, p := range want {
		if _, ok := tree[p]; ok {
			ts.Fatalf("%s has %s", args[1], p)
		}
	}
}

// scriptImage opens IMAGE for PLATFORM, the first two arguments.
func scriptImage(ts *testscript.TestScript, args []string, usage string) v1.Image {
	if len(args) != len(strings.Fields(usage))-1 {
		ts.Fatalf("usage: %s", usage)
	}
	kind, rest, ok := strings.Cut(args[0], ":")
	ref := args[0]
	if ok && slices.Contains([]string{"oci", "oci-archive", "docker-archive"}, kind) {
		ref = kind + ":" + ts.MkAbs(rest)
	}
	images := imagesOf(scriptTB{ts: ts}, ref, ts.Getenv("WORK"))
	img, ok := images[args[1]]
	if !ok {
		ts.Fatalf("%s has no platform %s: %v", args[0], args[1], slices.Sorted(maps.Keys(images)))
	}
	return img
}

// tree IMAGE PLATFORM prints the merged tree.
func cmdTree(ts *testscript.TestScript, _ bool, args []string) {
	img := scriptImage(ts, args, "tree IMAGE PLATFORM")
	listing(ts.Stdout(), ocitest.Tree(scriptTB{ts: ts}, img))
}

// file IMAGE PLATFORM PATH prints a file of the merged tree.
func cmdFile(ts *testscript.TestScript, _ bool, args []string) {
	img := scriptImage(ts, args, "file IMAGE PLATFORM PATH")
	data, err := fileIn(img, args[2])
	ts.Check(err)
	_, err = ts.Stdout().Write(data)
	ts.Check(err)
}

// elf IMAGE PLATFORM PATH prints the machine of a program in the merged tree.
func cmdELF(ts *testscript.TestScript, _ bool, args []string) {
	img := scriptImage(ts, args, "elf IMAGE PLATFORM PATH")
	data, err := fileIn(img, args[2])
	ts.Check(err)
	machine, err := machineOf(data)
	ts.Check(err)
	fmt.Fprintln(ts.Stdout(), machine)
}

// config IMAGE PLATFORM prints the image config and the manifest's annotations.
func cmdConfig(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(describeImage(ts.Stdout(), scriptImage(ts, args, "config IMAGE PLATFORM")))
}

var resultLine = regexp.MustCompile(`^(?:\S+@)?(sha256:[0-9a-f]{64})\n$`)

// digest VARIABLE: the last program printed exactly one line, and the digest in it goes to the variable.
func cmdDigest(ts *testscript.TestScript, _ bool, args []string) {
	m := resultLine.FindStringSubmatch(ts.ReadFile("stdout"))
	if m == nil || len(args) != 1 {
		ts.Fatalf("standard output is not one line with a digest: %q", ts.ReadFile("stdout"))
	}
	ts.Setenv(args[0], m[1])
}

// [!] same A B
func cmdSame(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 || args[0] == "" || (args[0] == args[1]) == neg {
		ts.Fatalf("%q: unexpected", args)
	}
}

// ls DIR NAME...: the directory holds these and nothing else, hidden files included.
func cmdLs(ts *testscript.TestScript, _ bool, args []string) {
	got := entries(ts.MkAbs(args[0]))
	want := slices.Sorted(slices.Values(args[1:]))
	if !slices.Equal(got, want) {
		ts.Fatalf("%s holds %q, want %q", args[0], got, want)
	}
}

// flip LAYOUT: changes one byte of its largest layer, whose digest goes to FLIPPED.
func cmdFlip(ts *testscript.TestScript, _ bool, args []string) {
	blob, err := largestBlob(ts.MkAbs(args[0]))
	ts.Check(err)
	ts.Check(flipByte(blob))
	ts.Setenv("FLIPPED_HEX", filepath.Base(blob))
	ts.Setenv("FLIPPED", "sha256:"+filepath.Base(blob))
}

// other DIR: a layout of an image for linux/amd64 that is no AIO Sandbox.
func cmdOther(ts *testscript.TestScript, _ bool, args []string) {
	img, err := random.Image(1000, 2)
	ts.Check(err)
	config, err := img.ConfigFile()
	ts.Check(err)
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	img, err = mutate.ConfigFile(img, config)
	ts.Check(err)
	p, err := layout.Write(ts.MkAbs(args[0]), empty.Index)
	ts.Check(err)
	ts.Check(p.AppendImage(img))
}

// append FILE: one more byte.
func cmdAppend(ts *testscript.TestScript, _ bool, args []string) {
	data := ts.ReadFile(args[0])
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(data+" "), 0o644))
}

// cache DIR: a cache with the shared payload and stand-ins in it, that knows no base.
func cmdCache(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(coldCache(ts.MkAbs(args[0])))
}

// onlypath DIR PROGRAM...: makes DIR the only directory on PATH, with these programs in it.
func cmdOnlyPath(ts *testscript.TestScript, _ bool, args []string) {
	dir := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(dir, 0o755))
	for _, program := range args[1:] {
		p, err := exec.LookPath(program)
		ts.Check(err)
		ts.Check(os.Symlink(p, filepath.Join(dir, program)))
	}
	ts.Setenv("PATH", dir)
}

// login USER:PASSWORD: writes $DOCKER_CONFIG/config.json for the registry.
func cmdLogin(ts *testscript.TestScript, _ bool, args []string) {
	dir := ts.Getenv("DOCKER_CONFIG")
	ts.Check(os.MkdirAll(dir, 0o755))
	config, err := json.Marshal(map[string]any{"auths": map[string]any{
		ts.Getenv("REGISTRY"): map[string]string{"auth": base64.StdEncoding.EncodeToString([]byte(args[0]))},
	}})
	ts.Check(err)
	ts.Check(os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600))
}
