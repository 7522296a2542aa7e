package registry

import (
	"encoding/json"
	"net/url"
	"testing"
)

func (s *Server) token(t *testing.T, scope string) string {
	t.Helper()
	form := url.Values{"grant_type": {"password"}, "username": {"me"}, "password": {"secret"}, "scope": {scope}}
	a := s.do(t, "POST", "/token", []byte(form.Encode()), "Content-Type", "application/x-www-form-urlencoded")
	var tok struct {
		Token string `json:"access_token"`
	}
	if err := json.Unmarshal(a.body, &tok); err != nil || tok.Token == "" {
		t.Fatalf("token: %d %s", a.status, a.body)
	}
	return tok.Token
}

func TestBearerScopes(t *testing.T) {
	s := serve(t, Options{User: "me", Password: "secret", Bearer: true})
	up := "/v2/b/blobs/uploads/"
	for _, tt := range []struct {
		name, scope, method, path string
		status                    int
		challenge                 string
	}{
		{"ping with any token", "", "GET", "/v2/", 200, ""},
		{"pull", "repository:b:pull", "GET", "/v2/b/manifests/v1", 404, ""},
		{"pull of another", "repository:a:pull", "GET", "/v2/b/manifests/v1", 401, `scope="repository:b:pull"`},
		{"push with pull", "repository:b:pull", "POST", up, 401, `scope="repository:b:pull,push"`},
		{"push", "repository:b:pull,push", "POST", up, 202, ""},
		{"mount without pull", "repository:b:push", "POST", up + "?mount=" + sum(nil) + "&from=a", 401, `scope="repository:b:pull,push repository:a:pull"`},
		{"mount", "repository:b:push repository:a:pull", "POST", up + "?mount=" + sum(nil) + "&from=a", 202, ""},
		{"nonsense scope", "a:b:c:d repository", "GET", "/v2/b/manifests/v1", 401, `scope="repository:b:pull"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := s.do(t, tt.method, tt.path, nil, "Authorization", "Bearer "+s.token(t, tt.scope))
			want := ""
			if tt.challenge != "" {
				want = `Bearer realm="http://` + s.Host + `/token",service="registry",` + tt.challenge
			}
			if got := a.header.Get("Www-Authenticate"); a.status != tt.status || got != want {
				t.Errorf("%d %q, want %d %q", a.status, got, tt.status, want)
			}
		})
	}
	for name, header := range map[string]string{"none": "", "unknown": "Bearer x", "empty": "Bearer ", "basic": "Basic bWU6c2VjcmV0"} {
		if a := s.do(t, "GET", "/v2/", nil, "Authorization", header); a.status != 401 || a.code(t) != "UNAUTHORIZED" {
			t.Errorf("%s: %d", name, a.status)
		}
	}
	if a := s.do(t, "GET", "/token?scope=repository:b:pull", nil, "Authorization", "Basic bWU6d3Jvbmc="); a.status != 401 {
		t.Errorf("token for a wrong password: %d", a.status)
	}
}
