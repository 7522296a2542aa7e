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
		{"https://example.com/ü", "https://example.com/%C3%BC", ""},
		{"https://example.com/a@b", "https://example.com/a@b", ""},

		{"http://a.example:/", "http://a.example/", ""},
		{"http://a.example:00080/", "http://a.example/", ""},
		{"https://a.example/b/../c/%2e%2e/d", "https://a.example/d", ""},
		{"https://a.example/" + strings.Repeat("a", 8000) + "#f", "https://a.example/" + strings.Repeat("a", 8000) + "#f", ""},
		{"https://a.example//127.0.0.1/", "https://a.example//127.0.0.1/", ""},
		{"https://[2606:4700:0:0::1111]/", "https://[2606:4700::1111]/", ""},
		{"bücher.example:8080", "https://xn--bcher-kva.example:8080/", ""},
		{"https://ｅｘａｍｐｌｅ。com/", "https://example.com/", ""},
		{"https://faß.example/", "https://xn--fa-hia.example/", ""},

		{"", "", "url.empty"},
		{"http://\xff.example/", "", "url.characters"},
		{"http://a.example/\ufffd", "", "url.characters"},
		{"http://ex\u00adample.com/", "", "url.characters"},
		{"http://ex\u2028ample.com/", "", "url.characters"},
		{"http://ex\tample.com/", "", "url.characters"},
		{"http://127.0.0.1\ufe0f/", "", "url.host"},
		{"http://localhost\ufe0f/", "", "url.host"},
		{"http://ẞ.example/", "", "url.host"}, // two IDNA versions, two names
		{"http://XN--ßBCHER-KVA.example/", "", "url.host"},
		{"http://xn--zz--.example/", "", "url.host"},
		{"http://ｌｏｃａｌｈｏｓｔ/", "", "url.loopback"},
		{"http://localhost.localdomain/", "", "url.loopback"},
		{"http://１２７.０.０.１/", "", "url.address"},
		{"http://127。0。0。1/", "", "url.address"},
		{"http://8.8.8.8./", "", "url.address"},
		{"http://010.8.8.8/", "", "url.address"},
		{"http://example.0x/", "", "url.address"},
		{"http://256.1.1.1/", "", "url.address"},
		{"http://[::ffff:8.8.8.8]/", "", "url.address"},
		{"http://[2606:4700::1111%25eth0]/", "", "url.host"},
		{"http://[fe80::1%eth0]/", "", "url.host"},
		{"http://[[2606:4700::1111]]/", "", "url.host"},
		{"http://[]/", "", "url.host"},
		{"http://[:]/", "", "url.address"},
		{"http://[2001:0:7f00:1::]/", "", "url.private"},
		{"http://[2606:4700::5efe:a00:1]/", "", "url.private"},
		{"http://[4000::1]/", "", "url.private"},
		{"http://a\\.example/", "", "url.characters"},
		{"http://example.com%2f@127.0.0.1/", "", "url.userinfo"},
		{"http://example.com%40127.0.0.1/", "", "url.host"},
		{"http://example.com＠127.0.0.1/", "", "url.address"},
		{"http://example.com：80/", "", "url.host"},
		{"http://example.com:８０/", "", "url.host"},
		{"http://example.com:80:80/", "", "url.host"},
		{"http://example.com:4294967376/", "", "url.port"},
		{"http://" + strings.Repeat("a", 64) + ".example/", "", "url.host"},
		{"http://" + strings.Repeat("a.", 127) + "example/", "", "url.host"},
		{"https://a.example/" + strings.Repeat("ü", 3000), "", "url.length"}, // three times as long in canonical form
		{"javascript:1", "", "url.host"},
		{"blob:https://example.com/1", "", "url.scheme"},
		{"file:///etc/hostname", "", "url.scheme"},
		{"data:text/html,x", "", "url.scheme"},
		{"javascript:alert(1)", "", "url.scheme"},
		{"view-source:https://example.com", "", "url.scheme"},
		{"chrome://version", "", "url.scheme"},
		{"about:blank", "", "url.scheme"},
		{"ftp://example.com/", "", "url.scheme"},
		{"//example.com/", "", "url.scheme"},
		{"example.com/path", "https://example.com/path", ""},
		{"example.com:8443/a?b=c/d#e", "https://example.com:8443/a?b=c/d#e", ""},
		{"example.com?q=a@b", "https://example.com/?q=a@b", ""},
		{"8.8.8.8/x", "https://8.8.8.8/x", ""},
		{"user@example.com/path", "", "url.scheme"},
		{"user:pw@example.com/path", "", "url.scheme"},
		{"127.0.0.1:9222/json", "", "url.loopback"},
		{"127.1/json", "", "url.address"},
		{"[::1]/x", "", "url.loopback"},
		{"10.0.0.1/x", "", "url.private"},
		{"localhost/x", "", "url.loopback"},
		{"javascript:1/x", "", "url.host"},
		{"file:80/etc/passwd", "", "url.host"},
		{"/etc/passwd", "", "url.scheme"},
		{"example.com:x/path", "", "url.scheme"},
		{"example%2ecom/path", "", "url.scheme"},
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
		{"http://①②⑦.0.0.1/", "", "url.address"},
		{"http://bücher.example/", "http://xn--bcher-kva.example/", ""},
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
			u, r := p.CheckURL(tt.url)
			got, rule := u.Href, ""
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
	p.Open = Open{AllowSchemes: []string{"https"}, AllowAboutBlank: true, AllowHosts: []string{"a.example", "b.example", "*.b.example"}}
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

