package hub

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestSlow: a slow request is cut off, a slow call is not.
func TestSlow(t *testing.T) {
	const d = 150 * time.Millisecond
	srv := httptest.NewUnstartedServer(nil)
	srv.Config = newServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, "cut", http.StatusRequestTimeout)
			return
		}
		select {
		case <-r.Context().Done():
			http.Error(w, "cancelled", http.StatusInternalServerError)
		case <-time.After(4 * d):
			_, _ = w.Write(body)
		}
	}), d)
	srv.Start()
	defer srv.Close()

	slow, w := io.Pipe()
	go func() {
		_, _ = w.Write([]byte("{"))
		time.Sleep(8 * d)
		w.Close()
	}()
	for _, tt := range []struct {
		name   string
		body   io.Reader
		status int
		want   string
	}{
		{"a slow call", strings.NewReader("hello"), 200, "hello"},
		{"a slow request", slow, 408, "cut"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			res, err := http.Post(srv.URL, "application/json", tt.body)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			b, err := io.ReadAll(res.Body)
			if err != nil || res.StatusCode != tt.status || !strings.Contains(string(b), tt.want) {
				t.Errorf("got %d %q %v", res.StatusCode, b, err)
			}
		})
	}
}

func TestListen(t *testing.T) {
	for address, remote := range map[string]bool{"127.0.0.1:0": false, "[::1]:0": false, "0.0.0.0:0": true} {
		l, err := Listen(address, remote)
		if err != nil {
			if strings.Contains(address, "::1") && strings.Contains(err.Error(), "assign") {
				continue // no IPv6 here
			}
			t.Errorf("%s: %v", address, err)
			continue
		}
		l.Close()
	}
	for _, address := range []string{"0.0.0.0:0", "[::]:0", "10.0.0.1:0", ":8079", "localhost:8079", "127.0.0.1", ""} {
		if l, err := Listen(address, false); err == nil {
			l.Close()
			t.Errorf("listens on %q", address)
		}
	}
	// Taken ports are an error, not another port.
	first, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if l, err := Listen(first.Addr().String(), false); err == nil {
		l.Close()
		t.Error("took a port that is in use")
	}
}
