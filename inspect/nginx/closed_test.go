package nginx

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slimctl/slimctl/assets"
	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
)

// TestClosedImage reads the configurations that slimctl lays: nothing in them is unknown, and only three surfaces answer.
func TestClosedImage(t *testing.T) {
	var files []image.File
	entries, err := assets.FS.ReadDir("nginx")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		f, err := image.FromFS("/opt/gem/"+e.Name(), 0o644, assets.FS, "nginx/"+e.Name())
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	im, err := tree.FromFiles(t.Context(), nil, files...)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"= /mcp: unix:/run/browser-shell-front/mcp.sock, asks /_auth, GET POST DELETE",
		"= /tickets: unix:/run/browser-shell-front/gate.sock, asks /_auth, POST DELETE",
		"= /vnc: redirect /vnc/$is_args$args",
		"/vnc/: static /opt/novnc/, asks /_auth, GET",
		`~ ^/vnc/(?:app|core|vendor)/(?:[A-Za-z0-9_-][A-Za-z0-9._-]*/)*[A-Za-z0-9_-][A-Za-z0-9._-]*\.(?:js|css|svg|png|ico|ttf|woff2?|mp3|oga)\z: static /opt/novnc/, GET`,
		`~ ^/vnc/app/locale/[A-Za-z_]+\.(?:json)\z: static /opt/novnc/, GET`,
		"= /vnc/websockify: rewrite /websockify",
		"= /websockify: unix:/run/browser-shell-front/gate.sock, asks /_auth, GET",
	}
	for name, public := range map[string]bool{"nginx": true, "nginx-ipv4": true, "nginx-loopback": false, "nginx-loopback-ipv4": false} {
		configs, err := Read(t.Context(), im, "/opt/gem/"+name+".conf", Options{})
		if err != nil || len(configs) != 1 {
			t.Fatalf("%s: %d variants, %v", name, len(configs), err)
		}
		c := &configs[0]
		if len(c.Notes) > 0 || c.User != "nobody" || c.Group != "browser-shell" || len(c.Servers) != 1 {
			t.Errorf("%s: notes %v, user %s, group %s, %d servers", name, c.Notes, c.User, c.Group, len(c.Servers))
		}
		if got := len(c.Answering()) > 0; got != public || c.Servers[0].Public() != public {
			t.Errorf("%s answers in public: %v", name, got)
		}
		var got []string
		for _, r := range c.Routes() {
			if !r.Answers {
				continue
			}
			l := c.Servers[0].Match(r.Pattern)
			if l == nil || l.Path() != r.Path {
				l = c.Servers[0].Match("/vnc/x.js")
			}
			line := r.Path + ": " + short(r.Target)
			if r.Auth != "" {
				line += ", asks " + r.Auth
			}
			for i, m := range l.Methods {
				line += []string{", ", " "}[min(i, 1)] + m
			}
			got = append(got, line)
			for _, o := range r.Also {
				if o.Auth != "/_auth" {
					t.Errorf("%s also ends in %+v", r.Path, o)
				}
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		for _, m := range c.Maps {
			if slices.Contains(m.Parts, "$request_uri") && m.Decides != nil {
				t.Errorf("%s decides %v", m.Variable, m.Decides)
			}
		}
	}
}