// TestCheckURLLists: wildcards are for names, and IDNA does not go round a list.
func TestCheckURLLists(t *testing.T) {
	p := Default()
	p.Open.AllowHosts = []string{"xn--bcher-kva.example", "8.8.8.8", "*.b.example", "*.8.4"}
	for url, rule := range map[string]string{
		"https://bücher.example": "", "https://8.8.8.8": "", "https://a.b.example": "", "https://a。b。example": "",
		"https://b.example": "url.host-not-allowed", "https://8.8.8.4": "url.host-not-allowed", "https://1.1.8.4": "url.host-not-allowed",
		"https://[2606:4700::1111]": "url.host-not-allowed", "https://bucher.example": "url.host-not-allowed",
	} {
		if _, r := p.CheckURL(url); ruleOf(r) != rule {
			t.Errorf("%s: got %v, want %q", url, r, rule)
		}
	}
	p.Open.AllowSchemes = nil
	if _, r := p.CheckURL("https://8.8.8.8"); ruleOf(r) != "url.scheme" {
		t.Errorf("got %v", r)
	}
}

func TestCheckPage(t *testing.T) {
	long := strings.Repeat("a", 100000)
	p := Default()
	for _, tt := range []struct{ page, rule string }{
		{"about:blank", ""},
		{"https://example.com/a?b#c", ""},
		{"http://example.com:8080/", ""},
		{"https://example.com/" + long, ""},
		{"https://example.com/a b\\c", ""},
		{"https://8.8.8.8/", ""},
		{"blob:https://example.com/0b8f", ""},

		{"http://127.0.0.1:9222/json", "url.loopback"},
		{"http://localhost/", "url.loopback"},
		{"http://10.0.0.1/", "url.private"},
		{"https://user@example.com/", "url.userinfo"},
		{"http:///etc/passwd", "url.host"},
		{"blob:http://127.0.0.1/0b8f", "url.loopback"},
		{"blob:null/0b8f", "page.forbidden"},
		{"blob:file:///0b8f", "page.forbidden"},
		{"blob:blob:https://example.com/1", "page.forbidden"},
		{"", "page.forbidden"},
		{"example.com", "page.forbidden"},
		{"about:srcdoc", "page.forbidden"},
		{"about:version", "page.forbidden"},
		{"about:blank#x", "page.forbidden"},
		{"data:text/html,x", "page.forbidden"},
		{"data:text/html,https://example.com/", "page.forbidden"},
		{"file:///etc/passwd", "page.forbidden"},
		{"chrome://version/", "page.forbidden"},
		{"chrome-error://chromewebdata/", "page.forbidden"},
		{"chrome-extension://abcdef/x.html", "page.forbidden"},
		{"devtools://devtools/bundled/inspector.html", "page.forbidden"},
		{"view-source:https://example.com/", "page.forbidden"},
		{"javascript:'x'", "page.forbidden"},
		{"javascript:https://example.com/", "page.forbidden"},
		{"filesystem:https://example.com/temporary/x", "page.forbidden"},
		{"ftp://example.com/", "page.forbidden"},
		{" https://example.com/", "page.forbidden"},
	} {
		if r := p.CheckPage(tt.page); ruleOf(r) != tt.rule {
			t.Errorf("%.60s: got %v, want %q", tt.page, r, tt.rule)
		}
	}
	p.Open = Open{AllowSchemes: []string{"https"}, AllowHosts: []string{"a.example"}}
	for page, rule := range map[string]string{
		"about:blank": "", "https://a.example/x": "", "http://a.example/": "url.scheme", "https://b.example/": "url.host-not-allowed", "blob:https://b.example/1": "url.host-not-allowed",
	} {
		if r := p.CheckPage(page); ruleOf(r) != rule {
			t.Errorf("%s: got %v, want %q", page, r, rule)
		}
	}
}

func ruleOf(r *Refusal) string {
	if r == nil {
		return ""
	}
	return r.Rule
}
