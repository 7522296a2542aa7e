package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"

	"github.com/slimctl/slimctl/server/hub/upstream"
)

// maxAnswer limits the answer that a Client accepts, in bytes.
const maxAnswer = 32 << 20

// Client is a client of a hub's management socket. Its errors name the socket, or are the hub's own texts.
type Client struct {
	// Dial connects to the socket.
	Dial   func(context.Context) (net.Conn, error)
	socket string
	http   http.Client
}

// NewClient returns a client of the socket at a path. It connects on use.
func NewClient(socket string) *Client {
	c := &Client{socket: socket}
	c.Dial = func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "unix", socket) }
	c.http = http.Client{
		Timeout:       writeTime,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return c.Dial(ctx) },
		},
	}
	return c
}

// Servers returns the status of all servers.
func (c *Client) Servers(ctx context.Context) ([]upstream.Status, error) {
	var out struct {
		Servers []upstream.Status `json:"servers"`
	}
	err := c.getJSON(ctx, http.MethodGet, "/v1/mcp/servers", &out)
	return out.Servers, err
}

// Server returns the status of one server with its log.
func (c *Client) Server(ctx context.Context, name string) (Server, error) {
	var out Server
	path, err := serverPath(name, "")
	if err == nil {
		err = c.getJSON(ctx, http.MethodGet, path, &out)
	}
	return out, err
}

// Start starts a server and returns its status, which may still be starting.
func (c *Client) Start(ctx context.Context, name string) (upstream.Status, error) {
	return c.actOnServer(ctx, name, "/start")
}

// Stop ends a server, until it is started again.
func (c *Client) Stop(ctx context.Context, name string) (upstream.Status, error) {
	return c.actOnServer(ctx, name, "/stop")
}

// Restart ends a server and starts it again.
func (c *Client) Restart(ctx context.Context, name string) (upstream.Status, error) {
	return c.actOnServer(ctx, name, "/restart")
}

func (c *Client) actOnServer(ctx context.Context, name, action string) (upstream.Status, error) {
	var out upstream.Status
	path, err := serverPath(name, action)
	if err == nil {
		err = c.getJSON(ctx, http.MethodPost, path, &out)
	}
	return out, err
}

// Tools returns all tools, including those hidden from clients.
func (c *Client) Tools(ctx context.Context) ([]Tool, error) {
	var out struct {
		Tools []Tool `json:"tools"`
	}
	err := c.getJSON(ctx, http.MethodGet, "/v1/mcp/tools", &out)
	return out.Tools, err
}

// Health returns the hub's health; a hub that is down is not an error.
func (c *Client) Health(ctx context.Context, d Detail) (Health, error) {
	var out Health
	status, body, err := c.sendRequest(ctx, http.MethodGet, "/healthz?detail="+url.QueryEscape(string(d)))
	if err == nil && status != http.StatusServiceUnavailable {
		err = c.readFailure(status, body)
	}
	if err == nil {
		err = json.Unmarshal(body, &out)
	}
	return out, err
}

// Metrics returns the metrics in the Prometheus text format.
func (c *Client) Metrics(ctx context.Context) ([]byte, error) {
	status, body, err := c.sendRequest(ctx, http.MethodGet, "/metrics")
	if err == nil {
		err = c.readFailure(status, body)
	}
	return body, err
}

// Reload makes the hub read its files again and returns its servers afterwards.
func (c *Client) Reload(ctx context.Context) ([]upstream.Status, error) {
	var out struct {
		Servers []upstream.Status `json:"servers"`
	}
	err := c.getJSON(ctx, http.MethodPost, "/v1/reload", &out)
	return out.Servers, err
}

func serverPath(name, action string) (string, error) {
	if name == "" || name == "." || name == ".." || strings.Contains(name, "/") {
		return "", fmt.Errorf("%q is not a server's name; browser-shell hub ctl servers lists them", name)
	}
	return "/v1/mcp/servers/" + url.PathEscape(name) + action, nil
}

func (c *Client) getJSON(ctx context.Context, method, path string, out any) error {
	status, body, err := c.sendRequest(ctx, method, path)
	if err != nil {
		return err
	}
	if err := c.readFailure(status, body); err != nil {
		return err
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("the program on %s is not a hub; name the hub's socket with --socket: %w", c.socket, err)
	}
	return nil
}

func (c *Client) sendRequest(ctx context.Context, method, path string) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://hub"+path, nil)
	if err != nil {
		return 0, nil, err
	}
	resp, err := c.http.Do(req)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return 0, nil, fmt.Errorf("no hub answers on %s; start it with browser-shell hub, or name its socket with --socket", c.socket)
	case errors.Is(err, fs.ErrPermission):
		return 0, nil, fmt.Errorf("the hub's socket %s is for the hub's own user and root: %w", c.socket, syscall.EACCES)
	case err != nil:
		return 0, nil, fmt.Errorf("hub on %s: %w", c.socket, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err == nil && len(body) > maxAnswer {
		err = fmt.Errorf("the answer is longer than %d bytes", maxAnswer)
	}
	if err != nil {
		return 0, nil, fmt.Errorf("hub on %s: %w", c.socket, err)
	}
	return resp.StatusCode, body, nil
}

// readFailure returns the hub's error text for a status other than 200.
func (c *Client) readFailure(status int, body []byte) error {
	if status == http.StatusOK {
		return nil
	}
	var said struct {
		Error string `json:"error"`
	}
	if json.NewDecoder(bytes.NewReader(body)).Decode(&said) != nil || said.Error == "" {
		return fmt.Errorf("the program on %s is not a hub; name the hub's socket with --socket: HTTP status %d", c.socket, status)
	}
	return errors.New(said.Error)
}
