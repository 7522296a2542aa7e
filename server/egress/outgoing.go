package egress

import (
	"bufio"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/slimctl/slimctl/server/listen"
	"github.com/slimctl/slimctl/server/policy"
	"github.com/slimctl/slimctl/server/strictjson"
)

// Outgoing is the proxy for all outgoing traffic: slimctl's, at the other end of the container's tether, or a
// company's. It resolves names, so it must refuse private addresses; addresses in requests are checked before.
type Outgoing struct {
	// Proxy is unix:PATH, or http://[USER:PASSWORD@]HOST[:PORT].
	Proxy string `json:"proxy,omitempty"`
}

// DefaultOutgoing is the path of the file that `browser-shell init` writes.
const DefaultOutgoing = "/run/browser-shell/outgoing.json"

// LoadOutgoing reads an Outgoing from a file. Without the file it returns nil.
func LoadOutgoing(path string) (*Outgoing, error) {
	text, err := strictjson.Read(path, 64<<10)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("outgoing proxy: %w", err)
	}
	var o Outgoing
	if err := json.Unmarshal(text, &o); err != nil {
		return nil, fmt.Errorf("outgoing proxy: %s: %w", path, err)
	}
	if o.Proxy == "" {
		return nil, nil
	}
	return &o, o.Check()
}

// Check returns an error if o is invalid. The error never contains the password.
func (o Outgoing) Check() error {
	if path, ok := strings.CutPrefix(o.Proxy, "unix:"); ok {
		if !strings.HasPrefix(path, "/") {
			return fmt.Errorf("outgoing proxy %q: the socket's path must be absolute", o.Proxy)
		}
		return nil
	}
	u, err := url.Parse(o.Proxy)
	if err != nil || u.Scheme != "http" || u.Hostname() == "" || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "" {
		return errors.New("outgoing proxy: write http://HOST:PORT, such as http://proxy.example:3128")
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return errors.New("outgoing proxy: the port must lie between 1 and 65535")
		}
	}
	return nil
}

// proxyURL returns the proxy's URL for net/http's Transport. For a unix socket it is a placeholder.
func (o Outgoing) proxyURL() *url.URL {
	if u, err := url.Parse(o.Proxy); err == nil && u.Scheme == "http" {
		return u
	}
	return &url.URL{Scheme: "http", Host: "tether"}
}

// dialProxy connects to the proxy.
func (o Outgoing) dialProxy(ctx context.Context) (net.Conn, error) {
	if path, ok := strings.CutPrefix(o.Proxy, "unix:"); ok {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}
	u := o.proxyURL()
	return (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "80")))
}

// refusedOutside is a refusal by the outgoing proxy.
type refusedOutside struct{ *policy.Refusal }

func (e refusedOutside) Error() string { return e.Refusal.Error() }

// isOurs reports whether the proxy is slimctl's. Such a proxy returns the reason for a refusal, and accepts none from a
// site.
func (o Outgoing) isOurs() bool { return strings.HasPrefix(o.Proxy, "unix:") }

// openTunnel makes the proxy connect to host and port. A proxy of ours refuses the denied ranges.
func (o Outgoing) openTunnel(ctx context.Context, host string, port int, denied []string) (_ net.Conn, err error) {
	c, err := o.dialProxy(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer func() {
		if !stop() && err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			c.Close()
		}
	}()
	target := host + ":" + strconv.Itoa(port)
	head := "CONNECT " + target + " HTTP/1.1\r\nHost: " + target + "\r\n"
	if user := o.proxyURL().User; user != nil {
		password, _ := user.Password()
		head += "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password)) + "\r\n"
	}
	if o.isOurs() && len(denied) > 0 {
		head += denyHeader + ": " + strings.Join(denied, " ") + "\r\n"
	}
	if _, err := io.WriteString(c, head+"\r\n"); err != nil {
		return nil, err
	}
	bounded := &io.LimitedReader{R: c, N: maxHeader}
	r := bufio.NewReader(bounded)
	answer, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
	if err != nil {
		return nil, fmt.Errorf("outgoing proxy: %w", err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, o.readRefusal(answer)
	}
	return &tunnelConn{Conn: c, reader: io.MultiReader(io.LimitReader(r, int64(r.Buffered())), c)}, nil
}

// readRefusal reads the proxy's reason for refusing a tunnel.
func (o Outgoing) readRefusal(answer *http.Response) error {
	if r := policy.ParseRefusal(answer.Header.Get(policy.RefusalHeader)); r != nil && o.isOurs() {
		return refusedOutside{r}
	}
	switch answer.StatusCode {
	case http.StatusForbidden:
		return refusedOutside{blocked("egress.outgoing", "the outgoing proxy refuses this site; open another one")}
	case http.StatusGatewayTimeout:
		return refusedOutside{timedOut}
	}
	return fmt.Errorf("the outgoing proxy answered with HTTP status %d", answer.StatusCode)
}

// denyHeader is the header with the ranges that a proxy of ours denies to another, which resolves the names for it. No
// page can send it, and it allows nothing.
const denyHeader = "Proxy-Browser-Shell-Deny"

// readDenied returns the ranges in denyHeader.
func readDenied(h http.Header) (denied []netip.Prefix, refusal *policy.Refusal) {
	for _, text := range strings.Fields(h.Get(denyHeader)) {
		r, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, blocked("egress.form", "the header %s must hold ranges", denyHeader)
		}
		denied = append(denied, r)
	}
	return denied, nil
}

// tunnelConn is a connection whose first bytes have already been read.
type tunnelConn struct {
	net.Conn
	reader io.Reader
}

func (c *tunnelConn) Read(b []byte) (int, error) { return c.reader.Read(b) }

// CloseWrite implements halfConn.
func (c *tunnelConn) CloseWrite() error { return c.Conn.(halfConn).CloseWrite() }

// Refuse answers every request with a refusal, in place of Proxy.Serve. It is the outside of a container without a
// network.
func Refuse(ctx context.Context, l net.Listener) error {
	srv := newServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { (&request{asks: true}).sendRefusal(w, noNetwork) }), headerTime)
	return listen.Serve(ctx, srv, l, endTime)
}

// dialOutgoing connects to the outgoing proxy and, if tunnel is set, makes it connect to the host.
func (q *request) dialOutgoing(ctx context.Context, tunnel bool) (*siteConn, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*q.dial) // the proxy's own attempts may take the first half
	defer cancel()
	open := q.outgoing.dialProxy
	if tunnel {
		open = func(ctx context.Context) (net.Conn, error) {
			return q.outgoing.openTunnel(ctx, q.Host, q.Port, q.policy.Egress.DenyRanges)
		}
	}
	c, err := open(ctx)
	if err != nil {
		return nil, err
	}
	return q.watch(c, netip.Addr{}), nil
}
