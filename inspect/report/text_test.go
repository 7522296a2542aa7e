package report

import (
	"fmt"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/inspect"
	"github.com/slimctl/slimctl/inspect/diff"
	"github.com/slimctl/slimctl/inspect/nginx"
)

func TestBriefRoutes(t *testing.T) {
	proxy := func(path, to, auth string, public bool) nginx.Route {
		target := nginx.Target{Kind: nginx.Proxy, Value: "http://" + to, Addresses: []string{to}}
		return nginx.Route{Path: path, Auth: auth, Public: public, Answers: true, Target: target}
	}
	closed := nginx.Route{Path: "/", Public: true, Target: nginx.Target{Kind: nginx.Return, Status: 403}}
	free := proxy("/p/", "127.0.0.1:$port", "", true)
	free.Target.Chosen, free.Target.Free = []string{"$port"}, true
	for _, tt := range []struct {
		name   string
		routes []nginx.Route
		want   string
	}{
		{"one target", []nginx.Route{proxy("/a", "h:1", "", true), proxy("/b", "h:1", "", true), proxy("/c", "h:2", "", true)}, `
  h:1  no auth  /a, /b
  h:2  no auth  /c
`},
		{"a key is a difference", []nginx.Route{proxy("/a", "h:1", "", true), proxy("/b", "h:1", "/_auth", true)}, `
  h:1  no auth      /a
  h:1  auth /_auth  /b
`},
		{"what is public on loopback, too, is told once", []nginx.Route{proxy("/a", "h:1", "", false), proxy("/a", "h:1", "", true)}, `
  h:1  no auth  /a
  and 1 the same on loopback
`},
		{"what is other on loopback is told", []nginx.Route{proxy("/a", "h:1", "/_auth", true), proxy("/a", "h:1", "", false)}, `
  h:1  auth /_auth           /a
  h:1  no auth, on loopback  /a
`},
		{"where the request decides", []nginx.Route{free}, `
  as the request says: 127.0.0.1:$port  no auth  /p/
`},
		{"nothing answers", []nginx.Route{closed, closed}, `
  and 2 answer no request from outside
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := routes(&inspect.Surface{Routes: tt.routes})
			_, got, _ := strings.Cut(texter{}.section(s), "\n")
			if want := strings.TrimPrefix(tt.want, "\n"); got != want {
				t.Errorf("got\n%swant\n%s", got, want)
			}
		})
	}
}

// The tree of a diff has as many levels as a screen takes, and all of them with All.
func TestTreeFits(t *testing.T) {
	var changes []diff.Change
	for i := range 30 {
		for j := range 10 {
			changes = append(changes, added(file(fmt.Sprintf("/usr/d%02d/f%d", i, j), 0o644, 1)))
		}
	}
	for _, tt := range []struct {
		name    string
		changes []diff.Change
		o       Options
		want    int
	}{
		{"few", changes[:30], Options{}, 1 + 3 + 30},
		{"many", changes, Options{}, 1 + 30},
		{"all", changes, Options{All: true}, 1 + 30 + 300},
		{"as asked", changes, Options{Depth: 1}, 1},
		{"as asked, and all", changes, Options{Depth: 2, All: true}, 1 + 30},
	} {
		if got := strings.Count(texter{tt.o}.tree(tt.changes), "\n"); got != tt.want {
			t.Errorf("%s: %d lines, want %d", tt.name, got, tt.want)
		}
	}
}
