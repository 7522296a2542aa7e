package tree_test

import (
	"fmt"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestZZMake(t *testing.T) {
	dir := os.Getenv("ZZDIR")
	n, _ := strconv.Atoi(os.Getenv("ZZFILES"))
	size, _ := strconv.Atoi(os.Getenv("ZZSIZE"))
	nl, _ := strconv.Atoi(os.Getenv("ZZLAYERS"))
	if dir == "" {
		t.Skip()
	}
	seedBase, _ := strconv.Atoi(os.Getenv("ZZSEED"))
	img := newImage(t)
	_ = img
	_, err := layout.Write(dir, zzindex(t, seedBase, nl, n/nl, size))
	if err != nil {
		t.Fatal(err)
	}
}
func hwm() string {
	b, _ := os.ReadFile("/proc/self/status")
	for _, l := range strings.Split(string(b), "\n") {
		if strings.HasPrefix(l, "VmHWM") {
			return l
		}
	}
	return ""
}
func TestZZOpen(t *testing.T) {
	dirs := os.Getenv("ZZOPEN")
	if dirs == "" {
		t.Skip()
	}
	var keep []*tree.Image
	for _, d := range strings.Split(dirs, ",") {
		start := time.Now()
		s, err := image.Open(t.Context(), "oci:"+d, image.Options{})
		if err != nil {
			t.Fatal(err)
		}
		i, err := s.Image(s.Platforms()[0])
		if err != nil {
			t.Fatal(err)
		}
		im, err := tree.Cache{Dir: os.Getenv("ZZCACHE")}.Open(t.Context(), i, tree.Options{})
		if err != nil {
			t.Fatal(err)
		}
		keep = append(keep, im)
		fmt.Println(d, im.Len(), time.Since(start), hwm())
	}
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	fmt.Println("live MB", m.HeapAlloc>>20)
	_ = debug.SetGCPercent
	n := 0
	for _, im := range keep {
		n += len(im.Entries())
	}
	fmt.Println(n, hwm())
	runtime.KeepAlive(keep)
}
func zzindex(t *testing.T, seed, nl, per, size int) v1.ImageIndex {
	img := newImage(t)
	for i := range nl {
		var err error
		img, err = mutate.AppendLayers(img, fileLayer(seed+i, per, size, "gzip"))
		if err != nil {
			t.Fatal(err)
		}
	}
	return mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: "amd64"}}})
}
