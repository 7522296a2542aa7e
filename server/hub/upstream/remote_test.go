package upstream

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func remote(t testing.TB, url, transport string) *Server {
	t.Helper()
	s := New(Config{Name: "remote", URL: url, Transport: transport}, Options{})
	s.times = quick()
	cleanUp(t, s)
	return s
}

func echoServer() *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "far", Version: "2"}, nil)
	mcp.AddTool(s, &mcp.Tool{Name: "echo"}, func(_ context.Context, _ *mcp.CallToolRequest, in text) (*mcp.CallToolResult, text, error) {
		return nil, in, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "wait"}, func(ctx context.Context, _ *mcp.CallToolRequest, _ nothing) (*mcp.CallToolResult, nothing, error) {
		<-ctx.Done()
		return nil, nothing{}, ctx.Err()
	})
	mcp.AddTool(s, &mcp.Tool{Name: "huge"}, func(context.Context, *mcp.CallToolRequest, nothing) (*mcp.CallToolResult, any, error) {
		return hugeResult(), nil, nil
	})
	return s
}

// far serves HTTP. Its Close doesn't wait for handlers, as a crash doesn't.
func far(t testing.TB, address string, h http.Handler) (*http.Server, string) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: patience}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { srv.Close() })
	return srv, l.Addr().String()
}

type remoteKind struct {
	name, transport, protocol string
	handler                   func() http.Handler
}

// jsonHandler answers with a document, not a stream.
var jsonHandler = remoteKind{"streamable, documents", "", "2026-07-28", func() http.Handler {
	o := &mcp.StreamableHTTPOptions{Stateless: true, JSONResponse: true}
	return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return echoServer() }, o)
}}

// handlers are remote servers of each kind.
var handlers = []remoteKind{
	{"streamable, newer era", "", "2026-07-28", func() http.Handler {
		return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return echoServer() }, &mcp.StreamableHTTPOptions{Stateless: true})
	}},
	{"streamable, older era", streamable, latestLegacy, func() http.Handler {
		s := echoServer()
		return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil)
	}},
	{"sse", sse, latestLegacy, func() http.Handler {
		s := echoServer()
		return mcp.NewSSEHandler(func(*http.Request) *mcp.Server { return s }, nil)
	}},
}

func TestRemote(t *testing.T) {
	for _, tc := range handlers {
		t.Run(tc.name, func(t *testing.T) {
			first, address := far(t, "127.0.0.1:0", tc.handler())
			s := remote(t, "http://"+address, tc.transport)
			session := up(t, s)
			if err := echo(t.Context(), session); err != nil {
				t.Error(err)
			}
			st := s.Status()
			if st.Protocol != tc.protocol || st.Server != "far 2" || st.PID != 0 || st.Transport != cmp.Or(tc.transport, streamable) {
				t.Errorf("got %+v", st)
			}

			// It goes away, and comes back at the same place.
			failed := make(chan error, 1)
			go func() {
				_, err := session.CallTool(context.Background(), &mcp.CallToolParams{Name: "wait"})
				failed <- err
			}()
			time.Sleep(50 * time.Millisecond) // the call may be on its way or not
			first.Close()
			eventually(t, "the death shows", func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if now, err := s.Session(); err == nil {
					_ = echo(ctx, now) // as nothing else tells in the newer era
				}
				return s.Status().Restarts > 0 || s.Status().State == Error
			})
			select {
			case err := <-failed:
				if err == nil {
					t.Error("the call succeeded")
				}
			case <-time.After(patience):
				t.Error("the call still waits")
			}
			far(t, address, tc.handler())
			eventually(t, "calls work again", func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				now, err := s.Session()
				return err == nil && echo(ctx, now) == nil
			})

			// Stop waits for no call.
			session, err := s.Session()
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				_, err := session.CallTool(context.Background(), &mcp.CallToolParams{Name: "wait"})
				failed <- err
			}()
			if err := s.Stop(t.Context()); err != nil {
				t.Error(err)
			}
			select {
			case err := <-failed:
				if err == nil {
					t.Error("the call succeeded")
				}
			case <-time.After(patience):
				t.Error("the call still waits")
			}
		})
	}
}

