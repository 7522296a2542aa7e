package slim_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/slimctl/slimctl/image/output"
	"github.com/slimctl/slimctl/slim"
)

// Build makes the slim image of a base and writes it as an OCI layout. With a registry's name as the base, and Tags and Push
// in the target, no layer of the base is transferred.
func ExampleBuild() {
	dir, err := os.MkdirTemp("", "slim-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)

	var o slim.BuildOptions
	o.Profile, o.Base = "l0", "standin:B"
	o.Target.Files = []output.Spec{{Type: output.OCI, Dest: filepath.Join(dir, "slim")}}
	built, err := slim.Build(context.Background(), o)
	if err != nil {
		panic(err)
	}
	for _, r := range built.Recipes {
		fmt.Println(r.Platform)
	}
	fmt.Println("verified:", built.Report.Passed)

	src, err := slim.Open(context.Background(), o.Access, "oci:"+o.Target.Files[0].Dest)
	if err != nil {
		panic(err)
	}
	fmt.Println("written:", src.Digest() == built.Image.Digest)
	// Output:
	// linux/amd64
	// linux/arm64
	// verified: true
	// written: true
}

// Resolve returns the steps that a build takes, without an image.
func ExampleResolve() {
	var o slim.ResolveOptions
	o.Base, o.Platforms, o.NoLock = "standin:B", []string{"linux/arm64"}, true
	r, err := slim.Resolve(context.Background(), o)
	if err != nil {
		panic(err)
	}
	recipe := r.Recipes[0]
	fmt.Println(r.Profile.Name, "on line", recipe.Base.Line)
	fmt.Println("removes something:", len(recipe.Removals) > 0)
	for _, lay := range recipe.Overlays[:2] {
		fmt.Println("lays", lay.Name)
	}
	// Output:
	// l0 on line B
	// removes something: true
	// lays payload
	// lays browser-shell
}

// Verify says what is wrong with an image: with the base itself, that it isn't slim.
func ExampleVerify() {
	o := slim.VerifyOptions{Image: "standin:B"}
	o.Base, o.Platforms = "standin:B", []string{"linux/amd64"}
	v, err := slim.Verify(context.Background(), o)
	if err != nil {
		panic(err)
	}
	fmt.Println("profile:", v.Report.Profile)
	fmt.Println("passed:", v.Report.Passed)
	fmt.Println("has findings:", len(v.Report.Findings) > 0)
	// Output:
	// profile: l0
	// passed: false
	// has findings: true
}

// Diff compares two images. The lines A and B of the base differ in what answers from outside.
func ExampleDiff() {
	diffs, err := slim.Diff(context.Background(), slim.DiffOptions{Base: "standin:A", Slim: "standin:B", Platforms: []string{"linux/amd64"}})
	if err != nil {
		panic(err)
	}
	for _, d := range diffs {
		fmt.Println(d.Platform, "same:", d.Same)
	}
	// Output:
	// linux/amd64 same: false
}

// Inspect reads what an image exposes, such as the programs that it runs.
func ExampleInspect() {
	img, err := slim.Inspect(context.Background(), slim.InspectOptions{Image: "standin:B", Platforms: []string{"linux/amd64"}})
	if err != nil {
		panic(err)
	}
	surface := img.Images[0].Surface
	fmt.Println(surface.Platform)
	for _, p := range surface.Programs {
		if p.Name == "code-server" || p.Name == "jupyter" {
			fmt.Println("runs", p.Name)
		}
	}
	// Output:
	// linux/amd64
	// runs code-server
	// runs jupyter
}
