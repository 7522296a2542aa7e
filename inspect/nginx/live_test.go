package nginx

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/image/tree"
	"github.com/slimctl/slimctl/internal/need"
)

// These tests hold what this package says of a configuration against what nginx itself makes of it.

// readConf reads text as /nginx.conf of an image; more are other files, path and content in turn.
func readConf(t testing.TB, text string, more ...string) *Config {
	t.Helper()
	files := []image.File{image.Bytes("/nginx.conf", 0o644, []byte(text))}
	for i := 0; i < len(more); i += 2 {
		files = append(files, image.Bytes(more[i], 0o644, []byte(more[i+1])))
	}
	im, err := tree.FromFiles(t.Context(), nil, files...)
	if err != nil {
		t.Fatal(err)
	}
	configs, err := Read(t.Context(), im, "/nginx.conf", Options{})
	if err != nil || len(configs) != 1 {
		t.Fatalf("%d configurations, %v", len(configs), err)
	}
	return &configs[0]
}

// live is an nginx that runs with a configuration. Its sockets lie in dir.
type live struct {
	t    testing.TB
	dir  string
	conn map[string]net.Conn
	read map[string]*bufio.Reader
}

// header makes a main file's beginning that any account can run.
func header(dir string) string {
	out := "daemon off;\nmaster_process off;\npid " + dir + "/pid;\nerror_log stderr emerg;\nevents {}\nhttp {\naccess_log off;\n"
	for _, name := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		out += name + "_temp_path " + dir + "/" + name + ";\n"
	}
	return out
}

// shortDir is a directory whose sockets have short names: 107 bytes is all that the kernel takes.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "ngx")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// run starts nginx and waits until it listens on socket.
func run(t testing.TB, dir, text, socket string) *live {
	t.Helper()
	program := need.Program(t, "nginx")
	conf := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd := exec.Command(program, "-p", dir, "-c", conf, "-e", "stderr")
	cmd.Stderr = &stderr
	if err := need.Start(t, cmd); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-ended
	})
	need.Eventually(t, func() bool {
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("nginx ended: %v\n%s\n%s", err, stderr.String(), text)
		default:
		}
		c, err := net.Dial("unix", socket)
		if err == nil {
			c.Close()
		}
		return err == nil
	}, func() string { return "nothing listens on " + socket })
	return &live{t, dir, map[string]net.Conn{}, map[string]*bufio.Reader{}}
}

// get asks on a socket and gives status and body.
func (l *live) get(socket, method, target, host string, headers ...string) (int, string) {
	l.t.Helper()
	more := "Content-Length: 0\r\n"
	if len(headers) > 0 {
		more = strings.Join(headers, "\r\n") + "\r\n"
	}
	for {
		conn, kept := l.conn[socket]
		if !kept {
			var err error
			need.Eventually(l.t, func() bool { // nginx binds all sockets before it listens on one
				conn, err = net.Dial("unix", socket)
				return err == nil
			}, func() string { return err.Error() })
			l.t.Cleanup(func() { conn.Close() })
			l.conn[socket], l.read[socket] = conn, bufio.NewReader(conn)
		}
		fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: %s\r\n%s\r\n", method, target, host, more)
		res, err := http.ReadResponse(l.read[socket], &http.Request{Method: method})
		if err != nil && kept {
			delete(l.conn, socket)
			continue
		}
		if err != nil {
			return 0, ""
		}
		body, err := io.ReadAll(res.Body)
		if err != nil {
			l.t.Fatal(err)
		}
		if res.Close {
			delete(l.conn, socket)
		}
		return res.StatusCode, string(body)
	}
}

// generator makes locations that don't collide.
type generator struct {
	*rand.Rand
	dir string
	n   int
}

// id returns what identifies a location, of its target or of its answer.
func id(answer string) string {
	if i := strings.LastIndex(answer, ":/"); i >= 0 {
		answer = answer[i+1:]
	}
	answer, _, _ = strings.Cut(strings.TrimPrefix(answer, "/"), "/")
	return answer
}

func (g *generator) pick(list ...string) string { return list[g.IntN(len(list))] }

