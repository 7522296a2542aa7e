package gate

import (
	"crypto/sha256"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// newGate is a gate with both kinds of keys.
func newGate(t testing.TB) *Gate {
	t.Helper()
	h, err := New(Config{APIKeySHA256: sumOf(apiKey), JWTPublicKey: publicPEM(&signer().PublicKey), TicketTTL: 30 * time.Second}, "127.0.0.1:5900", unlogged)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func newAnonymous(t testing.TB) *Gate {
	t.Helper()
	h, err := New(Config{Anonymous: true, TicketTTL: 30 * time.Second}, "127.0.0.1:5900", unlogged)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// unlogged is a log that takes all.
func unlogged(Event) error { return nil }

// issue makes a ticket of a gate's.
func issue(t testing.TB, g *Gate, input bool) string {
	t.Helper()
	text, _, err := g.tickets.issue(holder{subject: "key:test"}, input)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// send sends one request with headers, given as name and value in turn, and holds the answer against what is true of all.
func send(t testing.TB, h http.Handler, method, target string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(method, "/", nil)
	r.RequestURI = target
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusOK && w.Body.Len() > 0 {
		t.Errorf("%s %s: status %d has a body: %q", method, target, w.Code, w.Body)
	}
	if w.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("%s %s: may be cached", method, target)
	}
	return w
}

// auth asks as nginx does for a request to uri.
func auth(t testing.TB, h http.Handler, uri string, headers ...string) int {
	t.Helper()
	return send(t, h, "GET", "/auth", append([]string{"X-Original-URI", uri}, headers...)...).Code
}

func TestTicketIsIssued(t *testing.T) {
	g := newGate(t)
	w := send(t, g, "POST", "/tickets", "X-AIO-API-Key", apiKey)
	var answer map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || w.Code != 200 || w.Header().Get("Content-Type") != "application/json" {
		t.Fatalf("%d %s: %v", w.Code, w.Body, err)
	}
	ticket, _ := answer["ticket"].(string)
	if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(ticket) {
		t.Errorf("ticket %q is no version 4 UUID", ticket)
	}
	delete(answer, "ticket")
	if !maps.Equal(answer, map[string]any{"expires_in": 30.0}) {
		t.Errorf("besides the ticket: %v", answer)
	}
	for range 3 { // noVNC's page, its socket, and a reload
		if code := auth(t, g, "/vnc/index.html?ticket="+ticket); code != 204 {
			t.Errorf("the ticket gives %d", code)
		}
	}
}

func TestTicketsNeedAKey(t *testing.T) {
	g := newGate(t)
	ticket := issue(t, g, false)
	token := sign(t, jwt.MapClaims{"exp": time.Now().Add(time.Hour).Unix()}, nil)
	for name, c := range map[string]struct {
		target  string
		headers []string
		want    int
	}{
		"key":                     {"/tickets", []string{"X-AIO-API-Key", apiKey}, 200},
		"bearer key":              {"/tickets", []string{"Authorization", "Bearer " + apiKey}, 200},
		"key in query":            {"/tickets?api_key=" + apiKey, nil, 200},
		"key in nginx's query":    {"/tickets", []string{"X-Original-URI", "/tickets?api_key=" + apiKey}, 200},
		"token":                   {"/tickets", []string{"Authorization", "Bearer " + token}, 200},
		"key and a ticket":        {"/tickets?ticket=" + ticket, []string{"X-AIO-API-Key", apiKey}, 200},
		"nothing":                 {"/tickets", nil, 401},
		"wrong key":               {"/tickets", []string{"X-AIO-API-Key", apiKey + "x"}, 401},
		"ticket":                  {"/tickets?ticket=" + ticket, nil, 401},
		"ticket, as nginx tells":  {"/tickets", []string{"X-Original-URI", "/tickets?ticket=" + ticket}, 401},
		"ticket, said for VNC":    {"/tickets", []string{"X-Original-URI", "/vnc/?ticket=" + ticket}, 401},
		"ticket as bearer":        {"/tickets", []string{"Authorization", "Bearer " + ticket}, 401},
		"ticket as key":           {"/tickets?api_key=" + ticket, []string{"X-AIO-API-Key", ticket}, 401},
		"ticket of other spell":   {"/tickets?%74icket=" + ticket, nil, 401},
		"key, but query unclear":  {"/tickets?a=%zz", []string{"X-AIO-API-Key", apiKey}, 401},
		"two X-Original-URI":      {"/tickets", []string{"X-AIO-API-Key", apiKey, "X-Original-URI", "/tickets", "X-Original-URI", "/tickets"}, 401},
		"two keys, one good":      {"/tickets", []string{"X-AIO-API-Key", apiKey, "X-AIO-API-Key", "x"}, 401},
		"other spelling of path":  {"/%74ickets", []string{"X-AIO-API-Key", apiKey}, 404},
		"slash at the end":        {"/tickets/", []string{"X-AIO-API-Key", apiKey}, 404},
		"two slashes":             {"//tickets", []string{"X-AIO-API-Key", apiKey}, 404},
		"dots":                    {"/x/../tickets", []string{"X-AIO-API-Key", apiKey}, 404},
		"absolute":                {"http://127.0.0.1/tickets", []string{"X-AIO-API-Key", apiKey}, 404},
		"capitals":                {"/Tickets", []string{"X-AIO-API-Key", apiKey}, 404},
		"parameter":               {"/tickets;a", []string{"X-AIO-API-Key", apiKey}, 404},
		"asterisk":                {"*", []string{"X-AIO-API-Key", apiKey}, 404},
		"nothing of ours":         {"/mcp", []string{"X-AIO-API-Key", apiKey}, 404},
		"root":                    {"/", []string{"X-AIO-API-Key", apiKey}, 404},
		"key of other case":       {"/tickets", []string{"X-AIO-API-Key", strings.ToLower(apiKey)}, 401},
		"key of other name":       {"/tickets?API_KEY=" + apiKey, nil, 401},
		"key of other scheme":     {"/tickets", []string{"Authorization", "Basic " + apiKey}, 401},
		"key without scheme":      {"/tickets", []string{"Authorization", apiKey}, 401},
		"the key's SHA-256":       {"/tickets", []string{"X-AIO-API-Key", sumOf(apiKey)}, 401},
		"empty key":               {"/tickets?api_key=", []string{"X-AIO-API-Key", "", "Authorization", "Bearer "}, 401},
		"last key of query bad":   {"/tickets?api_key=" + apiKey + "&api_key=x", nil, 401},
		"first key of query bad":  {"/tickets?api_key=x&api_key=" + apiKey, nil, 401},
		"bad header, good bearer": {"/tickets", []string{"X-AIO-API-Key", "x", "Authorization", "bearer  " + apiKey}, 401},
		"bearer of other case":    {"/tickets", []string{"Authorization", "bearer  " + apiKey}, 200},
	} {
		if w := send(t, g, "POST", c.target, c.headers...); w.Code != c.want {
			t.Errorf("%s: %d, want %d", name, w.Code, c.want)
		}
	}
}

func TestMethods(t *testing.T) {
	for _, g := range []*Gate{newGate(t), newAnonymous(t)} {
		for target, allowed := range map[string]string{"/tickets": "POST, DELETE", "/auth": "GET", "/websockify": "GET"} {
			for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "TRACE", "get", "BREW"} {
				if slices.Contains(strings.Split(allowed, ", "), method) {
					continue
				}
				w := send(t, g, method, target, "X-AIO-API-Key", apiKey)
				if w.Code != 405 || w.Header().Get("Allow") != allowed {
					t.Errorf("%s %s: %d, Allow %q", method, target, w.Code, w.Header().Get("Allow"))
				}
			}
		}
	}
}

// TestTicketPaths: a ticket opens the desktop in its one plain spelling, and nothing else in any.
func TestTicketPaths(t *testing.T) {
	g := newGate(t)
	ticket := issue(t, g, false)
	old := "00000000-0000-4000-8000-000000000000"
	for uri, want := range map[string]int{
		"/vnc/?ticket=T":           204,
		"/vnc/index.html?ticket=T": 204,
		"/vnc/vnc_lite.html?autoconnect=1&ticket=T&path=websockify%3Fticket%3DT": 204,
		"/vnc/app/locale/zh_CN.json?ticket=T":                                    204,
		"/vnc/core/rfb.js?ticket=T":                                              204,
		"/websockify?ticket=T":                                                   204,
		"/vnc/websockify?ticket=T":                                               204,
		"/vnc/?%74icket=T":                                                       204, // the same name by RFC 3986
		"/vnc/?ticket=O&ticket=T":                                                204, // the last one counts

		"/vnc/?ticket=T&ticket=O":        401,
		"/vnc/?ticket=T&ticket=":         401,
		"/vnc/?ticket=T&%74icket=O":      401,
		"/vnc/?ticket=T&ticket":          401,
		"/vnc/?Ticket=T":                 401,
		"/vnc/?ticket[]=T":               401,
		"/vnc/?ticket=T%00":              401,
		"/vnc/?ticket=T#":                401,
		"/vnc/?ticket=%20T":              401,
		"/vnc/?ticket=T;x=1":             401,
		"/vnc/?x=1;ticket=T":             401,
		"/vnc/?ticket=T&x=%zz":           401,
		"/vnc/?x=ticket=T":               401,
		"/vnc/??ticket=T":                401,
		"/vnc/?path=websockify?ticket=T": 401,
		"/vnc/#?ticket=T":                401,
		"/vnc/%3Fticket=T":               401,
		"/vnc/":                          401,
		"/vnc/?ticket=":                  401,
		"/vnc/?ticket=O":                 401,
		"/vnc?ticket=T":                  401, // only redirects
		"":                               401,
		"?ticket=T":                      401,
		"/?ticket=T":                     401,
		"*?ticket=T":                     401,
		"/mcp?ticket=T":                  401,
		"/tickets?ticket=T":              401,
		"/auth?ticket=T":                 401,
		"/_auth?ticket=T":                401,
		"/vncx?ticket=T":                 401,
		"/websockify/?ticket=T":          401,
		"/websockifyx?ticket=T":          401,
		"/websockify/x?ticket=T":         401,
		"/ws?ticket=T":                   401,
		"/v1/shell/ws?ticket=T":          401,
		"/mcp?ticket=T&x=/vnc/":          401,
		"/mcp?/vnc/?ticket=T":            401,
		"/VNC/?ticket=T":                 401,
		"/Websockify?ticket=T":           401,
		"//vnc/?ticket=T":                401,
		"/vnc//?ticket=T":                401,
		"/vnc//mcp?ticket=T":             401,
		"/vnc/../mcp?ticket=T":           401,
		"/vnc/..?ticket=T":               401,
		"/vnc/.?ticket=T":                401,
		"/vnc/./vnc.html?ticket=T":       401,
		"/vnc/../vnc/?ticket=T":          401,
		"/mcp/../vnc/?ticket=T":          401,
		"/vnc/a/../../mcp?ticket=T":      401,
		"/vnc/..%2fmcp?ticket=T":         401,
		"/vnc/..%2Fmcp?ticket=T":         401,
		"/vnc/%2e%2e/mcp?ticket=T":       401,
		"/vnc/%2e%2e%2fmcp?ticket=T":     401,
		"/vnc/..%252fmcp?ticket=T":       401,
		"/vnc%2f..%2fmcp?ticket=T":       401,
		"/vnc%2F?ticket=T":               401,
		"/%76nc/?ticket=T":               401,
		"/vnc/..;/mcp?ticket=T":          401,
		"/vnc/;/../mcp?ticket=T":         401,
		"/vnc;x/?ticket=T":               401,
		"/vnc/x;y?ticket=T":              401,
		"/websockify;x?ticket=T":         401,
		`/vnc/..\mcp?ticket=T`:           401,
		`/vnc\..\mcp?ticket=T`:           401,
		"/vnc/..%5cmcp?ticket=T":         401,
		"/vnc/%00?ticket=T":              401,
		"/vnc/\x00?ticket=T":             401,
		"/websockify\x00?ticket=T":       401,
		"/vnc/\n/mcp?ticket=T":           401,
		"/vnc/\r\nX: y?ticket=T":         401,
		"/websockify\n?ticket=T":         401,
		"/vnc/%0a?ticket=T":              401,
		"/vnc/ x?ticket=T":               401,
		" /vnc/?ticket=T":                401,
		"/vnc/.git/config?ticket=T":      401,
		"/vnc/..%c0%afmcp?ticket=T":      401,
		"/vnc/\xc0\xae\xc0\xae?ticket=T": 401,
		"/vnc/\uff0e\uff0e/mcp?ticket=T": 401,
		"http://x/vnc/?ticket=T":         401,
		"http://127.0.0.1/vnc/?ticket=T": 401,
		"https://x/websockify?ticket=T":  401,
		"//x/vnc/?ticket=T":              401,
		"/http://x/vnc/?ticket=T":        401,
		"/vnc/?" + strings.Repeat("a", maxURI) + "&ticket=T":     401,
		"/vnc/" + strings.Repeat("a/", maxURI) + "?ticket=T":     401,
		"/vnc/" + strings.Repeat("a/", 4000) + "x?ticket=T":      204,
		"/vnc/?" + strings.Repeat("ticket=T&", 200) + "ticket=O": 401,
		"/vnc/" + strings.Repeat("../", 2000) + "mcp?ticket=T":   401,
		"/mcp?" + strings.Repeat("ticket=T&", 200):               401,
	} {
		full := strings.NewReplacer("icket=T", "icket="+ticket, "%20T", "%20"+ticket, "%3DT", "%3D"+ticket, "[]=T", "[]="+ticket, "=O", "="+old).Replace(uri)
		if got := auth(t, g, full); got != want {
			t.Errorf("%.80q: %d, want %d", uri, got, want)
		}
		if got := send(t, g, "POST", "/tickets", "X-Original-URI", full).Code; got != 401 {
			t.Errorf("%.80q gives a new ticket: %d", uri, got)
		}
	}
	if got := send(t, g, "GET", "/auth?ticket="+ticket).Code; got != 401 {
		t.Errorf("a ticket for the question itself: %d", got)
	}
	if got := auth(t, g, "/vnc/?ticket="+ticket, "X-Original-URI", "/mcp"); got != 401 {
		t.Errorf("two X-Original-URI: %d", got)
	}
}

func TestTicketBeatsKey(t *testing.T) {
	g := newGate(t)
	for uri, want := range map[string]int{
		"/mcp":                   204,
		"/vnc/":                  204,
		"/vnc/?ticket=x":         401, // existing clients see by this that a ticket is old
		"/vnc/?ticket=":          401,
		"/websockify?ticket=x":   401,
		"/mcp?ticket=x":          204, // not a ticket's business
		"/vnc/?ticket=x&y=%":     401,
		"/v1/docs":               204, // where nginx leads is nginx's
		"/vnc/%2e%2e/?ticket=x":  204,
		"/mcp?api_key=" + apiKey: 401, // two keys
	} {
		if got := auth(t, g, uri, "X-AIO-API-Key", apiKey); got != want {
			t.Errorf("%s: %d, want %d", uri, got, want)
		}
	}
	if got := auth(t, g, "/vnc/?ticket=x&api_key="+apiKey); got != 401 {
		t.Errorf("old ticket and key in the query: %d", got)
	}
}

func TestTicketsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(t)
		ticket := issue(t, g, false)
		time.Sleep(30*time.Second - 1)
		if code := auth(t, g, "/vnc/?ticket="+ticket); code != 204 {
			t.Errorf("just before its end: %d", code)
		}
		time.Sleep(1)
		if code := auth(t, g, "/vnc/?ticket="+ticket); code != 401 {
			t.Errorf("at its end: %d", code)
		}
		// A ticket ends no later than the token that it was asked with.
		short, _, err := g.tickets.issue(holder{subject: "sub:a", until: time.Now().Add(time.Second)}, false)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if code := auth(t, g, "/vnc/?ticket="+short); code != 401 {
			t.Errorf("after its token's end: %d", code)
		}

		// One that asks without end takes no memory, and leaves the newest working.
		synctest.Wait()
		first := issue(t, g, false)
		for range maxTickets - 1 {
			issue(t, g, false)
		}
		if g.tickets.find(first) == nil || len(g.tickets.by) != maxTickets || len(g.tickets.order) != maxTickets {
			t.Errorf("%d of %d tickets", len(g.tickets.by), maxTickets)
		}
		for range maxTickets * 3 {
			ticket = issue(t, g, false)
		}
		if g.tickets.find(first) != nil || g.tickets.find(ticket) == nil || len(g.tickets.by) != maxTickets || len(g.tickets.order) != maxTickets {
			t.Errorf("%d tickets after too many", len(g.tickets.by))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(g.tickets.by) != 0 || len(g.tickets.order) != 0 {
			t.Errorf("%d tickets after their end", len(g.tickets.by))
		}
	})
}

