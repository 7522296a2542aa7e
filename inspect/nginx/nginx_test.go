package nginx

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/internal/need"
)

func TestNotes(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"http {\n server { location /a { proxy_pass http://$nothing; } } }", ":2: unknown \"nothing\" variable"},
		{"http { server { location ~ (?=x) { } } }", ":1: the regular expression \"(?=x)\" is not understood"},
		{"http { server { location ~ (a)\\1 { } } }", ":1: the regular expression \"(a)\\\\1\" is not understood"},
		{"http { server { location ~ a { proxy_pass http://x/y; } } }", ":1: \"proxy_pass\" cannot have an URI"},
		{"http { server { location ! a { } } }", ":1: invalid location modifier \"!\""},
		{"http { server { listen 0; } }", ":1: invalid port in \"0\""},
		{"http { server { listen ${PORT}; } }", ":1: invalid port in \"${PORT}\""},
		{"http { server { proxy_pass http://x; } }", ":1: \"proxy_pass\" directive is not allowed here"},
		{"http { events { } server { proxy_pass http://x; } }", ":1: \"proxy_pass\" directive is not allowed here"},
		{"http { server { location /a { if ($a) { sendfile on; alias x; } limit_except GET { alias x; } } } }", ":1: \"alias\" directive is not allowed here"},
		{"http { upstream a { server; } }", ":1: invalid number of arguments in \"server\" directive"},
		{"stream { server { listen 1; alias x; } }", ":1: \"alias\" directive is not allowed here"},
		{"http { server { listen; } }", ":1: invalid number of arguments in \"listen\" directive"},
		{"http { sendfile maybe; }", ":1: invalid value \"maybe\" in \"sendfile\" directive"},
		{"http { server { location / { content_by_lua_block { if a then return \"}\" end -- } \n } } location /b { } } }", ":1: content_by_lua_block: code decides"},
		{"http { js_import x; }", ":1: js_import x: code decides"},
		{"http { perl_modules x; }", ":1: perl_modules x: code decides"},
		{"load_module x.so;", ":1: load_module x.so: what a module does is not known"},
		{"http { server { shiny on; } }", ":1: \"shiny\" is no directive of nginx itself"},
		{"http {", ":2: unexpected end of file"},
		{"http { } }", ":1: unexpected \"}\""},
		{"http { server_tokens off }", ":1: unexpected \"}\""},
		{"user a\x00b;", ":1: there is a NUL byte"},
		{"include /nginx.conf;", ":1: /nginx.conf includes itself"},
		{"http { server { location / { auth_request /_a; proxy_pass http://x; } location /_a { return 200; } } }", ":1: auth_request /_a asks what lets everybody in"},
		{"http { server { return nowhere; } }", ":1: invalid return code \"nowhere\""},
		{"stream { server { } }", ":1: no \"listen\" is defined"},
	} {
		conf := readConf(t, c.text+"\nevents {}")
		found := false
		for _, n := range conf.Notes {
			found = found || strings.HasPrefix(n.String(), "/nginx.conf"+c.want)
		}
		if !found {
			t.Errorf("%s\nnotes: %v\nwant: %s", c.text, conf.Notes, c.want)
		}
	}
}