func (g *generator) locations(b *strings.Builder, parent string, depth int) {
	seen := map[string]bool{}
	for range 2 + g.IntN(6) {
		modifier := g.pick("", "", "=", "^~", "~", "~*")
		pattern := ""
		switch {
		case strings.HasPrefix(modifier, "~"):
			pattern = g.pick(`^/a`, `/b$`, `a(b|c)`, `\.js$`, `^/a/(?<n>.+)$`, `^/[^/]+$`, `B`, `^/(.)\.`, `^/[^.].*\.(?:js|b)\z`, `//`, `b/$`, `\s`, `^/a\+?b`,
				`[]a]b`, `%`, `^/.b`, `^/{a`, `(?i)A/`, `b/?$`, `[[:upper:]]`, `^/[\w-]+/`, `\bjs`, `c\/`)
		default:
			pattern = parent
			for range g.IntN(4) {
				pattern += g.pick("/", "a", "b", "ab", "/a", "A", ".js", "c")
			}
			if pattern == "" || g.IntN(3) == 0 {
				pattern += "/"
			}
		}
		key := fmt.Sprint(modifier == "=", pattern)
		if !strings.HasPrefix(modifier, "~") && seen[key] {
			continue
		}
		seen[key] = true
		g.n++
		quoted := `"` + strings.ReplaceAll(pattern, `\`, `\\`) + `"`
		answer := fmt.Sprintf("return 200 \"%d\"", g.n)
		if !strings.HasPrefix(modifier, "~") && g.IntN(3) == 0 { // for these nginx adds a missing slash
			answer = fmt.Sprintf("proxy_pass http://unix:%s/up:/%d/", g.dir, g.n)
		}
		fmt.Fprintf(b, "location %s %s { %s;\n", modifier, quoted, answer)
		if depth < 2 && modifier != "=" && g.IntN(3) == 0 {
			inner := pattern
			if strings.HasPrefix(modifier, "~") {
				inner = ""
			}
			if inner != "" {
				g.locations(b, inner, depth+1)
			} else { // inside of a regular expression only others can be
				g.n++
				fmt.Fprintf(b, "location ~ \"%s\" { return 200 \"%d\"; }\n", g.pick("a", "b", "js$"), g.n)
			}
		}
		b.WriteString("}\n")
	}
}

func (g *generator) target() string {
	out := "/"
	for range g.IntN(7) {
		out += g.pick("/", "a", "b", "ab", "A", "B", ".js", "c", "/", "%2f", "%61", "%2E", ".", "..", "/../", "/./", "//", "%20", "%3f", "%23x", "%25", "+", "{a", "%", "%zz", "%00", "?x=.js", "#f")
	}
	return out
}

func TestMatchAsNginxDoes(t *testing.T) {
	dir := shortDir(t)
	g := &generator{Rand: rand.New(rand.NewPCG(5, 4)), dir: dir}
	const servers, requests = 60, 100
	var text strings.Builder
	text.WriteString(header(dir) + "server { listen unix:" + dir + "/up; return 200 $request_uri; }\n")
	for i := range servers {
		fmt.Fprintf(&text, "server { listen unix:%s/%d; merge_slashes %s;\n", dir, i, g.pick("on", "on", "off"))
		g.locations(&text, "", 0)
		text.WriteString("}\n")
	}
	text.WriteString("}\n")
	c := readConf(t, text.String())
	if len(c.Notes) > 0 {
		t.Fatalf("notes: %v", c.Notes)
	}
	l := run(t, dir, text.String(), filepath.Join(dir, "0"))
	seen := map[string]int{}
	for i := range servers {
		socket := fmt.Sprintf("%s/%d", dir, i)
		s := c.Server("unix:"+socket, 0, "x")
		if s == nil {
			t.Fatalf("no server on %s", socket)
		}
		var patterns []string
		s.eachLocation(func(l *Location) {
			if !l.isRegexp() {
				patterns = append(patterns, l.Pattern)
			}
		})
		for range requests {
			target := g.target()
			if len(patterns) > 0 && g.IntN(2) == 0 { // beside a location
				target = g.pick(patterns...)
				target = g.pick(target, target+"/", target+g.target(), "/"+strings.Trim(target, "/"), strings.TrimSuffix(target, "/"))
				if target == "" {
					target = "/"
				}
			}
			status, body := l.get(socket, "GET", target, "x")
			found, ok := s.MatchURI(target)
			want := "400"
			if ok && found == nil {
				want = "404"
			} else if ok {
				want = id(found.Target.Value)
				seen[found.Modifier]++
				if path, _ := Normalise(target, !s.KeepSlashes); found.SlashRedirect && path+"/" == found.Pattern {
					want = "301"
				}
			}
			got := id(body)
			if status != 200 {
				got = fmt.Sprint(status)
			}
			seen[got]++
			if got != want {
				t.Errorf("server %d, %s: nginx %s, Match %s\n%s", i, target, got, want, dump(c, i+1))
				if t.Failed() {
					return
				}
			}
		}
	}
	for _, kind := range []string{"", "=", "^~", "~", "~*", "301", "400", "404"} {
		if seen[kind] < 5 {
			t.Errorf("%q was met %d times only", kind, seen[kind])
		}
	}
}

// dump shows the locations of a server.
func dump(c *Config, server int) string {
	var out strings.Builder
	c.Servers[server].eachLocation(func(l *Location) { fmt.Fprintf(&out, "%s %s: %s\n", l.Place, l.Path(), l.Target.Value) })
	return out.String()
}

func TestServerAsNginxDoes(t *testing.T) {
	dir := shortDir(t)
	g := &generator{Rand: rand.New(rand.NewPCG(7, 5))}
	const sockets, requests = 40, 60
	var text strings.Builder
	text.WriteString(header(dir))
	n := 0
	for i := range sockets {
		seen, defaults := map[string]bool{}, 0
		for range 2 + g.IntN(5) {
			n++
			option := ""
			if defaults == 0 && g.IntN(4) == 0 {
				option, defaults = " default_server", 1
			}
			fmt.Fprintf(&text, "server { listen unix:%s/%d%s; return 200 \"%d\"; server_name ", dir, i, option, n)
			count := 0
			for range 1 + g.IntN(3) {
				name := g.pick("a.b", "A.B", "*.b", ".b", "*.a.b", ".a.b", "a.*", "a.b.*", "x.a.b", "''", "b", `~^(?<port>\d+)-(.+)$`, `~^a`, `"~b$"`, `~^[A-Z]+\.b`, "a-1", "_", "1.2.3.4")
				key := strings.TrimPrefix(strings.ToLower(name), "*")
				if seen[key] || seen[strings.TrimPrefix(key, ".")] && strings.HasPrefix(name, ".") || seen["."+key] { // nginx warns and ignores
					continue
				}
				seen[key] = true
				text.WriteString(name + " ")
				count++
			}
			if count == 0 {
				text.WriteString("none")
			}
			text.WriteString("; }\n")
		}
	}
	text.WriteString("}\n")
	c := readConf(t, text.String())
	if len(c.Notes) > 0 {
		t.Fatalf("notes: %v", c.Notes)
	}
	l := run(t, dir, text.String(), filepath.Join(dir, "0"))
	for i := range sockets {
		socket := fmt.Sprintf("%s/%d", dir, i)
		for range requests {
			host := ""
			for range 1 + g.IntN(4) {
				host += g.pick("a", "b", "x", ".", ".", "a.b", "A", "8080-x", "-1", ":80", "1.2.3.4", "[::1]", "_", ":")
			}
			status, got := l.get(socket, "GET", "/", host)
			if status != 200 {
				got = fmt.Sprint(status)
			}
			want := "400"
			if s := c.Server("unix:"+socket, 0, host); s != nil {
				want = s.Direct.Value
			}
			if got != want {
				t.Errorf("socket %d, host %q: nginx %s, Server %s\n%s", i, host, got, want, text.String())
				return
			}
		}
	}
}

// TestWordsAsNginxReads has nginx tell what it reads of words that are hard to read. Not among them is what crossplane takes
// for the end of a word: "}", and Unicode's spaces.
func TestWordsAsNginxReads(t *testing.T) {
	dir := shortDir(t)
	g := &generator{Rand: rand.New(rand.NewPCG(3, 6))}
	words := []string{
		`"a}b"`, "\"a\u00a0b\"", "\"a\vb\"", `"a"`, `'a"b'`, `"a'b"`, `"\""`, `"\\"`, `"\\\\"`, `a\ b`, `a\;b`, `a\{b`, `\"a`, `a"b`, `a#b`, `"#"`, `"a;b{c}"`,
		`\\n`, `"a\tb\n"`, `a'`, `"\d\."`, `é`, `\}`, `"a` + "\n" + `b"`, `\#`, `"\q"`, `a\\`,
	}
	for range 300 {
		word, quote := "", g.pick(`"`, `'`, "", "")
		for range 1 + g.IntN(8) {
			c := g.pick("a", "}", "#", `\\`, `\n`, `\"`, `\'`, `\ `, `\;`, `\{`, "é", "\v", "\u2028", `"`, `'`, " ", ";", "{", "\t", "\n", "^", "(", ")")
			if quote != "" && c == quote || quote == "" && (strings.Contains(" ;{}\t\n\v\u2028", c) || word == "" && strings.Contains(`#"'`, c)) {
				continue
			}
			word += c
		}
		if word != "" {
			words = append(words, quote+word+quote)
		}
	}
	var text strings.Builder
	text.WriteString(header(dir) + "server { listen unix:" + dir + "/s;\n")
	for i, w := range words {
		end := g.pick(";", " ;", "\n;", "#comment ; }\n;")
		if strings.HasPrefix(end, "#") {
			end = " " + end
		}
		fmt.Fprintf(&text, "location = /%d { return 200 %s%s }\n", i, w, end)
	}
	text.WriteString("}\n}\n")
	c := readConf(t, text.String())
	if len(c.Notes) > 0 {
		t.Fatalf("notes: %v", c.Notes)
	}
	l := run(t, dir, text.String(), dir+"/s")
	for i, w := range words {
		status, got := l.get(dir+"/s", "GET", fmt.Sprintf("/%d", i), "x")
		if found := c.Servers[0].Match(fmt.Sprintf("/%d", i)); status != 200 || found == nil || found.Target.Value != got {
			t.Errorf("%q: nginx reads %q (status %d), we read %+v", w, got, status, found)
		}
	}
}

// TestAnswersAsNginxDoes holds what the model says of who gets an answer without being asked for a key against nginx: each
// configuration meets requests that look for a way around. /_auth refuses everybody, and @up and unix:up answer.
func TestAnswersAsNginxDoes(t *testing.T) {
	cases := []struct {
		name, server string
		open         string // the request that gets an answer, as method, target and headers; empty when none does
	}{
		{"auth_request", "location / { auth_request /_auth; proxy_pass UP; }", ""},
		{"return comes before auth_request", "location / { auth_request /_auth; return 200 x; }", "GET /"},
		{"a redirect too", "location / { auth_request /_auth; return 302 /x; }", "GET /"},
		{"444 is no answer", "location / { return 444; }", ""},
		{"auth is inherited", "auth_request /_auth; location / { location ~ a { proxy_pass UP; } }", ""},
		{"auth off in a nested location", "auth_request /_auth; location / { deny all; location ~ b$ { auth_request off; allow all; proxy_pass UP; } }", "GET /a/b"},
		{"satisfy any with a rule for everybody", "location / { satisfy any; allow all; auth_request /_auth; proxy_pass UP; }", "GET /"},
		{"satisfy any with a rule for nobody", "location / { satisfy any; deny all; auth_request /_auth; proxy_pass UP; }", ""},
		{"deny is inherited", "deny all; location / { proxy_pass UP; }", ""},
		{"deny is not asked before return", "deny all; location / { return 200 x; }", "GET /"},
		{"own rules replace the outer ones", "deny all; location / { location /a { allow 127.0.0.1; allow unix:; deny all; proxy_pass UP; } }", "GET /a"},
		{"other methods leave out the rewriting", "location / { limit_except GET { allow all; } return 403; proxy_pass UP; }", "POST /"},
		{"other methods are denied", "location / { limit_except GET { deny all; } return 403; proxy_pass UP; }", ""},
		{"other methods have their own rules", "location / { deny all; limit_except GET { allow all; } proxy_pass UP; }", "POST /"},
		{"other methods go elsewhere", "location / { auth_request off; deny all; limit_except GET { allow all; proxy_pass UP; } }", "POST /"},
		{"other methods need the same key", "location / { auth_request /_auth; limit_except GET { allow all; proxy_pass UP; } }", ""},
		{"the error page of a denial", "location / { deny all; error_page 403 = @up; }", "GET /"},
		{"the error page of a missing key", "location / { auth_request /_auth; error_page 401 = @up; proxy_pass UP; }", "GET /"},
		{"the error page of a large body", "location / { auth_request /_auth; client_max_body_size 1; error_page 413 = @up; proxy_pass UP; }", "POST / Content-Length: 5"},
		{"the error page of return", "location / { error_page 418 = @up; if ($http_x) { return 418; } return 404; }", "GET / x: 1"},
		{"an error page that is one", "location / { error_page 403 /empty; deny all; } location = /empty { internal; return 200 ''; }", ""},
		{"an error page with a code", "location / { error_page 403 =200 /empty; deny all; } location = /empty { internal; return 200 ''; }", "GET /"},
		{"an error page with an error's code", "location / { error_page 403 =404 /empty; deny all; } location = /empty { internal; return 200 ''; }", ""},
		{"an error page with the code of the other location", "location / { error_page 403 = /empty; deny all; } location = /empty { internal; return 200 ''; }", "GET /"},
		{"an error page beside that of an if", "error_page 403 = @up; location / { if ($arg_x) { error_page 404 = /b; } deny all; }", "GET /"},
		{"an error page elsewhere", "location / { error_page 403 http://x/; deny all; }", "GET /"},
		{"error pages one after the other", "recursive_error_pages on; location / { error_page 403 = /b; deny all; } location = /b { internal; return 404; error_page 404 = @up; }", "GET /"},
		{"the error page of an internal location", "location / { return 403; } location = /b { internal; error_page 404 = @up; }", "GET /b"},
		{"an internal location", "location / { return 403; } location = /b { internal; proxy_pass UP; }", ""},
		{"a rewrite to an internal location", "location / { rewrite ^ /b last; } location = /b { internal; proxy_pass UP; }", "GET /"},
		{"a rewrite by what the client says", "location / { rewrite ^/x(.*) $1 last; return 403; } location = /b { internal; proxy_pass UP; }", "GET /x/b"},
		{"a rewrite to a location with a key", "location / { rewrite ^ /b last; } location = /b { auth_request /_auth; proxy_pass UP; }", ""},
		{"a rewrite without a flag", "location / { rewrite ^ /b; } location = /b { proxy_pass UP; }", "GET /"},
		{"a rewrite without a flag, and a return", "location / { rewrite ^ /b; return 403; } location = /b { internal; proxy_pass UP; }", ""},
		{"a rewrite of some paths before return", "location / { rewrite ^/a /b last; return 403; } location = /b { internal; proxy_pass UP; }", "GET /a"},
		{"a rewrite that stays", "location / { rewrite ^/a /b break; return 403; proxy_pass UP; }", "GET /a"},
		{"a rewrite that stays after one that goes", "location / { rewrite ^ /b; rewrite ^ /c break; proxy_pass UP; } location = /b { return 403; }", "GET /"},
		{"break before return", "location / { break; return 403; proxy_pass UP; }", "GET /"},
		{"break in an if before return", "location / { if ($arg_x) { break; } return 403; proxy_pass UP; }", "GET /?x=1"},
		{"an if with its own target", "location / { deny all; if ($arg_x) { proxy_pass UP; } }", ""},
		{"an if with its own target, and return", "location / { if ($arg_x) { proxy_pass UP; } return 403; }", ""},
		{"an if with its own target, break and return", "location / { if ($arg_x) { proxy_pass UP; break; } return 403; }", "GET /?x=1"},
		{"return in an if", "location / { auth_request /_auth; if ($arg_x) { return 200 x; } proxy_pass UP; }", "GET /?x=1"},
		{"try_files that finds nothing", "location / { root /nowhere; try_files $uri @up; }", "GET /"},
		{"try_files to a location with a key", "location / { try_files '' @key; } location @key { auth_request /_auth; proxy_pass UP; }", ""},
		{"try_files to a status", "location / { try_files '' =403; }", ""},
		{"try_files by a map", "location / { try_files '' $way; } location @key { auth_request /_auth; proxy_pass UP; }", "GET /x?.js"},
		{"try_files by the path", "location / { auth_request /_auth; root DIR/v; try_files $uri =404; }", ""},
		{"try_files by the query", "location / { root DIR/v; try_files /$arg_x =404; }", "GET /b?x=../file"},
		{"try_files by the query, with a key", "location / { auth_request /_auth; root DIR/v; try_files /$arg_x =404; }", ""},
		{"index by the query", "location / { root DIR/v; index $arg_x; }", "GET /?x=../file"},
		{"index leads to an internal location", "location / { root DIR/v; index none.html /b; } location = /b { internal; proxy_pass UP; }", "GET /"},
		{"index of the server leads to an internal location", "index /b; location / { auth_request /_auth; root DIR/v; } location = /b { internal; proxy_pass UP; } location /c/ { root DIR/v; }", "GET /c/"},
		{"index leads to a location with a key", "location / { auth_request /_auth; root DIR/v; index /b; } location = /b { internal; auth_request /_auth; proxy_pass UP; }", ""},
		{"return in the server", "return 403; location / { proxy_pass UP; }", ""},
		{"return in the server after break", "if ($arg_x) { break; } return 403; location / { proxy_pass UP; }", "GET /?x=1"},
		{"a rewrite in the server before return", "rewrite ^/a /b last; return 403; location / { proxy_pass UP; }", "GET /a"},
		{"return in the server with an error page", "error_page 403 = @up; return 403;", "GET /"},
		{"no location", "root DIR;", "GET /file"},
		{"no location, denied", "root DIR; deny all;", ""},
		{"a prefix without slash and an alias with one", "location /v { alias DIR/v/; } location / { return 403; }", "GET /v../file"},
		{"a gate that is open", "location / { auth_request /_open; proxy_pass UP; } location = /_open { internal; return 204; }", "GET /"},
		{"a gate whose error is none", "location / { auth_request /_open; proxy_pass UP; } location = /_open { return 418; error_page 418 =200 /_ok; } location = /_ok { internal; return 200; }", "GET /"},
		{"a gate that is not there", "location / { auth_request /_none; proxy_pass UP; location = /_none { return 403; } }", ""},
		{"a module", "location = /s { stub_status; } location / { return 403; }", "GET /s"},
	}
	dir := shortDir(t)
	os.Mkdir(filepath.Join(dir, "v"), 0o755)
	for _, name := range []string{"file", "index.html"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var text strings.Builder
	text.WriteString(header(dir) + "map $request_uri $way { default @key; ~\\.js$ @up; }\nserver { listen unix:" + dir + "/up; return 200 up; }\n")
	up := "http://unix:" + dir + "/up:"
	for i, c := range cases {
		fmt.Fprintf(&text, "server { listen unix:%s/%d; %s\nlocation = /_auth { internal; return 401; } location @up { proxy_pass %s; } }\n",
			dir, i, strings.NewReplacer("UP", up, "DIR", dir).Replace(c.server), up)
	}
	text.WriteString("}\n")
	conf := readConf(t, text.String())
	noted := map[string]bool{} // servers of which something is not followed
	for _, n := range conf.Notes {
		if strings.Contains(n.Text, "is not followed") {
			noted[conf.serverAt(n.Place.Line)] = true
		} else if !strings.Contains(n.Text, "lets everybody in") {
			t.Error(n)
		}
	}
	l := run(t, dir, text.String(), dir+"/up")
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			socket := fmt.Sprintf("%s/%d", dir, i)
			var says []string
			for _, r := range conf.Routes() {
				if r.Server != "unix:"+socket {
					continue
				}
				if r.Open {
					says = append(says, fmt.Sprintf("%s: %+v", r.Path, r))
				}
			}
			if (len(says) > 0) != (c.open != "") && !noted["unix:"+socket] {
				t.Errorf("the model has these answers without a key: %q", says)
			}
			for _, request := range append(strings.Split("GET /,POST /,GET /a,GET /x/b,GET /b,GET /?x=1,GET /x?.js,DELETE /a,GET /_auth", ","), c.open) {
				if request == "" {
					continue
				}
				words := strings.SplitN(request, " ", 3)
				status, _ := l.get(socket, words[0], words[1], "x", words[2:]...)
				if answered := status > 0 && status < 400; answered && c.open == "" || !answered && request == c.open {
					t.Errorf("nginx answers %s with %d", request, status)
				}
			}
		})
	}
}