// TestTicketOrder: what a request for a ticket may say, and that a ticket can be taken back by who holds a key, alone.
func TestTicketOrder(t *testing.T) {
	g := newGate(t)
	post := func(body string, key string) (*httptest.ResponseRecorder, string) {
		r := httptest.NewRequest("POST", "/tickets", strings.NewReader(body))
		r.Header.Set("X-AIO-API-Key", key)
		w := httptest.NewRecorder()
		g.ServeHTTP(w, r)
		var answer struct{ Ticket string }
		_ = json.Unmarshal(w.Body.Bytes(), &answer)
		return w, answer.Ticket
	}
	for body, want := range map[string]int{
		"": 200, " ": 200, "{}": 200, `{"input":false}`: 200, `{"input":true}`: 200, ` {"input" : true} `: 200,
		"x": 400, "null": 400, "[]": 400, `{"input":"true"}`: 400, `{"input":1}`: 400, `{"Input":true}`: 400, `{"input":null}`: 400,
		`{"input":false,"input":true}`: 400, `{"input":true} {}`: 400, `{"input":true`: 400, strings.Repeat(" ", maxOrder+1): 400,
	} {
		w, text := post(body, apiKey)
		ticket := g.tickets.find(text)
		if w.Code != want || (ticket != nil) != (want == 200) {
			t.Errorf("%.40q: %d %s", body, w.Code, w.Body)
			continue
		}
		if ticket == nil {
			if !strings.Contains(w.Body.String(), `send {\"input\": true} or no body`) {
				t.Errorf("%.40q: the error says %s", body, w.Body)
			}
			continue
		}
		if act := strings.Contains(body, "true"); ticket.input != act || strings.Contains(w.Body.String(), `"input":true`) != act {
			t.Errorf("%q: input %v, %s", body, ticket.input, w.Body)
		}
	}
	if w, _ := post(`{"input":true}`, "x"); w.Code != 401 {
		t.Errorf("without a key: %d", w.Code)
	}

	ticket, other := issue(t, g, false), issue(t, g, true)
	for _, step := range []struct {
		target string
		key    string
		want   int
	}{
		{"/tickets?ticket=" + ticket, "", 401},
		{"/tickets?ticket=" + ticket, "wrong", 401},
		{"/tickets", apiKey, 404},
		{"/tickets?ticket=x", apiKey, 404},
		{"/tickets?ticket=" + ticket + "&ticket=" + other, apiKey, 404},
		{"/tickets?ticket=" + ticket, apiKey, 204},
		{"/tickets?ticket=" + ticket, apiKey, 404},
	} {
		if w := send(t, g, "DELETE", step.target, "X-Original-URI", "/tickets", "X-AIO-API-Key", step.key); w.Code != step.want {
			t.Errorf("DELETE %s: %d, want %d", step.target, w.Code, step.want)
		}
	}
	if code := auth(t, g, "/vnc/?ticket="+ticket); code != 401 {
		t.Errorf("a ticket that was taken back: %d", code)
	}
	if code := auth(t, g, "/vnc/?ticket="+other); code != 204 {
		t.Errorf("another one: %d", code)
	}
}

