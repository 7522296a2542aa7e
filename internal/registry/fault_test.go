package registry

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/slimctl/slimctl/internal/need"
)

// on plays f for requests of this method.
func on(method string, f Fault) func(*http.Request) *Fault {
	return func(req *http.Request) *Fault {
		if req.Method != method {
			return nil
		}
		return &f
	}
}

func TestFaultStatus(t *testing.T) {
	s := serve(t, Options{})
	s.Fault(on("GET", Fault{Status: 429, Body: `{"errors":[{"code":"TOOMANYREQUESTS"}]}`, Header: http.Header{"Retry-After": {"1"}}}))
	a := s.do(t, "GET", "/v2/", nil)
	if a.status != 429 || a.code(t) != "TOOMANYREQUESTS" || a.header.Get("Retry-After") != "1" {
		t.Errorf("%d %v %s", a.status, a.header, a.body)
	}
	if a := s.do(t, "HEAD", "/v2/", nil); a.status != 200 {
		t.Errorf("not meant for HEAD: %d", a.status)
	}
	s.Fault(nil)
	if a := s.do(t, "GET", "/v2/", nil); a.status != 200 {
		t.Errorf("after the fault: %d", a.status)
	}
	if st := s.Stats(); st.ByKind["fault"] != 1 || st.Requests != 3 {
		t.Errorf("%+v", st)
	}
}

func TestFaultCorruptAndCut(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		s := serve(t, o)
		blob := bytes.Repeat([]byte("abcdefgh"), 100_000)
		path := "/v2/a/blobs/" + s.push(t, "a", blob)

		s.Fault(on("GET", Fault{Corrupt: true}))
		a := s.do(t, "GET", path, nil)
		differ := 0
		for i := range a.body {
			if a.body[i] != blob[i] {
				differ++
			}
		}
		if len(a.body) != len(blob) || differ != 1 {
			t.Errorf("%d bytes, %d differ", len(a.body), differ)
		}

		s.Fault(on("GET", Fault{CutAfter: 100_001}))
		a = s.do(t, "GET", path, nil)
		if !errors.Is(a.err, io.ErrUnexpectedEOF) || !bytes.Equal(a.body, blob[:100_001]) {
			t.Errorf("%d bytes, %v", len(a.body), a.err)
		}
		s.Fault(on("HEAD", Fault{CutAfter: -1}))
		if a, err := s.try(t, "HEAD", path, nil); err == nil {
			t.Errorf("answered %d", a.status)
		}

		s.Fault(nil) // what is stored is still right
		if a := s.do(t, "GET", path, nil); !bytes.Equal(a.body, blob) {
			t.Error("the stored blob was spoilt")
		}
	})
}

func TestFaultCutUpload(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		s := serve(t, o)
		blob := bytes.Repeat([]byte("abcdefgh"), 200_000)
		loc := s.do(t, "POST", "/v2/a/blobs/uploads/", nil).header.Get("Location")
		s.Fault(on("PATCH", Fault{CutAfter: 1000}))
		if a, err := s.try(t, "PATCH", loc, blob); err == nil {
			t.Fatalf("answered %d", a.status)
		}
		s.Fault(nil)
		if a := s.do(t, "PATCH", loc, blob[:1000]); a.status != 202 { // nothing of it stays
			t.Errorf("again: %d %s", a.status, a.body)
		}
		if a := s.do(t, "PUT", loc+"?digest="+sum(blob), blob[1000:]); a.status != 201 {
			t.Errorf("the rest: %d %s", a.status, a.body)
		}
		s.Fault(on("PUT", Fault{CutAfter: 10}))
		if a, err := s.try(t, "PUT", "/v2/b/blobs/uploads/2?digest="+sum(blob), blob); err == nil {
			t.Errorf("answered %d", a.status)
		}
		s.Stop()
		leftovers(t, o, 1)
	})
}

func TestFaultHang(t *testing.T) {
	for _, method := range []string{"GET", "PUT"} {
		ended := make(chan Record, 1)
		s := serve(t, Options{Log: func(r Record) { ended <- r }})
		ctx, cancel := context.WithCancel(t.Context())
		s.Fault(func(*http.Request) *Fault { // the client goes once its request is there
			cancel()
			return &Fault{Hang: true}
		})
		req, err := http.NewRequestWithContext(ctx, method, "http://"+s.Host+"/v2/a/manifests/v1", strings.NewReader("body"))
		if err != nil {
			t.Fatal(err)
		}
		if res, err := http.DefaultClient.Do(req); !errors.Is(err, context.Canceled) {
			t.Fatalf("%s: %v, %v", method, res, err)
		}
		select {
		case r := <-ended:
			if r.Status != 0 || r.Kind != "fault" {
				t.Errorf("%s: %+v", method, r)
			}
		case <-time.After(need.Patience):
			t.Fatalf("%s: the handler still hangs though the client has gone", method)
		}
	}
}

func TestStopEndsHangingRequests(t *testing.T) {
	s := serve(t, Options{})
	s.Fault(func(*http.Request) *Fault { return &Fault{Hang: true} })
	done := make(chan error, 1)
	go func() {
		res, err := http.Get("http://" + s.Host + "/v2/")
		if err == nil {
			res.Body.Close()
		}
		done <- err
	}()
	for s.Stats().ByKind["fault"] == 0 {
		time.Sleep(time.Millisecond)
	}
	s.Stop()
	if err := <-done; err == nil {
		t.Error("answered")
	}
}

func TestServeStopsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s, err := Serve(ctx, "", Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.do(t, "GET", "/v2/", nil)
	cancel()
	need.Eventually(t, func() bool {
		_, err := s.try(t, "GET", "/v2/", nil)
		return err != nil
	}, func() string { return "it still answers" })
}
