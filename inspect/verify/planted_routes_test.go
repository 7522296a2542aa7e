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
		"by error_page":                 {with(mcp, mcp+" error_page 405 = /hidden;", end, hidden), "nginx-longer-location"},
		"by error_page of the server":   {with("# What is sent has the code", "error_page 414 = /hidden;\n"+hidden), "nginx-longer-location"},
		"by try_files":                  {with(vnc, vnc+" try_files $uri /hidden;", end, hidden), "nginx-longer-location"},
		"by index":                      {with(vnc, "index index.html /hidden;", end, hidden), "nginx-longer-location"},
		"by a header of the hub":        {with(end, hidden), "nginx-longer-location"},
		"by rewrite":                    {with("rewrite ^ /websockify last;", "rewrite ^ /hidden last;", end, hidden), "nginx-longer-location"},
		"by its own error page":         {with(end, "location = /hidden { internal; error_page 404 =200 /said; }\nlocation = /said { internal; return 200 secret; }\n"+end), "nginx-longer-location"},
		"what it says is no empty page": {with(mcp, mcp+" error_page 405 =200 /_empty;", `return 200 "";`, "return 200 $http_x_secret;"), "nginx-longer-location"},
		"a prefix":                      {with(end, "location /hidden/ { "+asks+"proxy_pass http://mcp/; }\n"+end), "nginx-longer-location"},
		"files of an internal one":      {with(vnc, "error_page 404 = /key;", end, "location = /key { "+asks+"alias /etc/shadow; }\n"+end), "nginx-static"},
		"below a route":                 {with(vnc, vnc+" location /vnc/x/ { internal; alias /; }"), "nginx-static"},
		"without the question":          {with(mcp, mcp+" error_page 405 = /hidden;", end, "location = /hidden { internal; proxy_pass http://mcp/v1; }\n"+end), "nginx-no-auth"},
		"as a question":                 {with("auth_request /_auth;", "auth_request /hidden;", end, "location = /hidden { internal; proxy_pass http://mcp/mcp; }\n"+end), "nginx-gate"},
		"another path of the gate":      {with("proxy_pass http://gate/auth;", "proxy_pass http://gate/health;"), "nginx-gate"},
		"a file that the query names":   {with(vnc, "index $arg_name;"), "nginx-does-not-start"},
		"try_files by the query":        {with(vnc, vnc+" try_files $arg_name =404;"), "nginx-does-not-start"},
		"try_files by the raw path":     {with(vnc, vnc+" try_files $request_uri =404;"), "nginx-does-not-start"},
	} {
		t.Run(name, func(t *testing.T) {
			mustFind(t, check(t, closeLine(t, "B").input(t, plant{files: []image.File{tt.file}}, "linux/amd64")), tt.rule)
		})
	}
}
