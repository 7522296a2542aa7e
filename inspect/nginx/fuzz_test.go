package nginx

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/slimctl/slimctl/assets"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/internal/need"
)

// FuzzConfig reads any bytes as a main file and one that it includes, as it is and as a template.
func FuzzConfig(f *testing.F) {
	holes, err := filepath.Glob("testdata/holes/*.txtar")
	if err != nil || len(holes) == 0 {
		f.Fatalf("%d holes, %v", len(holes), err)
	}
	for _, name := range holes {
		archive, err := txtar.ParseFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(archive.Files[0].Data, archive.Files[len(archive.Files)-1].Data)
	}
	for _, name := range []string{"nginx-server.conf", "nginx-http.conf"} {
		data, err := assets.FS.ReadFile("nginx/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte("events {} http { include other.conf; }"), data)
	}
	for _, name := range []string{"a/opt/gem/nginx-server-with-auth.conf", "b/opt/gem/nginx/header_proxy.conf", "b/opt/gem/nginx-server-port-proxy.conf.template"} {
		data, err := os.ReadFile("../../internal/standin/files/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte("events {} http { include *.conf; include made; map $uri $x { include other.conf; ~(?<a>b) $a; } }"), data)
	}
	f.Fuzz(func(t *testing.T, main, other []byte) {
		im, err := tree.FromFiles(t.Context(), nil, image.Bytes("/c/nginx.conf", 0o644, main), image.Bytes("/c/other.conf", 0o644, other))
		if err != nil {
			t.Fatal(err)
		}
		watch := time.AfterFunc(need.Patience, func() { panic("it takes more than " + need.Patience.String()) })
		defer watch.Stop()
		for _, o := range []Options{
			{},
			{Env: map[string]string{"PORT": "80", "A": "\n};{"}, Rendered: map[string][]Template{
				"/c/made": {{Path: "/c/other.conf"}, {Path: "/c/nginx.conf", Variables: []string{"PORT", "A"}}, {}},
			}},
		} {
			configs, err := Read(t.Context(), im, "/c/nginx.conf", o)
			if err != nil || len(configs) == 0 {
				t.Fatalf("%d configurations, %v", len(configs), err)
			}
			exercise(t, configs)
		}
	})
}