// serverAt is the label of the server that a line is in.
func (c *Config) serverAt(line int) (label string) {
	for _, s := range c.Servers {
		if s.Place.Line <= line {
			label = s.Label()
		}
	}
	return label
}

// TestHeadersLeadToInternalLocations: a server that requests are passed to opens any internal location by a header of its own.
// The model has no way for that, so verify takes every internal location for reached.
func TestHeadersLeadToInternalLocations(t *testing.T) {
	dir := shortDir(t)
	text := header(dir) + "server { listen unix:" + dir + "/up; add_header X-Accel-Redirect $arg_to; return 200 up; }\nserver { listen unix:" + dir + `/s;
location / { proxy_pass http://unix:` + dir + `/up:; }
location = /a { internal; return 200 internal; } location @b { return 200 named; }
}
}
`
	l := run(t, dir, text, dir+"/s")
	for target, want := range map[string]string{"/?to=/a": "internal", "/?to=@b": "named", "/": "up"} {
		if status, body := l.get(dir+"/s", "GET", target, "x"); status != 200 || body != want {
			t.Errorf("%s: %d %q, want %q", target, status, body, want)
		}
	}
}

// TestRawURIAsNginxDoes asks which locations hand a path on as the client wrote it.
func TestRawURIAsNginxDoes(t *testing.T) {
	dir := shortDir(t)
	up := "proxy_pass http://unix:" + dir + "/up:"
	cases := []struct{ path, body string }{
		{"/no-uri", up + ";"},
		{"/uri", up + "/;"},
		{"/args", "set $args ''; " + up + ";"},
		{"/args-sometimes", "if ($arg_x) { set $args ''; } " + up + ";"},
		{"/rewritten", "rewrite ^ /x break; " + up + ";"},
		{"/rewritten-sometimes", "rewrite ^/y /x break; " + up + ";"},
		{"/variable", "set $a 1; proxy_pass http://unix:" + dir + "/up:$request_uri;"},
		{"/named", "try_files '' @named;"},
		{"/variable-no-uri", "set $a up; proxy_pass http://$host;"},
		{"/variable-uri", "set $a up; proxy_pass http://$host/x;"},
	}
	var text strings.Builder
	text.WriteString(header(dir) + "server { listen unix:" + dir + "/up; return 200 $request_uri; }\nupstream x { server unix:" + dir + "/up; }\n")
	text.WriteString("server { listen unix:" + dir + "/s;\nlocation @named { " + up + "; }\n")
	for _, c := range cases {
		fmt.Fprintf(&text, "location %s/ { %s }\n", c.path, c.body)
	}
	text.WriteString("}\n}\n")
	conf := readConf(t, text.String())
	if len(conf.Notes) > 0 {
		t.Fatal(conf.Notes)
	}
	l := run(t, dir, text.String(), dir+"/s")
	for _, c := range cases {
		status, body := l.get(dir+"/s", "GET", "/elsewhere/.."+c.path+"/%61", "x")
		if status != 200 {
			t.Errorf("%s: status %d", c.path, status)
		}
		s := conf.Server("unix:"+dir+"/s", 0, "x")
		for _, o := range s.Outcomes(s.Match(c.path + "/a")) {
			if raw := strings.Contains(body, "elsewhere"); raw != o.Target.RawURI {
				t.Errorf("%s: RawURI is %v, and the upstream gets %s", c.path, o.Target.RawURI, body)
			}
		}
	}
}
