package nginx

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// variable is what can give a variable of nginx its value.
type variable struct {
	// exprs are the values that directives give it; constant is false when there are others too.
	exprs    []string
	constant bool
	// sources are expressions that choose among exprs, or that a capture is a piece of.
	sources []string
	capture bool
	// part is the request's own, such as "server_name capture $port".
	part []string
	// free is true when the request writes it.
	free bool

	expanding bool
	all       []string // refs of exprs and sources, once asked for
	values    []string // refs of exprs
}

// refs gives the variables that this one depends on, valueRefs those that are in its values.
func (d *variable) refs() []string {
	d.valueRefs()
	return d.all
}

func (d *variable) valueRefs() []string {
	if d.all == nil {
		d.values = refs(d.exprs)
		d.all = append(append([]string{}, d.values...), refs(d.sources)...)
	}
	return d.values
}

// variables are those of http or of stream.
type variables struct {
	of       map[string]*variable
	unfilled map[string]bool
	uses     map[string][]string // by variable, what its value decides
	rewrites bool                // there is a rewrite, so that $uri may be anything
}

func (v *variables) define(name string) *variable {
	name = strings.ToLower(strings.TrimPrefix(name, "$"))
	d := v.of[name]
	if d == nil {
		d = &variable{constant: true}
		v.of[name] = d
	}
	return d
}

// segment is a piece of an expression: literal text, or a variable by its name; at is where it starts.
type segment struct {
	text, name string
	at         int
}

// split cuts an expression as ngx_http_script_compile does. Names of variables are in lower case, since nginx doesn't tell
// the cases apart.
func split(expr string) (out []segment, err error) {
	for i := 0; i < len(expr); {
		if expr[i] != '$' {
			n := strings.IndexByte(expr[i:], '$')
			if n < 0 {
				n = len(expr) - i
			}
			out = append(out, segment{text: expr[i : i+n], at: i})
			i += n
			continue
		}
		rest, braces := expr[i+1:], 0
		if strings.HasPrefix(rest, "{") {
			rest, braces = rest[1:], 2
		}
		n := 0
		for n < len(rest) && isNameByte(rest[n]) {
			n++
		}
		switch {
		case braces == 0 && n > 0 && isCapture(rest[:1]):
			n = 1
		case braces > 0 && (n == len(rest) || rest[n] != '}'):
			return out, fmt.Errorf("the closing bracket in %q variable is missing", cut(rest[:n]))
		case n == 0:
			return out, errors.New("invalid variable name")
		}
		out = append(out, segment{name: strings.ToLower(rest[:n]), at: i})
		i += 1 + braces + n
	}
	return out, nil
}

// names gives the variables of expr.
func names(expr string) []string {
	if !strings.Contains(expr, "$") {
		return nil
	}
	segments, _ := split(expr)
	var out []string
	for _, s := range segments {
		if s.name != "" {
			out = append(out, s.name)
		}
	}
	return out
}

func isCapture(name string) bool { return len(name) == 1 && name[0] >= '1' && name[0] <= '9' }

