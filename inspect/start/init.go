package start

import (
	"path"

	"github.com/slimctl/slimctl/image/tree"
)

// isInit reports whether command starts a closed image: browser-shell init, which is not a script.
func isInit(command []string) bool {
	return len(command) > 1 && path.Base(command[0]) == "browser-shell" && command[1] == "init"
}

// initSwitches lists all variables that `browser-shell init` reads (cmd/browser-shell/init.go, server/gate,
// docs/gate.md). It builds the programs' environment without the container's.
var initSwitches = []Switch{
	{Name: "JWT_AUDIENCE", Kind: Auth, Effect: "is the audience that a token must name"},
	{Name: "JWT_ISSUER", Kind: Auth, Effect: "is the issuer that a token must have"},
	{Name: "JWT_PUBLIC_KEY", Kind: Auth, Effect: "is the key that tokens are checked with"},
	{Name: "SANDBOX_API_KEY", Kind: Auth, Effect: "is the key that callers show"},
	{Name: "SLIM_ALLOW_ANONYMOUS", Kind: Auth, Effect: `lets everybody in who reaches the port, when it is "true" and there is no key`},
	{Name: "SLIM_LANG", Kind: Other, Effect: "is the languages that pages are asked for, such as de-CH,de"},
	{Name: "SLIM_LISTEN", Kind: Listener, Effect: `"loopback" has nginx listen on loopback only; then no key is needed`},
	{Name: "SLIM_SCREEN", Kind: Other, Effect: "is the size of the desktop in pixels, such as 1280x800"},
	{Name: "TICKET_TTL_SECONDS", Kind: Auth, Effect: "is how long a ticket is good, 1 to 86400 seconds"},
	{Name: "TZ", Kind: Other, Effect: "is the time zone of the programs, a name of the time zone database"},
}

// initChoices lists the variables that it sets for the programs to one of several values.
var initChoices = []Choice{
	{"SLIM_DESKTOP_USER", []string{"gem"}},
	{"SLIM_LANG", []string{"en-US,en"}}, // or other languages; the default stands for them
	{"SLIM_NGINX_CONF", []string{
		"/opt/gem/nginx.conf", "/opt/gem/nginx-ipv4.conf", "/opt/gem/nginx-loopback.conf", "/opt/gem/nginx-loopback-ipv4.conf",
	}},
	{"SLIM_SCREEN", []string{"1280x1024"}}, // or another size
	{"SLIM_SERVICE_USER", []string{"browser-shell", "gem"}},
	{"SLIM_SUPERVISOR_USER", []string{"root", "gem"}},
	{"SLIM_WINDOW", []string{"1280,1024"}}, // SLIM_SCREEN with a comma
}

// initEnvironment lists the variables that it always sets for the programs to the same value.
var initEnvironment = []Variable{
	{Name: "LANG", Value: "C.UTF-8", Known: true},
	{Name: "PATH", Value: "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", Known: true},
}

// describeInit fills the report of a start by `browser-shell init`, which is not a script that could be followed.
func (r *Report) describeInit(command []string) {
	at := r.img.Place(command[0], 0)
	if _, ok := r.img.Stat(command[0]); !ok {
		r.walk.Note(at, "the image starts this file, and it isn't there")
	}
	if len(command) > 2 {
		r.walk.Note(at, "browser-shell init takes no arguments, and does not start with any")
	}
	r.Supervisord = "/opt/gem/supervisord.conf"
	r.Choices = initChoices
	r.Environment = initEnvironment
	r.Clean = true
	var chosen []string
	for _, c := range initChoices {
		chosen = append(chosen, c.Variable)
	}
	r.walk.AssumeEnvironment(initEnvironment, chosen)
	for _, s := range initSwitches {
		s.Value, s.Set = r.env[s.Name]
		s.Places = []tree.Place{at}
		r.Switches = append(r.Switches, s)
	}
}
