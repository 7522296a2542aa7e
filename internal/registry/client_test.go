package registry

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/stream"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"golang.org/x/sync/errgroup"
)

func (s *Server) ref(t *testing.T, ref string) name.Reference {
	t.Helper()
	r, err := name.ParseReference(s.Host + "/" + ref)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func randomIndex(t *testing.T, size, layers, images int64) v1.ImageIndex {
	t.Helper()
	idx, err := random.Index(size, layers, images)
	if err != nil {
		t.Fatal(err)
	}
	return idx
}

func TestClientPushPull(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		s := serve(t, o)
		want := randomIndex(t, 100_000, 3, 2)
		if err := remote.WriteIndex(s.ref(t, "base:v1"), want); err != nil {
			t.Fatal(err)
		}
		got, err := remote.Index(s.ref(t, "base:v1"))
		if err != nil {
			t.Fatal(err)
		}
		if err := validate.Index(got); err != nil {
			t.Error(err)
		}
		if w, g := must(want.Digest()), must(got.Digest()); w != g {
			t.Errorf("pushed %s, pulled %s", w, g)
		}
		s.Reset()
		if err := remote.WriteIndex(s.ref(t, "base:v2"), want); err != nil {
			t.Fatal(err)
		}
		if st := s.Stats(); st.BlobBytesIn != 0 || st.BlobBytesOut != 0 {
			t.Errorf("second push moved blobs: %+v", st)
		}
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestClientMount is the point of the package: between repositories layers are mounted and no blob byte moves.
func TestClientMount(t *testing.T) {
	for _, noMount := range []bool{false, true} {
		t.Run(fmt.Sprintf("NoMount=%v", noMount), func(t *testing.T) {
			s := serve(t, Options{NoMount: noMount})
			if err := remote.WriteIndex(s.ref(t, "base:v1"), randomIndex(t, 50_000, 4, 1)); err != nil {
				t.Fatal(err)
			}
			idx, err := remote.Index(s.ref(t, "base:v1"))
			if err != nil {
				t.Fatal(err)
			}
			s.Reset()
			if err := remote.WriteIndex(s.ref(t, "slim:v1"), idx); err != nil {
				t.Fatal(err)
			}
			st := s.Stats()
			if noMount {
				if st.Mounts != 0 || st.BlobBytesIn < 4*50_000 {
					t.Errorf("mounts were refused, so all should have been uploaded: %+v", st)
				}
				return
			}
			if st.Mounts != 5 || st.BlobBytesIn != 0 || st.BlobBytesOut != 0 { // 4 layers and the config
				t.Errorf("blobs moved: %+v", st)
			}
			got, err := remote.Index(s.ref(t, "slim:v1"))
			if err != nil {
				t.Fatal(err)
			}
			if err := validate.Index(got); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestClientStreamedLayer(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		s := serve(t, o)
		l := must(random.Layer(1_000_000, "application/vnd.oci.image.layer.v1.tar+gzip"))
		sl := stream.NewLayer(must(l.Uncompressed()))
		repo := s.ref(t, "a").Context()
		if err := remote.WriteLayer(repo, sl); err != nil {
			t.Fatal(err)
		}
		got, err := remote.Layer(repo.Digest(must(sl.Digest()).String()))
		if err != nil {
			t.Fatal(err)
		}
		if err := validate.Layer(got); err != nil {
			t.Error(err)
		}
	})
}

func TestConcurrentPushes(t *testing.T) {
	modes(t, func(t *testing.T, o Options) {
		var inside, logged atomic.Int32
		o.Log = func(Record) {
			if inside.Add(1) != 1 {
				t.Error("Log is called by two goroutines at a time")
			}
			logged.Add(1)
			inside.Add(-1)
		}
		s := serve(t, o)
		shared := randomIndex(t, 20_000, 2, 2)
		g, ctx := errgroup.WithContext(t.Context())
		for i := range 8 {
			g.Go(func() error {
				ref, err := name.ParseReference(fmt.Sprintf("%s/repo%d:v1", s.Host, i%3))
				if err != nil {
					return err
				}
				if err := remote.WriteIndex(ref, shared, remote.WithContext(ctx)); err != nil {
					return err
				}
				s.Stats() // while others push
				idx, err := remote.Index(ref, remote.WithContext(ctx))
				if err != nil {
					return err
				}
				return validate.Index(idx)
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		if logged.Load() == 0 {
			t.Error("nothing logged")
		}
	})
}

func TestClientAuth(t *testing.T) {
	for _, bearer := range []bool{false, true} {
		t.Run(fmt.Sprintf("Bearer=%v", bearer), func(t *testing.T) {
			s := serve(t, Options{User: "me", Password: "secret", Bearer: bearer})
			idx := randomIndex(t, 1000, 2, 1)
			with := func(user, pass string) remote.Option {
				return remote.WithAuth(&authn.Basic{Username: user, Password: pass})
			}
			for _, a := range []remote.Option{remote.WithAuth(authn.Anonymous), with("me", "wrong"), with("you", "secret"), with("", "")} {
				if err := remote.WriteIndex(s.ref(t, "base:v1"), idx, a); err == nil {
					t.Error("pushed without the right user and password")
				}
			}
			if st := s.Stats(); st.BlobBytesIn != 0 || st.ByKind["POST upload"] != 0 && bearer {
				t.Errorf("got past the door: %+v", st)
			}
			me := with("me", "secret")
			if err := remote.WriteIndex(s.ref(t, "base:v1"), idx, me); err != nil {
				t.Fatal(err)
			}
			got, err := remote.Index(s.ref(t, "base:v1"), me)
			if err != nil {
				t.Fatal(err)
			}
			s.Reset()
			if err := remote.WriteIndex(s.ref(t, "slim:v1"), got, me); err != nil { // needs pull on base as well
				t.Fatal(err)
			}
			if st := s.Stats(); st.Mounts != 3 || st.BlobBytesIn != 0 {
				t.Errorf("not mounted: %+v", st)
			}
		})
	}
}

// TestRoundTrips: one push with latency has a chain no shorter than its dependent steps and no longer than time allows.
func TestRoundTripsOfClient(t *testing.T) {
	const latency = 20 * time.Millisecond
	s := serve(t, Options{})
	if err := remote.WriteIndex(s.ref(t, "base:v1"), randomIndex(t, 1000, 10, 1)); err != nil {
		t.Fatal(err)
	}
	s.SetLatency(latency)
	s.Reset()
	begin := time.Now()
	idx, err := remote.Index(s.ref(t, "base:v1"), remote.WithContext(context.Background()))
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(s.ref(t, "slim:v1"), idx, remote.WithJobs(32)); err != nil {
		t.Fatal(err)
	}
	took := time.Since(begin)
	st := s.Stats()
	// ping, index | ping, HEAD image, GET image, HEAD layers, mounts, config, manifest, index
	if st.RoundTrips < 8 || st.RoundTrips > int(took/latency) || st.RoundTrips >= st.Requests {
		t.Errorf("%d round trips in %s with %d requests: %v", st.RoundTrips, took, st.Requests, st.ByKind)
	}
}
