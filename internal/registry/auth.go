package registry

import (
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"net/http"
	"strings"
	"sync"
)

// auth knows the tokens that were given out and the scopes of each, as "name:action".
type auth struct {
	o      Options
	mu     sync.Mutex
	tokens map[string]map[string]bool
}

// authorize checks that the request may do what it wants in the named repository; name is empty for a ping.
func (r *Registry) authorize(x *exchange, name string) error {
	a := &r.auth
	if a.o.User == "" {
		return nil
	}
	if !a.o.Bearer {
		if user, pass, ok := x.req.BasicAuth(); ok && a.valid(user, pass) {
			return nil
		}
		x.Header().Set("Www-Authenticate", `Basic realm="registry"`)
		return errUnauthorized("user or password missing or wrong")
	}
	need := needs(x.req, name)
	token, ok := strings.CutPrefix(x.req.Header.Get("Authorization"), "Bearer ")
	if ok && a.grants(token, need) {
		return nil
	}
	x.Header().Set("Www-Authenticate", challenge(x.req, need))
	return errUnauthorized("token missing, unknown or without the scope needed")
}

func errUnauthorized(message string) error {
	return &apiError{http.StatusUnauthorized, "UNAUTHORIZED", message, nil}
}

func (a *auth) valid(user, pass string) bool {
	u := subtle.ConstantTimeCompare([]byte(user), []byte(a.o.User))
	p := subtle.ConstantTimeCompare([]byte(pass), []byte(a.o.Password))
	return u&p == 1
}

// needs lists the scopes of a request as "name:action".
func needs(req *http.Request, name string) []string {
	if name == "" {
		return nil
	}
	if req.Method == http.MethodGet || req.Method == http.MethodHead {
		return []string{name + ":pull"}
	}
	need := []string{name + ":push"}
	if q := req.URL.Query(); q.Has("mount") && q.Has("from") && validName(q.Get("from")) {
		need = append(need, q.Get("from")+":pull")
	}
	return need
}

func (a *auth) grants(token string, need []string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	scopes, ok := a.tokens[token]
	for _, n := range need {
		ok = ok && scopes[n]
	}
	return ok
}

// challenge follows the distribution registry's token specification. The token endpoint is this registry's own.
func challenge(req *http.Request, need []string) string {
	scheme := "http"
	if req.TLS != nil {
		scheme = "https"
	}
	c := fmt.Sprintf(`Bearer realm=%q,service="registry"`, scheme+"://"+req.Host+"/token")
	scopes := make([]string, 0, len(need))
	for _, n := range need {
		n = strings.Replace(n, ":push", ":pull,push", 1)
		scopes = append(scopes, "repository:"+n)
	}
	if len(scopes) > 0 {
		c += fmt.Sprintf(`,scope=%q`, strings.Join(scopes, " "))
	}
	return c
}

// token gives out a token for each scope asked for: whoever knows the password may do everything.
func (r *Registry) token(x *exchange, _, _ string) error {
	a := &r.auth
	if a.o.User == "" || !a.o.Bearer {
		return &apiError{http.StatusNotFound, "NOT_FOUND", "this registry gives out no tokens", nil}
	}
	if err := x.req.ParseForm(); err != nil {
		return &apiError{http.StatusBadRequest, "UNKNOWN", fmt.Sprintf("bad form: %v", err), nil}
	}
	user, pass, _ := x.req.BasicAuth()
	if x.req.Method == http.MethodPost && x.req.PostForm.Get("grant_type") == "password" {
		user, pass = x.req.PostForm.Get("username"), x.req.PostForm.Get("password")
	}
	if !a.valid(user, pass) {
		x.Header().Set("Www-Authenticate", `Basic realm="registry"`)
		return errUnauthorized("user or password missing or wrong")
	}
	t := a.issue(x.req.Form["scope"])
	writeJSON(x, http.StatusOK, map[string]any{"token": t, "access_token": t, "expires_in": 3600})
	return nil
}

// issue reads scopes like "repository:a/b:pull,push", several in one string apart by spaces.
func (a *auth) issue(asked []string) string {
	scopes := map[string]bool{}
	for _, s := range strings.Fields(strings.Join(asked, " ")) {
		part := strings.Split(s, ":")
		if len(part) != 3 || part[0] != "repository" {
			continue
		}
		for _, action := range strings.Split(part[2], ",") {
			scopes[part[1]+":"+action] = true
		}
	}
	t := rand.Text()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tokens[t] = scopes
	return t
}
