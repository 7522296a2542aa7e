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

	"github.com/slimctl/slimctl/server/policy"
	"github.com/slimctl/slimctl/server/strictjson"
)

// Outgoing is a proxy that everything goes out through: slimctl's, at the other end of the container's tether, or that of a
// company. It resolves names, so it is what keeps private addresses out; addresses that a request names are checked before.
type Outgoing struct {
	// Proxy is unix:PATH, or http://[USER:PASSWORD@]HOST[:PORT].
	Proxy string `json:"proxy,omitempty"`
}

// DefaultOutgoing is the file that `browser-shell init` writes.
const DefaultOutgoing = "/run/browser-shell/outgoing.json"

// LoadOutgoing reads an Outgoing; without the file there is none, which is nil.
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

// Check says what is wrong with it; never the password.
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

// url is the proxy as net/http's Transport takes it. That of a socket stands for it alone.
func (o Outgoing) url() *url.URL {
	if u, err := url.Parse(o.Proxy); err == nil && u.Scheme == "http" {
		return u
	}
	return &url.URL{Scheme: "http", Host: "tether"}
}

// dial connects to the proxy.
func (o Outgoing) dial(ctx context.Context) (net.Conn, error) {
	if path, ok := strings.CutPrefix(o.Proxy, "unix:"); ok {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}
	u := o.url()
	return (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "80")))
}

// refusedOutside is what the proxy refused.
type refusedOutside struct{ *policy.Refusal }

func (e refusedOutside) Error() string { return e.Refusal.Error() }

// ours tells whether the proxy is slimctl's: then it says why it refuses, and lets no site say it.
func (o Outgoing) ours() bool { return strings.HasPrefix(o.Proxy, "unix:") }

// tunnel has the proxy connect to host and port.
func (o Outgoing) tunnel(ctx context.Context, host string, port int) (_ net.Conn, err error) {
	c, err := o.dial(ctx)
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
	if user := o.url().User; user != nil {
		password, _ := user.Password()
		head += "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user.Username()+":"+password)) + "\r\n"
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
		return nil, o.refusal(answer)
	}
	return &tunnelConn{Conn: c, reader: io.MultiReader(io.LimitReader(r, int64(r.Buffered())), c)}, nil
}

// refusal reads why the proxy refused a tunnel.
func (o Outgoing) refusal(answer *http.Response) error {
	if r := policy.ParseRefusal(answer.Header.Get(policy.RefusalHeader)); r != nil && o.ours() {
		return refusedOutside{r}
	}
	switch answer.StatusCode {
	case http.StatusForbidden:
		return refusedOutside{blocked("egress.outgoing", "the outgoing proxy refuses this site; open another one")}
	case http.StatusGatewayTimeout:
		return refusedOutside{timedOut}
	}
	return fmt.Errorf("the outgoing proxy answers %d", answer.StatusCode)
}

// tunnelConn is a connection whose first bytes have been read already.
type tunnelConn struct {
	net.Conn
	reader io.Reader
}

func (c *tunnelConn) Read(b []byte) (int, error) { return c.reader.Read(b) }

// CloseWrite see halfConn.
func (c *tunnelConn) CloseWrite() error { return c.Conn.(halfConn).CloseWrite() }

// Refuse answers every request with a refusal: the outside of a container without a network. It serves as Proxy.Serve does.
func Refuse(ctx context.Context, l net.Listener) error {
	srv := newServer(ctx, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { (&request{asks: true}).answer(w, noNetwork) }), headerTime)
	defer context.AfterFunc(ctx, func() { srv.Close() })()
	if err := srv.Serve(l); ctx.Err() == nil {
		return err
	}
	return nil
}

// dialOutgoing connects to the outgoing proxy, and has it connect to the host if tunnel says so.
func (q *request) dialOutgoing(ctx context.Context, tunnel bool) (*siteConn, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*q.dial) // its own attempts take up to once that
	defer cancel()
	open := q.outgoing.dial
	if tunnel {
		open = func(ctx context.Context) (net.Conn, error) { return q.outgoing.tunnel(ctx, q.Host, q.Port) }
	}
	c, err := open(ctx)
	if err != nil {
		return nil, err
	}
	return q.watch(c, netip.Addr{}), nil
}
