package verify_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/verify"
)

// A finding of several places, as nginx's main files make them, is one; that of two platforms is two.
func TestAdd(t *testing.T) {
	f := verify.Finding{Rule: "switch", Severity: verify.Warning, Platform: "linux/amd64", Subject: "X", Message: "x", Places: []tree.Place{{Path: "/a"}}}
	other, arm, grave := f, f, f
	other.Places = []tree.Place{{Path: "/a"}, {Path: "/b"}}
	arm.Platform = "linux/arm64"
	grave.Severity, grave.Rule = verify.Error, "zzz"
	r := verify.Report{Proven: verify.ByDigest}
	r.Add(f, other, arm)
	if len(r.Findings) != 2 || len(r.Findings[0].Places) != 2 || !r.Passed {
		t.Errorf("%+v", r)
	}
	r.Add(grave)
	if r.Passed || r.Findings[0].Rule != "zzz" {
		t.Errorf("%+v", r)
	}
	r.Findings = slices.DeleteFunc(r.Findings, func(f verify.Finding) bool { return f.Severity == verify.Error })
	r.Proven = verify.ByDigest
	r.Add(verify.Finding{Rule: "x", Severity: "fatal"})
	if r.Passed {
		t.Error("a severity that isn't one passes")
	}
}

func TestCheckErrors(t *testing.T) {
	if _, err := verify.Check(t.Context(), verify.Input{}); err == nil {
		t.Error("no image passes")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("enough")
	cancel(reason)
	if _, err := verify.Check(ctx, good().input(t)); !errors.Is(err, reason) {
		t.Errorf("cancelled: %v", err)
	}
	in := good().input(t)
	in.Expect = nil // a profile for no platform
	if r := check(t, in); r.Passed {
		t.Error("an image that nothing is expected of passes")
	}
	in = good().input(t)
	in.Want.Images = nil
	if _, err := verify.Check(t.Context(), in); err == nil {
		t.Error("an image is compared with nothing, and passes")
	}
}

// An image that was compared with nothing passes only where that is asked for; one that is the same is proven, in a word.
func TestProven(t *testing.T) {
	in := good().input(t)
	if r := check(t, in); !r.Passed || r.Proven != verify.ByDigest || !strings.Contains(describe(r), "proven") {
		t.Error(describe(r))
	}
	in.Want = nil
	if r := check(t, in); r.Passed || r.Proven != "" || len(r.Findings) > 0 || !strings.Contains(describe(r), "not proven") {
		t.Error(describe(r))
	}
	in.SurfaceOnly = true
	if r := check(t, in); !r.Passed || r.Proven != "" || !strings.Contains(describe(r), "nothing was proven") {
		t.Error(describe(r))
	}
}

// An image that is made to have thousands of findings has few in the report, with the number of the others.
func TestManyFindings(t *testing.T) {
	f := good()
	var files []image.File
	for i := range 5000 {
		files = append(files, text(fmt.Sprintf("/opt/gem/x%04d.conf", i), ""))
	}
	f.addAbove(files...)
	r := check(t, f.input(t))
	if n := len(r.Findings); n > 2000 || r.Passed {
		t.Errorf("%d findings, passed %v", n, r.Passed)
	}
	if !slices.ContainsFunc(r.Findings, func(f verify.Finding) bool {
		return f.Rule == "file" && strings.Contains(f.Message, "4,500 more findings")
	}) {
		t.Error("the report doesn't say how many there are")
	}
}

// Listeners are the same address however they are written.
func TestListenerSpellings(t *testing.T) {
	for _, tt := range []struct {
		l    inspect.Listener
		want string
		ok   bool
	}{
		{inspect.Listener{Address: "0.0.0.0", Port: 80}, "*:80", true},
		{inspect.Listener{Address: "", Port: 80}, "*:80", true},
		{inspect.Listener{Address: "::", Port: 80}, "[::]:80", true},
		{inspect.Listener{Address: "[::]", Port: 80}, "[::]:80", true},
		{inspect.Listener{Address: "[0:0::1]", Port: 80}, "[::1]:80", true},
		{inspect.Listener{Address: "::ffff:127.0.0.1", Port: 80}, "127.0.0.1:80", true},
		{inspect.Listener{Address: "localhost", Port: 80}, "127.0.0.1:80", true},
		{inspect.Listener{Address: "unix:/run/x.sock"}, "unix:/run/x.sock", true},
		{inspect.Listener{Address: "*", Port: 80}, "127.0.0.1:80", false},
		{inspect.Listener{Address: "[::]", Port: 80}, "*:80", false},
		{inspect.Listener{Address: "*", Port: 81}, "*:80", false},
		{inspect.Listener{Address: "localhost.evil.example", Port: 80}, "127.0.0.1:80", false},
		{inspect.Listener{Address: "unix:/run/x.sock2"}, "unix:/run/x.sock", false},
	} {
		f := good()
		f.surface.Listeners = []inspect.Listener{tt.l}
		f.want.Listeners = append(f.want.Listeners, tt.want)
		if got := !hasError(check(t, f.input(t))); got != tt.ok {
			t.Errorf("%+v fits %s: %v, want %v", tt.l, tt.want, got, tt.ok)
		}
	}
}