// TestKeepAlive asks remote servers of the older era for several intervals whether they are there: go-sdk's ping has no
// parameters.
func TestKeepAlive(t *testing.T) {
	for _, tc := range []struct {
		transport string
		handler   func(func(*http.Request) *mcp.Server) http.Handler
	}{
		{streamable, func(f func(*http.Request) *mcp.Server) http.Handler {
			return mcp.NewStreamableHTTPHandler(f, nil)
		}},
		{sse, func(f func(*http.Request) *mcp.Server) http.Handler { return mcp.NewSSEHandler(f, nil) }},
	} {
		t.Run(tc.transport, func(t *testing.T) {
			var pings atomic.Int64
			far0 := echoServer()
			far0.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
				return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
					if method == "ping" {
						pings.Add(1)
					}
					return next(ctx, method, req)
				}
			})
			_, address := far(t, "127.0.0.1:0", tc.handler(func(*http.Request) *mcp.Server { return far0 }))
			s := remote(t, "http://"+address, tc.transport)
			s.times.ping = 100 * time.Millisecond
			up(t, s)
			eventually(t, "three pings", func() bool { return pings.Load() >= 3 })
			eventually(t, "a call works", func() bool {
				now, err := s.Session()
				return err == nil && echo(t.Context(), now) == nil
			})
		})
	}
}

// TestElsewhere: nothing is sent to a place that the configuration doesn't
// name, whatever the server says.
func TestElsewhere(t *testing.T) {
	var hits atomic.Int64
	_, elsewhere := far(t, "127.0.0.1:0", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hits.Add(1) }))
	elsewhere = "http://" + elsewhere
	for name, tc := range map[string]struct {
		transport string
		handler   http.HandlerFunc
	}{
		"redirect": {"", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere, http.StatusTemporaryRedirect)
		}},
		"of stream": {sse, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere, http.StatusFound) }},
		"endpoint": {sse, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "event: endpoint\ndata: %s/messages\n\n", elsewhere)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			_, address := far(t, "127.0.0.1:0", tc.handler)
			s := remote(t, "http://"+address, tc.transport)
			s.Start()
			eventually(t, "it has failed both ways", func() bool { return s.Status().Restarts >= 2 })
			if st := s.Status(); !strings.Contains(st.LastError, "which the configuration does not name") {
				t.Errorf("got %+v", st)
			}
			if err := s.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	if hits.Load() > 0 {
		t.Errorf("%d requests", hits.Load())
	}
}

// TestBadRemote: servers that never answer or never end.
func TestBadRemote(t *testing.T) {
	wait := func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}
	endless := func(kind string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			for blanks := []byte(strings.Repeat(" ", 64<<10)); ; {
				if _, err := w.Write(blanks); err != nil {
					return
				}
			}
		}
	}
	for name, tc := range map[string]struct {
		transport string
		handler   http.HandlerFunc
		want      string
	}{
		"silent":         {"", wait, "did not answer"},
		"silent stream":  {sse, wait, "did not answer"},
		"endless answer": {"", endless("application/json"), ""},
		"endless stream": {sse, endless("text/event-stream"), ""},
		"refusing":       {"", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }, "Forbidden"},
	} {
		t.Run(name, func(t *testing.T) {
			_, address := far(t, "127.0.0.1:0", tc.handler)
			s := remote(t, "http://"+address, tc.transport)
			s.times.start = 2 * time.Second
			s.Start()
			eventually(t, "the error shows", func() bool { return s.Status().LastError != "" })
			if st := s.Status(); !strings.Contains(st.LastError, tc.want) {
				t.Errorf("got %+v", st)
			}
			t.Log(s.Status().LastError)
			if err := s.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	for _, url := range []string{"ftp://127.0.0.1/", "127.0.0.1:80", "http://", "http://[", "/x"} {
		s := remote(t, url, "")
		s.Start()
		eventually(t, "the error shows", func() bool { return strings.Contains(s.Status().LastError, "not http://host") })
	}
}
