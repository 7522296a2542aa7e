package verify_test

import (
	"testing"

	"github.com/slimctl/slimctl/image"
)

// Internal locations that answer outsiders. inspect/nginx's TestAnswersAsNginxDoes has nginx answer each kind of them. All
// but one ask the gate, so that it is not for the missing question that they are found.
func TestInternalLocationsAreFound(t *testing.T) {
	const (
		server = "/opt/gem/nginx-server.conf"
		mcp    = "proxy_pass http://mcp/mcp;"
		vnc    = "index index.html vnc.html;"
		asks   = "internal; set $asked $uri; auth_request /_auth; "
		end    = "# What is sent has the code"
		hidden = "location = /hidden { " + asks + "proxy_pass http://mcp/v1; }\n" + end
	)
	with := func(oldNew ...string) image.File { return asset(t, "nginx/nginx-server.conf", server, oldNew...) }
	for name, tt := range map[string]struct {
		file image.File
		rule string
	}{
		"by error_page":                 {with(mcp, mcp+" error_page 405 = /hidden;", end, hidden), "routes"},
		"by error_page of the server":   {with("# What is sent has the code", "error_page 414 = /hidden;\n"+hidden), "routes"},
		"by try_files":                  {with(vnc, vnc+" try_files $uri /hidden;", end, hidden), "routes"},
		"by index":                      {with(vnc, "index index.html /hidden;", end, hidden), "routes"},
		"by a header of the hub":        {with(end, hidden), "routes"},
		"by rewrite":                    {with("rewrite ^ /websockify last;", "rewrite ^ /hidden last;", end, hidden), "routes"},
		"by its own error page":         {with(end, "location = /hidden { internal; error_page 404 =200 /said; }\nlocation = /said { internal; return 200 secret; }\n"+end), "routes"},
		"what it says is no empty page": {with(mcp, mcp+" error_page 405 =200 /_empty;", `return 200 "";`, "return 200 $http_x_secret;"), "routes"},
		"a prefix":                      {with(end, "location /hidden/ { "+asks+"proxy_pass http://mcp/; }\n"+end), "routes"},
		"files of an internal one":      {with(vnc, "error_page 404 = /key;", end, "location = /key { "+asks+"alias /etc/shadow; }\n"+end), "upstreams"},
		"below a route":                 {with(vnc, vnc+" location /vnc/x/ { internal; alias /; }"), "upstreams"},
		"without the question":          {with(mcp, mcp+" error_page 405 = /hidden;", end, "location = /hidden { internal; proxy_pass http://mcp/v1; }\n"+end), "gate"},
		"as a question":                 {with("auth_request /_auth;", "auth_request /hidden;", end, "location = /hidden { internal; proxy_pass http://mcp/mcp; }\n"+end), "gate"},
		"another path of the gate":      {with("proxy_pass http://gate/auth;", "proxy_pass http://gate/health;"), "gate"},
		"a file that the query names":   {with(vnc, "index $arg_name;"), "not-understood"},
		"try_files by the query":        {with(vnc, vnc+" try_files $arg_name =404;"), "not-understood"},
		"try_files by the raw path":     {with(vnc, vnc+" try_files $request_uri =404;"), "not-understood"},
	} {
		t.Run(name, func(t *testing.T) {
			mustFind(t, check(t, closeLine(t, "B").input(t, plant{files: []image.File{tt.file}}, "linux/amd64")), tt.rule)
		})
	}
}
