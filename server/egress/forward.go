package egress

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/slimctl/slimctl/server/policy"
)

// newPlain makes the handler for plain requests that were let out.
func newPlain(outgoing *Outgoing) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite: rewrite,
		Transport: &http.Transport{
			Proxy: func(*http.Request) (*url.URL, error) {
				if outgoing == nil {
					return nil, nil
				}
				return outgoing.url(), nil
			},
			// Only to the addresses of the request's own decision; a connection is
			// never kept, so it serves no other decision.
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				q, ok := ctx.Value(requestKey{}).(*request)
				if !ok {
					return nil, errNotChecked
				}
				if outgoing != nil {
					return q.dialOutgoing(ctx, false)
				}
				return q.connect(ctx)
			},
			DisableKeepAlives:      true,
			DisableCompression:     true, // the browser's own affair
			MaxResponseHeaderBytes: maxAnswer,
		},
		ModifyResponse: func(r *http.Response) error {
			if outgoing != nil && outgoing.ours() && r.Header.Get(policy.RefusalHeader) != "" {
				return outgoing.refusal(r)
			}
			dropProxyHeaders(r.Header)
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			q := r.Context().Value(requestKey{}).(*request)
			refusal := refusalFor(err)
			q.Rule = refusal.Rule
			q.answer(w, refusal)
		},
		ErrorLog: log.New(io.Discard, "", 0),
	}
}

// rewrite makes the request for the site: the target as it was written, the
// host that was checked, no word of the proxy.
func rewrite(pr *httputil.ProxyRequest) {
	in, out := pr.In, pr.Out
	dropProxyHeaders(out.Header)
	q := in.Context().Value(requestKey{}).(*request)
	if q.outgoing != nil && q.outgoing.ours() {
		out.Header.Set(policy.RefusalHeader, tell)
	}
	out.Host = q.Host
	if q.Port != 80 {
		out.Host += ":" + strconv.Itoa(q.Port)
	}
	out.URL.Host = out.Host
	out.URL.RawQuery = in.URL.RawQuery
	out.Header.Del("Expect") // answered here
	// The path as it was written: net/url would escape it in its own way. It
	// takes an Opaque that begins with two slashes for a host.
	if path := rawPath(in.RequestURI); strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "//") {
		out.URL.Opaque = path
		if q.outgoing != nil { // which is told the whole address
			out.URL.Opaque = "//" + out.Host + path
		}
	}
}

// rawPath gives the path of an absolute URI, escaped as it is there.
func rawPath(uri string) string {
	_, rest, _ := strings.Cut(uri, "://")
	rest, _, _ = strings.Cut(rest, "?")
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		return rest[i:]
	}
	return ""
}

func dropProxyHeaders(h http.Header) {
	for name := range h {
		if strings.HasPrefix(name, "Proxy-") {
			h.Del(name)
		}
	}
}

func (q *request) forward(w http.ResponseWriter, r *http.Request) {
	w.Header()["Content-Type"] = nil // if the site sends none, guess none
	// A browser that stopped reading would hold the request for ever.
	defer context.AfterFunc(r.Context(), func() {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Second))
	})()
	q.plain.ServeHTTP(w, r)
}

// tunnel carries bytes between the browser and the site.
func (q *request) tunnel(w http.ResponseWriter, r *http.Request) {
	site, err := q.connect(r.Context())
	if err != nil {
		refusal := refusalFor(err)
		q.Rule = refusal.Rule
		q.answer(w, refusal)
		return
	}
	defer site.Close()
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		q.Rule = "egress.hijack"
		return
	}
	defer conn.Close()
	client := conn.(halfConn) // of a listener on TCP
	defer context.AfterFunc(r.Context(), func() { client.Close(); site.Close() })()
	_ = client.SetDeadline(time.Time{}) // the server's own deadlines
	if _, err := io.WriteString(client, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	// What came with the request, then the connection itself: the server's
	// reader would end the request's context when the browser half-closes.
	early := io.LimitReader(buffered, int64(buffered.Reader.Buffered()))
	pump(client, io.MultiReader(early, client), site)
}

// halfConn is a connection whose two directions end apart.
type halfConn interface {
	net.Conn
	CloseWrite() error
}

// pump copies both ways until both sides have ended. An end is passed on as a
// half-close; an error ends both.
func pump(client halfConn, sent io.Reader, site halfConn) {
	one := func(dst halfConn, src io.Reader) {
		_, err := io.Copy(dst, src)
		if err == nil {
			err = dst.CloseWrite()
		}
		if err != nil {
			client.Close()
			site.Close()
		}
	}
	up := make(chan struct{})
	go func() {
		defer close(up)
		one(site, sent)
	}()
	one(client, site)
	<-up
}
