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

// newPlain returns the handler for allowed plain requests.
func newPlain(outgoing *Outgoing) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite: rewriteRequest,
		Transport: &http.Transport{
			Proxy: func(*http.Request) (*url.URL, error) {
				if outgoing == nil {
					return nil, nil
				}
				return outgoing.proxyURL(), nil
			},
			// Only to the addresses of the request's own decision. Connections are never reused, so none serves another
			// decision.
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
			DisableCompression:     true, // left to the browser
			MaxResponseHeaderBytes: maxAnswer,
		},
		ModifyResponse: func(r *http.Response) error {
			if outgoing != nil && outgoing.isOurs() && r.Header.Get(policy.RefusalHeader) != "" {
				return outgoing.readRefusal(r)
			}
			dropProxyHeaders(r.Header)
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			q := r.Context().Value(requestKey{}).(*request)
			refusal := refusalFor(err)
			q.Rule = refusal.Rule
			q.sendRefusal(w, refusal)
		},
		ErrorLog: log.New(io.Discard, "", 0),
	}
}

// rewriteRequest builds the request for the site: the target unchanged, the checked host, and no trace of the proxy.
func rewriteRequest(pr *httputil.ProxyRequest) {
	in, out := pr.In, pr.Out
	dropProxyHeaders(out.Header)
	q := in.Context().Value(requestKey{}).(*request)
	if q.outgoing != nil && q.outgoing.isOurs() {
		out.Header.Set(policy.RefusalHeader, tell)
		if denied := q.policy.Egress.DenyRanges; len(denied) > 0 {
			out.Header.Set(denyHeader, strings.Join(denied, " "))
		}
	}
	out.Host = q.Host
	if q.Port != 80 {
		out.Host += ":" + strconv.Itoa(q.Port)
	}
	out.URL.Host = out.Host
	out.URL.RawQuery = in.URL.RawQuery
	out.Header.Del("Expect") // answered by this proxy
	// The path stays unchanged: net/url would escape it differently. net/url takes an Opaque that begins with two
	// slashes for a host.
	if path := rawPath(in.RequestURI); strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "//") {
		out.URL.Opaque = path
		if q.outgoing != nil { // an upstream proxy needs the whole address
			out.URL.Opaque = "//" + out.Host + path
		}
	}
}

// rawPath returns the path of an absolute URI, with its own escapes.
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
	w.Header()["Content-Type"] = nil // don't guess a missing type
	// A browser that stops reading would hold the request forever.
	defer context.AfterFunc(r.Context(), func() {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Second))
	})()
	q.plain.ServeHTTP(w, r)
}

// tunnel copies bytes between the browser and the site.
func (q *request) tunnel(w http.ResponseWriter, r *http.Request) {
	site, err := q.connect(r.Context())
	if err != nil {
		refusal := refusalFor(err)
		q.Rule = refusal.Rule
		q.sendRefusal(w, refusal)
		return
	}
	defer site.Close()
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		q.Rule = "egress.hijack"
		return
	}
	defer conn.Close()
	client := conn.(halfConn) // the listener is TCP
	defer context.AfterFunc(r.Context(), func() { client.Close(); site.Close() })()
	_ = client.SetDeadline(time.Time{}) // removes the server's own deadlines
	if _, err := io.WriteString(client, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	// The bytes that arrived with the request, then the connection itself: the server's reader would end the request's
	// context when the browser half-closes.
	early := io.LimitReader(buffered, int64(buffered.Reader.Buffered()))
	copyBoth(client, io.MultiReader(early, client), site)
}

// halfConn is a connection whose directions are closed separately.
type halfConn interface {
	net.Conn
	CloseWrite() error
}

// copyBoth copies both ways until both sides have ended. It forwards an end as a half-close; an error ends both
// directions.
func copyBoth(client halfConn, sent io.Reader, site halfConn) {
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