func TestRendered(t *testing.T) {
	im, err := tree.FromFiles(t.Context(), nil,
		image.Bytes("/c/nginx.conf", 0o644, []byte("events {}\nhttp {\n include active.conf;\n include x/*.conf;\n include all.conf;\n}\n")),
		image.Bytes("/c/all.template", 0o644, []byte("log_format x $PORT$host;\n")),
		image.Bytes("/c/with.conf", 0o644, []byte("server {\n listen $PORT;\n ${MORE}\n\n location /with { proxy_pass http://127.0.0.1:${OTHER}; }\n}\n")),
		image.Bytes("/c/without.conf", 0o644, []byte("server { listen ${ADDRESS}:${PORT};\n ${EMPTY}\n ${LINES}\n location /without { proxy_pass http://$host:${PORT}$PORTS; }\n}\n")),
		image.Bytes("/c/x.template", 0o644, []byte("# x\nserver { listen 1; set $PORT 1; }\n")),
		image.Symlink("/d", "c"),
	)
	if err != nil {
		t.Fatal(err)
	}
	list := []string{"PORT", "MORE", "OTHER", "ADDRESS", "EMPTY", "LINES"}
	configs, err := Read(t.Context(), im, "/c/nginx.conf", Options{
		Env: map[string]string{"PORT": "8080", "EMPTY": "", "LINES": "listen 9;\nlisten 10;\n"},
		Rendered: map[string][]Template{
			"/d/active.conf":  {{Path: "/c/with.conf", Variables: list}, {Path: "/c/without.conf", Variables: list}, {Path: "/c/gone.conf"}},
			"/c/x/one.conf":   {{Path: "/c/x.template", Variables: []string{}}},
			"/c/x/two.conf":   {{Path: "/c/gone.template"}},
			"/c/all.conf":     {{Path: "/c/all.template"}},
			"/c/unasked.conf": {{Path: "/c/with.conf"}, {Path: "/c/without.conf"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i := range configs {
		c := &configs[i]
		got = append(got, "== "+c.Variant, "files "+strings.Join(c.Files, " "))
		got = append(got, told(c)[1:]...)
		for _, s := range c.Servers {
			for _, l := range s.Listen {
				got = append(got, fmt.Sprintf("listen %s %q %d %v at %s", l.Value, l.Address, l.Port, l.Loopback, l.Place))
			}
			for _, l := range s.Locations {
				got = append(got, fmt.Sprintf("%s at %s", l.Path(), l.Place))
			}
		}
	}
	want := []string{
		"== /c/active.conf from /c/with.conf", "files /c/nginx.conf /c/with.conf /c/x.template /c/all.template",
		"*:8080 | /with | proxy 127.0.0.1:${OTHER} raw | public answers", "*:8080 | (no location) | static html | public answers",
		"*:1 | (no location) | static html | public answers",
		"include /c/nginx.conf:3 active.conf", "include /c/nginx.conf:4 x/*.conf glob /c/x/one.conf",
		"include /c/nginx.conf:5 all.conf",
		"note /c/with.conf:3: nothing is known of the value of ${MORE}", "note /c/with.conf:5: nothing is known of the value of ${OTHER}",
		"note /c/with.conf:3: ${MORE} may bring directives of its own, which are not known",
		"note /c/all.template:1: envsubst without a list of names empties $host, which nginx would fill",
		`listen 8080 "*" 8080 false at /c/with.conf:2`, "/with at /c/with.conf:5", `listen 1 "*" 1 false at /c/x.template:2`,
		"== /c/active.conf from /c/without.conf", "files /c/nginx.conf /c/without.conf /c/x.template /c/all.template",
		"${ADDRESS}:8080 *:9 *:10 | /without | proxy $host:8080$PORTS raw free $host $ports | public answers",
		"${ADDRESS}:8080 *:9 *:10 | (no location) | static html | public answers", "*:1 | (no location) | static html | public answers",
		"include /c/nginx.conf:3 active.conf", "include /c/nginx.conf:4 x/*.conf glob /c/x/one.conf",
		"include /c/nginx.conf:5 all.conf",
		"note /c/without.conf:1: nothing is known of the value of ${ADDRESS}",
		`note /c/without.conf:3: the value of LINES is more than a word: "listen 9;\nlisten 10;\n"`,
		"note /c/all.template:1: envsubst without a list of names empties $host, which nginx would fill",
		`note /c/without.conf:6: unknown "ports" variable: nginx would not start`,
		`listen ${ADDRESS}:8080 "${ADDRESS}" 8080 false at /c/without.conf:1`, `listen 9 "*" 9 false at /c/without.conf:3`,
		`listen 10 "*" 10 false at /c/without.conf:4`, "/without at /c/without.conf:6", `listen 1 "*" 1 false at /c/x.template:2`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestHostile reads what is made to take long, or much memory.
func TestHostile(t *testing.T) {
	repeat := func(n int, format string) string {
		var out strings.Builder
		for i := range n {
			fmt.Fprintf(&out, strings.ReplaceAll(format, "#", "%[1]d"), i, i+1)
		}
		return out.String()
	}
	for name, text := range map[string]string{
		"deep blocks":          strings.Repeat("http { ", 100_000),
		"deep locations":       "http { server { " + strings.Repeat("location / { ", 10_000),
		"locations":            "http { server { " + repeat(19_000, "location ~ ^/#(a|b)+x { error_page 404 = /#; }\n") + "} }",
		"includes of itself":   strings.Repeat("include /nginx.conf;\n", 5000),
		"includes of files":    strings.Repeat("include /more.conf;\n", 5000),
		"large expressions":    "http { server { " + repeat(2000, "location ~ ((((a{1,100}){1,100}){1,100})#{1,100}){1,1000} { }\n") + "} }",
		"long expressions":     "http { server { " + repeat(2000, "location ~ #"+strings.Repeat("(a|b|.)+[a-z]{50}", 60)+" { }\n") + "} }",
		"a chain of variables": "http { server { " + repeat(9000, "set $a# $a%[2]d; location /# { proxy_pass http://$a#; }\n") + "} }",
		"growing variables":    "http { server { set $a0 aaaaaaaa; " + repeat(100, "set $a%[2]d $a#$a#$a#$a#$a#$a#$a#$a#;\n") + "location / { proxy_pass http://$a100; return 200 $a100; } } }",
		"growing maps":         "http { map $uri $m0 { a 1; b 2; }" + repeat(50, "map $uri $m%[2]d { a $m#$m#; b $m#$m#; c $m#; }\n") + " server { location / { proxy_pass http://$m50; } } }",
		"error pages":          "http { " + repeat(9000, "error_page 40# = /x#;\n") + " server { " + repeat(1900, "location /x# { error_page 404 = /x%[2]d; return 404; }\n") + "} }",
		"rewrites in a circle": "http { server { " + repeat(2000, "location /x# { rewrite ^ /x%[2]d last; }\nlocation /y# { if ($arg_a) { rewrite ^ /y%[2]d last; } rewrite ^ /y%[2]d; }\n") + " } }",
		"many ways":            "http { server { " + repeat(60, "error_page 4# = /#;\n") + repeat(60, "location /# { recursive_error_pages on; if ($arg_a) { rewrite ^ /a last; } if ($arg_b) { rewrite ^ /b last; } }\n") + "location / { if ($a) { rewrite ^ /1 last; } } } }",
		"ports":                "http { " + repeat(5000, "server { listen 1-65535; listen 127.0.0.1:1-65535; }\n") + "}",
		"names":                "http { server { server_name " + repeat(200_000, "n# ") + "; " + repeat(1900, "location /# { }\n") + "} }",
		"upstreams":            "http { upstream u { " + repeat(9000, "server 10.0.0.1:%[2]d;\n") + "} server { " + repeat(1900, "location /# { proxy_pass http://u; }\n") + "} }",
		"mirrors":              "http { server { " + repeat(17_000, "mirror /m#;\n") + repeat(1900, "location /# { }\n") + "} }",
		"indexes":              "http { server { index " + repeat(90_000, "$arg_# ") + "; " + repeat(1900, "location /# { }\n") + "} }",
		"every upstream":       "http { " + repeat(4000, "upstream u# { server 10.0.0.1:%[2]d; }\n") + "server { " + repeat(1900, "location /# { proxy_pass http://$arg_x; }\n") + "} }",
		"answering errors":     "http { server { " + repeat(64, "error_page 404 = /#;\n") + repeat(1900, "location /# { return 200; }\n") + "} }",
		"rules":                "http { " + repeat(9000, "allow 10.0.0.#;\n") + "server { " + repeat(1900, "location /# { }\n") + "} }",
		"conditions":           "http { server { location / { " + repeat(9000, "if ($arg_#) { return 200; }\n") + "} } }",
		"braces":               strings.Repeat("a{}", 500_000),
		"an endless quote":     "http { \"" + strings.Repeat("{", 3_000_000),
		"words":                "http " + strings.Repeat("a ", 3_000_000) + ";",
		"variables in a word":  "http { server { return 200 " + strings.Repeat("$a", 2000) + "; } }",
		"Lua":                  "http { content_by_lua_block { " + strings.Repeat("--[==[ [[ ' ", 300_000) + "} }",
		"controls":             "http { server { listen \x1b[31m; location \x1b[2J { } \u202e on; } }",
		"stars":                "include " + strings.Repeat("*a", 1500) + ";\ninclude /*/*/*/*/*/*/*;",
	} {
		t.Run(name, func(t *testing.T) {
			im, err := tree.FromFiles(t.Context(), nil, image.Bytes("/nginx.conf", 0o644, []byte(text)),
				image.Bytes("/more.conf", 0o644, []byte(strings.Repeat("# a comment\n", 2000))), image.Bytes("/"+strings.Repeat("a", 200), 0o644, nil),
				image.Symlink("/loop", "/loop/loop"), image.Symlink("/up", "/"))
			if err != nil {
				t.Fatal(err)
			}
			var configs []Config
			need.Within(t, 5*time.Second, func() time.Duration {
				return need.CPU(t, func() {
					if configs, err = Read(t.Context(), im, "/nginx.conf", Options{}); err != nil {
						t.Fatal(err)
					}
					exercise(t, configs)
				})
			})
		})
	}
}

// exercise asks everything that can be asked of configurations.
func exercise(t testing.TB, configs []Config) {
	for i := range configs {
		c := &configs[i]
		for _, n := range c.Notes {
			if strings.Contains(n.Text, "the configuration can't be read") {
				t.Error(n)
			}
		}
		routes := c.Routes()
		if data, err := json.Marshal([]any{c, routes}); err != nil || len(data) > 100<<20 {
			t.Errorf("%d bytes of JSON, %v", len(data), err)
		}
		for _, at := range c.Sockets() {
			for _, host := range []string{"", "x", "8080-x", "a.b.c", "\xff"} {
				if s := c.Server(at.Address, at.Port, host); s != nil {
					s.MatchURI("/a/../b?c")
				}
			}
			if len(configs) > 1 || len(c.Servers) > 50 {
				break
			}
		}
	}
}

// A file that the start makes is not missing, but what is in it is not known.
func TestMadeFiles(t *testing.T) {
	const conf = "events {}\nhttp { include made.conf; include /run/other.conf; server { return 403; } }\n"
	im, err := tree.FromFiles(t.Context(), nil, image.Bytes("/c/nginx.conf", 0o644, []byte(conf)))
	if err != nil {
		t.Fatal(err)
	}
	configs, err := Read(t.Context(), im, "/c/nginx.conf", Options{Made: map[string]bool{"/c/made.conf": true}})
	if err != nil || len(configs) != 1 {
		t.Fatal(configs, err)
	}
	c := configs[0]
	if len(c.Includes) != 2 || c.Includes[0].Missing || !c.Includes[1].Missing {
		t.Errorf("includes %+v", c.Includes)
	}
	if len(c.Notes) != 2 || !strings.Contains(c.Notes[0].Text, "made.conf is made at start") || !strings.Contains(c.Notes[1].Text, "/run/other.conf is not there") {
		t.Errorf("notes %v", c.Notes)
	}
}