// TestOneCredential: a request with two keys is nobody's, whichever of them is good; a key for another program (Basic) is none.
func TestOneCredential(t *testing.T) {
	g := newGate(t)
	token := sign(t, jwt.MapClaims{"exp": time.Now().Add(time.Hour).Unix()}, nil)
	for name, c := range map[string]struct {
		uri     string
		headers []string
		want    int
	}{
		"one key":               {"/mcp", []string{"X-AIO-API-Key", apiKey}, 204},
		"one bearer":            {"/mcp", []string{"Authorization", "Bearer " + apiKey}, 204},
		"key and Basic":         {"/mcp", []string{"X-AIO-API-Key", apiKey, "Authorization", "Basic eDp5"}, 204},
		"key twice":             {"/mcp", []string{"X-AIO-API-Key", apiKey, "X-AIO-API-Key", apiKey}, 401},
		"good and bad key":      {"/mcp", []string{"X-AIO-API-Key", apiKey, "X-AIO-API-Key", "x"}, 401},
		"bad and good key":      {"/mcp", []string{"X-AIO-API-Key", "x", "X-AIO-API-Key", apiKey}, 401},
		"joined by nginx 1.23":  {"/mcp", []string{"X-AIO-API-Key", apiKey + ", x"}, 401},
		"key and bearer":        {"/mcp", []string{"X-AIO-API-Key", apiKey, "Authorization", "Bearer x"}, 401},
		"key and token":         {"/mcp", []string{"X-AIO-API-Key", "x", "Authorization", "Bearer " + token}, 401},
		"bearer twice":          {"/mcp", []string{"Authorization", "Bearer " + apiKey, "Authorization", "Bearer " + apiKey}, 401},
		"bearer and Basic":      {"/mcp", []string{"Authorization", "Bearer " + apiKey, "Authorization", "Basic eDp5"}, 401},
		"header and query":      {"/vnc/?api_key=" + apiKey, []string{"X-AIO-API-Key", apiKey}, 401},
		"query and bearer":      {"/vnc/?api_key=x", []string{"Authorization", "Bearer " + token}, 401},
		"query twice":           {"/vnc/?api_key=x&api_key=" + apiKey, nil, 401},
		"query twice, in parts": {"/vnc/?api_key=" + apiKey + "&%61pi_key=x", nil, 401},
	} {
		if got := auth(t, g, c.uri, c.headers...); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// TestTokenClaims: where JWT_AUDIENCE and JWT_ISSUER are set, a token for another service or of another issuer is refused.
func TestTokenClaims(t *testing.T) {
	g, err := New(Config{JWTPublicKey: publicPEM(&signer().PublicKey), JWTAudience: "slim", JWTIssuer: "https://issuer.example/", TicketTTL: time.Second},
		"127.0.0.1:5900", unlogged)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		claims jwt.MapClaims
		want   int
	}{
		"both":              {jwt.MapClaims{"aud": "slim", "iss": "https://issuer.example/"}, 204},
		"one of several":    {jwt.MapClaims{"aud": []string{"a", "slim"}, "iss": "https://issuer.example/"}, 204},
		"none":              {jwt.MapClaims{}, 401},
		"no audience":       {jwt.MapClaims{"iss": "https://issuer.example/"}, 401},
		"no issuer":         {jwt.MapClaims{"aud": "slim"}, 401},
		"another audience":  {jwt.MapClaims{"aud": "other", "iss": "https://issuer.example/"}, 401},
		"another issuer":    {jwt.MapClaims{"aud": "slim", "iss": "https://issuer.example"}, 401},
		"empty audiences":   {jwt.MapClaims{"aud": []string{}, "iss": "https://issuer.example/"}, 401},
		"an audience's end": {jwt.MapClaims{"aud": "slimx", "iss": "https://issuer.example/"}, 401},
		"audience no text":  {jwt.MapClaims{"aud": 7, "iss": "https://issuer.example/"}, 401},
		"issuer a list":     {jwt.MapClaims{"aud": "slim", "iss": []string{"https://issuer.example/"}}, 401},
	} {
		c.claims["exp"] = time.Now().Add(time.Hour).Unix()
		if got := auth(t, g, "/mcp", "Authorization", "Bearer "+sign(t, c.claims, nil)); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestAnonymous(t *testing.T) {
	g := newAnonymous(t)
	for _, uri := range []string{"/mcp", "/vnc/?ticket=x", "/websockify", "/vnc/?a=%zz", ""} {
		if got := auth(t, g, uri, "X-AIO-API-Key", "x"); got != 204 {
			t.Errorf("%s: %d", uri, got)
		}
	}
	if w := send(t, g, "POST", "/tickets"); w.Code != 200 {
		t.Errorf("a ticket: %d", w.Code)
	}
}

// sign makes a token with more keys in its head.
func sign(t testing.TB, claims jwt.MapClaims, head map[string]any) string {
	t.Helper()
	token := jwt.NewWithClaims(jwt.SigningMethodRS256, claims)
	maps.Copy(token.Header, head)
	s, err := token.SignedString(signer())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func signAs(t testing.TB, method jwt.SigningMethod, key any) string {
	t.Helper()
	s, err := jwt.NewWithClaims(method, jwt.MapClaims{"exp": time.Now().Add(time.Hour).Unix()}).SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTokens(t *testing.T) {
	g := newGate(t)
	soon, past := time.Now().Add(time.Hour).Unix(), time.Now().Add(-time.Hour).Unix()
	good := sign(t, jwt.MapClaims{"exp": soon, "nbf": past, "iat": past, "aud": []string{"a"}, "iss": 7, "sub": "u"}, nil)
	head, rest, _ := strings.Cut(good, ".")
	claims, mac, _ := strings.Cut(rest, ".")
	other := newRSA(2048)

	for name, c := range map[string]struct {
		token string
		want  int
	}{
		"good":              {good, 204},
		"kid, jku, x5u":     {sign(t, jwt.MapClaims{"exp": soon}, map[string]any{"kid": "../../dev/null", "jku": "http://127.0.0.1:1/", "x5u": "http://127.0.0.1:1/", "jwk": map[string]string{"kty": "RSA"}}), 204},
		"exp with fraction": {sign(t, jwt.MapClaims{"exp": float64(soon) + 0.5}, nil), 204},
		"no exp":            {sign(t, jwt.MapClaims{"sub": "u"}, nil), 401},
		"exp null":          {sign(t, jwt.MapClaims{"exp": nil}, nil), 401},
		"exp 0":             {sign(t, jwt.MapClaims{"exp": 0}, nil), 401},
		"exp text":          {sign(t, jwt.MapClaims{"exp": "9999999999"}, nil), 401},
		"exp past":          {sign(t, jwt.MapClaims{"exp": past}, nil), 401},
		"exp negative":      {sign(t, jwt.MapClaims{"exp": -soon}, nil), 401},
		"nbf to come":       {sign(t, jwt.MapClaims{"exp": soon, "nbf": soon - 1}, nil), 401},
		"nbf text":          {sign(t, jwt.MapClaims{"exp": soon, "nbf": "x"}, nil), 401},
		"crit":              {sign(t, jwt.MapClaims{"exp": soon}, map[string]any{"crit": []string{"exp"}}), 401},
		"another's key":     {signAs(t, jwt.SigningMethodRS256, other), 401},
		"RS512":             {signAs(t, jwt.SigningMethodRS512, signer()), 401},
		"PS256":             {signAs(t, jwt.SigningMethodPS256, signer()), 401},
		"HS256 by the PEM":  {signAs(t, jwt.SigningMethodHS256, []byte(publicPEM(&signer().PublicKey))), 401},
		"none":              {signAs(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType), 401},
		"alg of other case": {sign(t, jwt.MapClaims{"exp": soon}, map[string]any{"alg": "rs256"}), 401},
		"alg a list":        {sign(t, jwt.MapClaims{"exp": soon}, map[string]any{"alg": []string{"RS256"}}), 401},
		"no signature":      {head + "." + claims + ".", 401},
		"claims changed":    {head + "." + strings.Replace(claims, "e", "f", 1) + "." + mac, 401},
		"padding":           {good + "=", 401},
		"four parts":        {good + ".x", 401},
		"two parts":         {head + "." + claims, 401},
		"dots":              {strings.Repeat(".", 1000), 401},
		"too long":          {sign(t, jwt.MapClaims{"exp": soon, "x": strings.Repeat("x", maxToken)}, nil), 401},
		"not JSON":          {"e30x.e30.e30", 401},
		"deep":              {strings.Repeat("W1tb", 1500) + ".e30.e30", 401},
	} {
		if got := auth(t, g, "/mcp", "Authorization", "Bearer "+c.token); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}

	for name, headers := range map[string][]string{
		"as key":         {"X-AIO-API-Key", good},
		"two of them":    {"Authorization", "Bearer " + good, "Authorization", "Bearer " + good},
		"other scheme":   {"Authorization", "Token " + good},
		"without scheme": {"Authorization", good},
		"two in one":     {"Authorization", "Bearer " + good + ", Bearer " + good},
	} {
		if got := auth(t, g, "/mcp", headers...); got != 401 {
			t.Errorf("%s: %d", name, got)
		}
	}
	if got := auth(t, g, "/mcp?api_key="+good); got != 401 {
		t.Errorf("in the query: %d", got)
	}
	keyOnly, err := New(Config{APIKeySHA256: sumOf(apiKey), TicketTTL: time.Second}, "127.0.0.1:5900", unlogged)
	if err != nil {
		t.Fatal(err)
	}
	if got := auth(t, keyOnly, "/mcp", "Authorization", "Bearer "+good); got != 401 {
		t.Errorf("where no token is taken: %d", got)
	}
	tokenOnly, err := New(Config{JWTPublicKey: publicPEM(&signer().PublicKey), TicketTTL: time.Second}, "127.0.0.1:5900", unlogged)
	if err != nil {
		t.Fatal(err)
	}
	if got := auth(t, tokenOnly, "/mcp", "X-AIO-API-Key", ""); got != 401 {
		t.Errorf("an empty key where none is taken: %d", got)
	}
}

// FuzzAuth: whatever a request looks like, without a key it gets past only with a ticket, only to the desktop, and never
// to a new ticket.
func FuzzAuth(f *testing.F) {
	const text = "11111111-2222-4333-8444-555555555555"
	for _, uri := range []string{
		"/vnc/?ticket=" + text, "/websockify?%74icket=" + text, "/vnc/websockify?ticket=x&ticket=" + text, "/mcp?ticket=" + text,
		"/vnc/..%2fmcp?ticket=" + text, "/vnc/../mcp?ticket=" + text, "//vnc/a.html?ticket=" + text, "http://x/vnc/?ticket=" + text,
		"/vnc/a/b/c.js?x=.js&ticket=" + text, "/tickets?ticket=" + text, "/vnc/%00?ticket=" + text, `/vnc/..\mcp?ticket=` + text, "*", "",
	} {
		f.Add(uri, "Bearer "+text, text)
		f.Add(uri, "Bearer e30.e30.e30", "")
	}
	g := newGate(f)
	g.tickets.by[sha256.Sum256([]byte(text))] = &ticket{ctx: f.Context(), until: time.Now().Add(24 * time.Hour)}
	f.Fuzz(func(t *testing.T, uri, authorization, key string) {
		headers := []string{"X-Original-URI", uri, "Authorization", authorization, "X-AIO-API-Key", key}
		if code := send(t, g, "POST", "/tickets", headers...).Code; code != 401 {
			t.Fatalf("a new ticket: %d", code)
		}
		if code := send(t, g, "DELETE", "/tickets?ticket="+text, headers...).Code; code != 401 {
			t.Fatalf("a ticket is taken back: %d", code)
		}
		if code := send(t, g, "POST", uri, headers[2:]...).Code; code == 200 {
			t.Fatalf("a new ticket at its own address")
		}
		switch code := send(t, g, "GET", "/auth", headers...).Code; code {
		case 401:
			return
		case 204:
		default:
			t.Fatalf("status %d", code)
		}
		// What nginx makes of the path, by another way than the gate's.
		raw, query, _ := strings.Cut(uri, "?")
		decoded, err := url.PathUnescape(raw)
		if err != nil {
			t.Fatalf("%q passed and cannot be decoded", uri)
		}
		cleaned := path.Clean(decoded)
		if cleaned != strings.TrimSuffix(raw, "/") || cleaned != "/websockify" && cleaned != "/vnc" && !strings.HasPrefix(cleaned, "/vnc/") || raw == "/vnc" {
			t.Errorf("%q passed and leads to %q", uri, cleaned)
		}
		if q, _ := url.QueryUnescape(query); !strings.Contains(q, text) {
			t.Errorf("%q passed without the ticket", uri)
		}
	})
}

// TestCaller: nginx hears who it is that may pass, in text that is safe in a header; of one who may not it hears nothing.
func TestCaller(t *testing.T) {
	g := newGate(t)
	soon := time.Now().Add(time.Hour).Unix()
	bearer := func(sub any) []string {
		return []string{"Authorization", "Bearer " + sign(t, jwt.MapClaims{"exp": soon, "sub": sub}, nil)}
	}
	ticket, long := issue(t, g, false), strings.Repeat("x", 4000)
	for _, tt := range []struct {
		name, uri string
		header    []string
		want      string
	}{
		{"key", "/mcp", []string{"X-AIO-API-Key", apiKey}, "key:" + sumOf(apiKey)[:8]},
		{"token", "/mcp", bearer("alice@example.com"), "sub:alice@example.com"},
		{"token without subject", "/mcp", bearer(nil), "token"},
		{"token whose subject is no text", "/mcp", bearer(7), "token"},
		{"hostile subject", "/mcp", bearer("a\r\nX-Evil: 1 é"), "sub:a%0D%0AX-Evil:%201%20%C3%A9"},
		{"long subject", "/mcp", bearer(long), "sub:" + long[:87] + "#" + sumOf(long)[:32]},
		{"another that begins alike", "/mcp", bearer(long + "y"), "sub:" + long[:87] + "#" + sumOf(long + "y")[:32]},
		{"ticket", "/vnc/?ticket=" + ticket, nil, "ticket"},
		{"nobody", "/mcp", nil, ""},
		{"wrong key", "/mcp", []string{"X-AIO-API-Key", "x", "X-Browser-Shell-Caller", "key:forged"}, ""},
	} {
		w := send(t, g, "GET", "/auth", append([]string{"X-Original-URI", tt.uri}, tt.header...)...)
		if got := w.Header().Get("X-Browser-Shell-Caller"); got != tt.want || (w.Code == 204) != (tt.want != "") {
			t.Errorf("%s: %d, caller %q, want %q", tt.name, w.Code, got, tt.want)
		}
		until := ""
		if strings.HasPrefix(tt.want, "sub:") || strings.HasPrefix(tt.want, "token") {
			until = strconv.FormatInt(soon, 10)
		}
		if got := w.Header().Get("X-Browser-Shell-Until"); got != until {
			t.Errorf("%s: ends %q, want %q", tt.name, got, until)
		}
	}
	if got := send(t, newAnonymous(t), "GET", "/auth", "X-Original-URI", "/mcp").Header().Get("X-Browser-Shell-Caller"); got != "anonymous" {
		t.Errorf("anonymous: %q", got)
	}
}

func TestNewUUID(t *testing.T) {
	form := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	for range 100 {
		if a, b := newUUID(), newUUID(); a == b || !form.MatchString(a) {
			t.Fatal(a, b)
		}
	}
}
