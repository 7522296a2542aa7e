package compose

import (
	"strings"
	"testing"
)

// TestReadme: who receives only the file learns from the page beside it how to start, call and watch, with this service's
// names, and no key is in it.
func TestReadme(t *testing.T) {
	full := func(s *Service) {
		variants["full"](s)
		s.Settings.Work = "/srv/work"
	}
	for _, test := range []struct {
		name, file string
		change     func(*Service)
		kubernetes bool
		want       []string
		not        []string
	}{
		{"compose", "docker-compose.yml", nil, false, []string{
			"export SANDBOX_API_KEY=$(openssl rand -hex 32)\n    docker compose -f docker-compose.yml up --detach --wait",
			`docker cp "$(docker compose -f docker-compose.yml ps -q browser)":/var/log/browser-shell/audit .`, `"type": "http", "url": "http://127.0.0.1:8080/mcp"`, "http://127.0.0.1:8080/vnc/index.html?", pinned,
		}, []string{"kubectl", "<no value>", "names these paths", "restart"}},
		{"compose in full", "a b.yml", full, false, []string{"http://[::1]:9000/mcp", "ps -q desk-2)", "-f FILE restart", "- `/etc/policies/a.json`\n- `/srv/work`\n", "-f FILE up"}, []string{"a b.yml"}},
		{"tokens", "c.yml", variants["tokens"], false, []string{
			"Start it:\n\n    docker compose -f c.yml up", `"headers": {"Authorization": "Bearer TOKEN"}}}}`, `-H "Authorization: Bearer TOKEN"`,
		}, []string{"SANDBOX_API_KEY", "AIO-API", ".env", "<no value>"}},
		{"tokens on kubernetes", "k.yml", variants["tokens"], true, []string{"Start it:\n\n    kubectl apply -f k.yml"}, []string{"SANDBOX_API_KEY", "secret"}},
		{"kubernetes", "k.yml", full, true, []string{
			"kubectl create secret generic desk-2-api-key -n agents --from-file=SANDBOX_API_KEY=/dev/stdin\n    kubectl apply -f k.yml",
			"kubectl port-forward service/desk-2 -n agents 8080:8080", "http://127.0.0.1:8080/mcp", "`desk-2-audit`",
		}, []string{"docker compose"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			text, err := Readme(service(test.change), test.file, test.kubernetes)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range test.want {
				if !strings.Contains(string(text), want) {
					t.Errorf("it lacks %q:\n%s", want, text)
				}
			}
			for _, not := range test.not {
				if strings.Contains(string(text), not) {
					t.Errorf("it has %q:\n%s", not, text)
				}
			}
		})
	}
}
