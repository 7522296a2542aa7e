package registry

import (
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"net/http"
	"strings"
	"sync"
)

// auth holds the issued tokens with their scopes, as "name:action".
type auth struct {
	o      Options
	mu     sync.Mutex
	tokens map[string]map[string]bool
}

// authorize returns an error unless the request is allowed in the repository. repo is empty for a ping.
func (r *Registry) authorize(x *exchange, repo string) *apiError {
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
	need := needs(x.req, repo)
	token, ok := strings.CutPrefix(x.req.Header.Get("Authorization"), "Bearer ")
	if ok && a.grants(token, need) {
		return nil
	}
	x.Header().Set("Www-Authenticate", challenge(x.req, need))
	return errUnauthorized("token missing, unknown or without the scope needed")
}

func errUnauthorized(message string) *apiError {
	return &apiError{http.StatusUnauthorized, "UNAUTHORIZED", message}
}

func (a *auth) valid(user, pass string) bool {
	u := subtle.ConstantTimeCompare([]byte(user), []byte(a.o.User))
	p := subtle.ConstantTimeCompare([]byte(pass), []byte(a.o.Password))
	return u&p == 1
}

// needs returns the scopes of a request, as "name:action".
func needs(req *http.Request, repo string) []string {
	if repo == "" {
		return nil
	}
	if req.Method == http.MethodGet || req.Method == http.MethodHead {
		return []string{repo + ":pull"}
	}
	need := []string{repo + ":push"}
	if q := req.URL.Query(); q.Has("mount") && q.Has("from") && nameRE.MatchString(q.Get("from")) {
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

// challenge follows the distribution registry's token specification, with this registry's token endpoint.
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

// token issues a token for all requested scopes, because anyone with the password may do everything.
func (r *Registry) token(x *exchange) *apiError {
	a := &r.auth
	if a.o.User == "" || !a.o.Bearer {
		return &apiError{http.StatusNotFound, "NOT_FOUND", "this registry gives out no tokens"}
	}
	if err := x.req.ParseForm(); err != nil {
		return &apiError{http.StatusBadRequest, "UNKNOWN", fmt.Sprintf("bad form: %v", err)}
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

// issue parses scopes such as "repository:a/b:pull,push", of which one string may hold several, separated by spaces.
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
