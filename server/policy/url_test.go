package policy

import (
	"strings"
	"testing"
)

func TestCheckURL(t *testing.T) {
	tests := []struct{ url, want, rule string }{
		{"https://example.com", "https://example.com/", ""},
		{"HTTP://Example.COM/A?b#c", "http://example.com/A?b#c", ""},
		{"https://example.com?q=1", "https://example.com/?q=1", ""},
		{"https://example.com:8443/x", "https://example.com:8443/x", ""},
		{"example.com", "https://example.com/", ""},
		{"example.com:8080", "https://example.com:8080/", ""},
		{"https://example.com./", "https://example.com/", ""},
		{"https://xn--bcher-kva.example/", "https://xn--bcher-kva.example/", ""},
		{"https://8.8.8.8/", "https://8.8.8.8/", ""},
		{"https://[2606:4700::1111]/", "https://[2606:4700::1111]/", ""},
		{"https://example.com/ü", "https://example.com/ü", ""},
		{"https://example.com/a@b", "https://example.com/a@b", ""},

		{"", "", "url.empty"},
		{"file:///etc/hostname", "", "url.scheme"},
		{"data:text/html,x", "", "url.scheme"},
		{"javascript:alert(1)", "", "url.scheme"},
		{"view-source:https://example.com", "", "url.scheme"},
		{"chrome://version", "", "url.scheme"},
		{"about:blank", "", "url.scheme"},
		{"ftp://example.com/", "", "url.scheme"},
		{"//example.com/", "", "url.scheme"},
		{"example.com/path", "", "url.scheme"},
		{"http:/example.com", "", "url.form"},
		{"http:127.0.0.1", "", "url.form"},
		{" http://example.com", "", "url.characters"},
		{"http://example.com/\n", "", "url.characters"},
		{"http://127.0.0.1\\@example.com/", "", "url.characters"},
		{"http://example.com/\u200b", "", "url.characters"},
		{"-x", "", "url.characters"},
		{"https://user:pw@example.com/", "", "url.userinfo"},
		{"https://@example.com/", "", "url.userinfo"},
		{"http:///x", "", "url.host"},
		{"http://exa%6dple.com/", "", "url.host"},
		{"http://①②⑦.0.0.1/", "", "url.host"},
		{"http://bücher.example/", "", "url.host"},
		{"http://intranet/", "", "url.host"},
		{"http://a..example.com/", "", "url.host"},
		{"http://-a.example.com/", "", "url.host"},
		{"http://example.com:0/", "", "url.port"},
		{"http://example.com:65536/", "", "url.port"},
		{"http://localhost:9222/", "", "url.loopback"},
		{"localhost:9222", "", "url.loopback"},
		{"http://LOCALHOST./", "", "url.loopback"},
		{"http://foo.localhost/", "", "url.loopback"},
		{"http://127.0.0.1:9222/json", "", "url.loopback"},
		{"http://127.1.2.3/", "", "url.loopback"},
		{"http://[::1]/", "", "url.loopback"},
		{"http://[::ffff:127.0.0.1]/", "", "url.loopback"},
		{"http://0x7f.1/", "", "url.address"},
		{"http://2130706433/", "", "url.address"},
		{"http://0177.0.0.1/", "", "url.address"},
		{"http://127.1/", "", "url.address"},
		{"http://0x7f000001/", "", "url.address"},
		{"http://127.0.0.1./", "", "url.address"},
		{"http://1.2.3.4.5/", "", "url.address"},
		{"http://[1.2.3.4]/", "", "url.address"},
		{"http://0.0.0.0/", "", "url.private"},
		{"http://10.1.2.3/", "", "url.private"},
		{"http://172.16.0.1/", "", "url.private"},
		{"http://192.168.1.1/", "", "url.private"},
		{"http://169.254.169.254/latest/meta-data", "", "url.private"},
		{"http://100.64.0.1/", "", "url.private"},
		{"http://168.63.129.16/", "", "url.private"},
		{"http://[fd00::1]/", "", "url.private"},
		{"http://[fe80::1]/", "", "url.private"},
		{"http://[64:ff9b::7f00:1]/", "", "url.private"},
		{"http://[2002:7f00:1::]/", "", "url.private"},
		{"http://[::ffff:10.0.0.1]/", "", "url.private"},
		{"https://example.com/" + strings.Repeat("a", 8192), "", "url.length"},
	}
	p := Default()
	for _, tt := range tests {
		t.Run(tt.url[:min(len(tt.url), 60)], func(t *testing.T) {
			got, r := p.CheckURL(tt.url)
			rule := ""
			if r != nil {
				rule, got = r.Rule, ""
			}
			if got != tt.want || rule != tt.rule {
				t.Errorf("got %q %q, want %q %q", got, rule, tt.want, tt.rule)
			}
		})
	}
}

func TestCheckURLPolicy(t *testing.T) {
	p := Default()
	p.Open = Open{AllowSchemes: []string{"https"}, AllowAboutBlank: true, AllowHosts: []string{"a.example"}, AllowHostSuffixes: []string{"b.example"}}
	for url, rule := range map[string]string{
		"about:blank": "", "https://a.example": "", "https://b.example/x": "", "https://x.y.b.example": "", "https://A.EXAMPLE.": "",
		"http://a.example": "url.scheme", "https://x.a.example": "url.host-not-allowed", "https://evilb.example": "url.host-not-allowed",
		"https://b.example.evil.example": "url.host-not-allowed", "https://8.8.8.8": "url.host-not-allowed", "about:blank#x": "url.scheme",
	} {
		_, r := p.CheckURL(url)
		if got := ruleOf(r); got != rule {
			t.Errorf("%s: got %q, want %q", url, got, rule)
		}
	}
}

func ruleOf(r *Refusal) string {
	if r == nil {
		return ""
	}
	return r.Rule
}