// refs gives the variables in exprs, each once.
func refs(exprs []string) []string {
	var out []string
	for _, e := range exprs {
		out = append(out, names(e)...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// maxSteps bounds how far one question about variables is followed through maps and set.
const maxSteps = 500

// walk visits the variables in expr, and those that they depend on, each once: visit says on what to go on with. It gives
// false when they are too many.
func (v *variables) walk(expr string, visit func(name string, d *variable) (next []string)) bool {
	seen := map[string]bool{}
	pending := names(expr)
	for steps := 0; len(pending) > 0; steps++ {
		if steps > maxSteps {
			return false
		}
		name := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		if !seen[name] {
			seen[name] = true
			pending = append(pending, visit(name, v.of[name])...)
		}
	}
	return true
}

// parts gives the parts of the request that the value of expr depends on, sorted. captures says where $1 to $9 come from.
func (v *variables) parts(expr string, captures []string) []string {
	var out []string
	if !v.walk(expr, func(name string, d *variable) []string {
		switch {
		case isCapture(name):
			for _, c := range captures {
				out = append(out, c+" capture $"+name)
			}
			if len(captures) == 0 {
				out = append(out, "capture $"+name)
			}
		case fromRequest(name), d == nil && !v.unfilled[name] && !knownVariable(name):
			out = append(out, "$"+name)
		}
		if d == nil {
			return nil
		}
		out = append(out, d.part...)
		return d.refs()
	}) {
		out = append(out, "more variables than are followed")
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// free says whether the request writes a part of expr's value, and doesn't only choose among constants.
func (v *variables) free(expr string) bool {
	free := false
	all := v.walk(expr, func(name string, d *variable) []string {
		switch {
		case isCapture(name), fromRequest(name), d != nil && d.free, d == nil && !v.unfilled[name] && !knownVariable(name):
			free = true
		case d != nil && d.capture:
			return d.refs()
		case d != nil:
			return d.valueRefs()
		}
		return nil
	})
	return free || !all
}

// maxValues bounds what expand gives.
const maxValues = 64

// expand gives every value that expr can have when all of them are in the configuration; false when they are not, or are
// too many.
func (v *variables) expand(expr string) ([]string, bool) {
	steps := 0
	return v.expandIn(expr, &steps)
}

func (v *variables) expandIn(expr string, steps *int) ([]string, bool) {
	segments, err := split(expr)
	if *steps++; err != nil || *steps > maxSteps {
		return nil, false
	}
	out := []string{""}
	for _, s := range segments {
		options := []string{s.text}
		if s.name != "" {
			d := v.of[s.name]
			if d == nil || !d.constant || d.expanding || fromRequest(s.name) {
				return nil, false
			}
			d.expanding = true
			options = nil
			for _, e := range d.exprs {
				values, ok := v.expandIn(e, steps)
				if !ok || len(options)+len(values) > maxValues {
					d.expanding = false
					return nil, false
				}
				options = append(options, values...)
			}
			d.expanding = false
		}
		if len(out)*len(options) > maxValues {
			return nil, false
		}
		var next []string
		for _, o := range out {
			for _, option := range options {
				if len(o)+len(option) > maxWord {
					return nil, false
				}
				next = append(next, o+option)
			}
		}
		out = next
	}
	slices.Sort(out)
	return slices.Compact(out), true
}

// use remembers what the value of expr decides.
func (v *variables) use(expr, decides string) {
	for pending := names(expr); len(pending) > 0; {
		name := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		if slices.Contains(v.uses[name], decides) {
			continue
		}
		v.uses[name] = append(v.uses[name], decides)
		if d := v.of[name]; d != nil {
			pending = append(pending, d.refs()...)
		}
	}
}

var namedGroup = regexp.MustCompile(`\(\?(?:P?<|')([A-Za-z_][A-Za-z0-9_]*)[>']`)

// groups defines the named groups of a regular expression.
func (v *variables) groups(pattern, from string) {
	for _, m := range namedGroup.FindAllStringSubmatch(pattern, -1) {
		d := v.define(m[1])
		d.constant, d.free = false, true
		if p := from + " capture $" + strings.ToLower(m[1]); !slices.Contains(d.part, p) {
			d.part = append(d.part, p)
		}
	}
}

// collect gathers the definitions of a block and of all blocks in it.
func (v *variables) collect(block []*statement) {
	for _, s := range block {
		switch s.name() {
		case "map":
			v.collectMap(s)
			continue
		case "set":
			if len(s.words) == 3 {
				d := v.define(s.arg(1))
				d.exprs = append(d.exprs, s.arg(2))
				// A variable that is set in one place and used in another may be empty there, or something that $1 was.
				if slices.ContainsFunc(names(s.arg(2)), isCapture) {
					d.free = true
				}
			}
		case "auth_request_set":
			d := v.define(s.arg(1))
			d.exprs, d.constant = append(d.exprs, s.arg(2)), false
		case "geo", "split_clients":
			d := v.define(s.last())
			for _, e := range s.block {
				if !slices.Contains([]string{"ranges", "delete", "proxy", "proxy_recursive"}, e.name()) {
					d.exprs = append(d.exprs, e.last())
				}
			}
			if s.name() == "geo" {
				d.exprs = append(d.exprs, "")
			}
			if len(s.words) == 3 {
				d.sources = append(d.sources, s.arg(1))
			}
			continue
		case "perl_set", "js_set", "js_var", "set_by_lua", "set_by_lua_block", "set_by_lua_file":
			d := v.define(s.arg(1))
			d.constant, d.free = false, true
			d.part = append(d.part, s.name()+" $"+strings.ToLower(strings.TrimPrefix(s.arg(1), "$")))
		case "location":
			v.groups(s.last(), "location")
		case "server_name":
			for _, name := range s.words[1:] {
				v.groups(name, "server_name")
			}
		case "rewrite", "if":
			v.rewrites = v.rewrites || s.name() == "rewrite"
			for _, w := range s.words[1:] {
				v.groups(w, s.name())
			}
		}
		v.collect(s.block)
	}
}

func (v *variables) collectMap(s *statement) {
	if len(s.words) != 3 {
		return
	}
	d := v.define(s.arg(2))
	d.sources = append(d.sources, s.arg(1))
	hasDefault := false
	for _, e := range s.block {
		if len(e.words) != 2 {
			continue
		}
		hasDefault = hasDefault || e.name() == "default"
		d.exprs = append(d.exprs, e.arg(1))
		if slices.ContainsFunc(names(e.arg(1)), isCapture) {
			d.capture = true
		}
		for _, m := range namedGroup.FindAllStringSubmatch(e.name(), -1) {
			g := v.define(m[1])
			g.sources, g.constant, g.capture = append(g.sources, s.arg(1)), false, true
		}
	}
	if !hasDefault {
		d.exprs = append(d.exprs, "")
	}
	if d.capture {
		d.constant = false
		for i, e := range d.exprs { // a capture is a piece of the source, which is named already
			if slices.ContainsFunc(names(e), isCapture) {
				d.exprs[i] = withoutCaptures(e)
			}
		}
	}
}

func withoutCaptures(expr string) string {
	segments, _ := split(expr)
	var out strings.Builder
	for _, s := range segments {
		out.WriteString(s.text)
		if s.name != "" && !isCapture(s.name) {
			out.WriteString("${" + s.name + "}")
		}
	}
	return out.String()
}

// requestParts are variables that a client, or an upstream's answer, writes. A "_" at the end stands for any rest.
var requestParts = strings.Fields(`arg_ args content_length content_type cookie_ document_uri host http_ invalid_referer is_args
	proxy_add_via proxy_add_x_forwarded_for proxy_protocol_addr proxy_protocol_port proxy_protocol_server_addr
	proxy_protocol_server_port proxy_protocol_tlv_ query_string realip_remote_addr remote_user request request_body
	request_body_file request_filename request_length request_method request_port is_request_port request_uri
	sent_http_ sent_trailer_ server_protocol slice_range ssl_alpn_protocol ssl_client_cert ssl_client_escaped_cert
	ssl_client_i_dn ssl_client_i_dn_legacy ssl_client_raw_cert ssl_client_s_dn ssl_client_s_dn_legacy ssl_client_serial
	ssl_preread_alpn_protocols ssl_preread_server_name ssl_server_name uid_got upstream_cookie_ upstream_http_
	upstream_trailer_ uri`)

// otherVariables are the rest of those that nginx has (https://nginx.org/en/docs/varindex.html).
var otherVariables = strings.Fields(`ancient_browser binary_remote_addr body_bytes_sent bytes_received bytes_sent connection
	connection_requests connection_time connections_active connections_reading connections_waiting connections_writing
	date_gmt date_local document_root fastcgi_path_info fastcgi_script_name geoip_area_code geoip_city
	geoip_city_continent_code geoip_city_country_code geoip_city_country_code3 geoip_city_country_name geoip_country_code
	geoip_country_code3 geoip_country_name geoip_dma_code geoip_latitude geoip_longitude geoip_org geoip_postal_code
	geoip_region geoip_region_name gzip_ratio hostname http2 http3 https limit_conn_status limit_rate limit_req_status
	memcached_key modern_browser msec msie nginx_version pid pipe protocol proxy_host proxy_port realip_remote_port
	realpath_root remote_addr remote_port request_completion request_id request_time scheme secure_link
	secure_link_expires server_addr server_name server_port session_time ssl_cipher ssl_ciphers ssl_client_fingerprint
	ssl_client_sigalg ssl_client_v_end ssl_client_v_remain ssl_client_v_start ssl_client_verify ssl_curve ssl_curves
	ssl_early_data ssl_ech_outer_server_name ssl_ech_status ssl_preread_protocol ssl_protocol ssl_session_id
	ssl_session_reused ssl_sigalg ssl_sigalgs status tcpinfo_rcv_space tcpinfo_rtt tcpinfo_rttvar tcpinfo_snd_cwnd
	time_iso8601 time_local uid_reset uid_set upstream_addr upstream_bytes_received upstream_bytes_sent
	upstream_cache_etag upstream_cache_last_modified upstream_cache_status upstream_connect_time upstream_first_byte_time
	upstream_header_time upstream_response_length upstream_response_time upstream_session_time upstream_status`)

func fromRequest(name string) bool { return listed(requestParts, name) }

func knownVariable(name string) bool {
	return listed(requestParts, name) || listed(otherVariables, name)
}

func listed(list []string, name string) bool {
	return slices.ContainsFunc(list, func(entry string) bool {
		return entry == name || strings.HasSuffix(entry, "_") && strings.HasPrefix(name, entry)
	})
}

// number reads a status; -1 for what is none.
func number(s string) int {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return -1
	}
	return int(n)
}
