package server

import (
	"strings"
	"testing"
)

// TestRefusedHost: the log names the host of whatever address was refused, and nothing else of it.
func TestRefusedHost(t *testing.T) {
	for address, want := range map[string]string{
		"http://169.254.169.254/latest/meta-data/": "169.254.169.254",
		"HTTPS://Admin.CORP.example:8443/x?y#z":    "admin.corp.example",
		"http://user:pa55@10.0.0.1/":               "10.0.0.1",
		"http://a@b@10.0.0.1:80":                   "10.0.0.1",
		"http://[fd00:ec2::254]:80/":               "[fd00:ec2::254]",
		"http://0x7f.1/":                           "0x7f.1",
		"http:\\\\10.0.0.1\\x":                     "10.0.0.1",
		"http:10.0.0.1/":                           "10.0.0.1",
		"https:/10.0.0.1":                          "10.0.0.1",
		"//10.0.0.1/x":                             "10.0.0.1",
		"10.0.0.1:8080/x":                          "10.0.0.1",
		" http://10.0.0.1/ ":                       "10.0.0.1",
		"localhost":                                "localhost",
		"localhost:9222/json":                      "localhost",
		"ftp://files.example/x":                    "files.example",
		"http://exa\u200bmple.com/":                "exa\ufffdmple.com",
		"http://a b/":                              "a\ufffdb",
		"http://%31%30.0.0.1/":                     "%31%30.0.0.1",
		"file:///etc/passwd":                       "",
		"javascript:alert(1)":                      "",
		"data:text/html,secret":                    "",
		"view-source:http://10.0.0.1/":             "",
		"chrome://settings":                        "settings",
		"":                                         "",
		"http://\xff\x00.example/":                 "\ufffd\ufffd.example",
		"http://" + strings.Repeat("a", 9000):      strings.Repeat("a", 128),
	} {
		if got := hostIn(address); got != want {
			t.Errorf("%.60q: %q, want %q", address, got, want)
		}
	}
}
