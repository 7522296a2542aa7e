package egress

import (
	"bytes"
	"io"
	"net/http"
	"testing"
)

// Each pair asks the same site, directly and through the proxy.

func BenchmarkLatency(b *testing.B) {
	port := serve(b, publicIP, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	secure, roots := serveTLS(b, publicIP, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	l := newLab(b, nil)
	direct := func() *http.Client {
		c := l.client(roots)
		c.Transport.(*http.Transport).Proxy = nil
		return c
	}
	for _, row := range []struct {
		name   string
		client *http.Client
		url    string
		fresh  bool // a connection for each request
	}{
		{"http/direct", direct(), "http://" + publicIP + ":" + port, true},
		{"http/proxy", l.client(roots), "http://site.test:" + port, false},
		{"https-new/direct", direct(), "https://" + publicIP + ":" + secure, true},
		{"https-new/proxy", l.client(roots), "https://site.test:" + secure, true},
		{"https-open/direct", direct(), "https://" + publicIP + ":" + secure, false},
		{"https-open/proxy", l.client(roots), "https://site.test:" + secure, false},
	} {
		b.Run(row.name, func(b *testing.B) {
			row.client.Transport.(*http.Transport).DisableKeepAlives = row.fresh
			for b.Loop() {
				fetch(b, row.client, row.url)
			}
			row.client.CloseIdleConnections()
		})
	}
}

func BenchmarkThroughput(b *testing.B) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 4<<20) // 64 MiB
	port := serve(b, publicIP, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(big) })
	secure, roots := serveTLS(b, publicIP, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(big) })
	l := newLab(b, nil)
	direct := l.client(roots)
	direct.Transport.(*http.Transport).Proxy = nil
	for _, row := range []struct {
		name   string
		client *http.Client
		url    string
	}{
		{"http/direct", direct, "http://" + publicIP + ":" + port},
		{"http/proxy", l.client(roots), "http://site.test:" + port},
		{"https/direct", direct, "https://" + publicIP + ":" + secure},
		{"https/proxy", l.client(roots), "https://site.test:" + secure},
	} {
		b.Run(row.name, func(b *testing.B) {
			b.SetBytes(int64(len(big)))
			for b.Loop() {
				fetch(b, row.client, row.url)
			}
			row.client.CloseIdleConnections()
		})
	}
}

func fetch(b *testing.B, c *http.Client, url string) {
	b.Helper()
	res, err := c.Get(url)
	if err != nil {
		b.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != http.StatusOK {
		b.Fatal(res.Status, err)
	}
}
