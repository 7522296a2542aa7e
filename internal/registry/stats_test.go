package registry

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestLongestChain(t *testing.T) {
	epoch := time.Unix(1000, 0)
	at := func(ms int) time.Time { return epoch.Add(time.Duration(ms) * time.Millisecond) }
	for _, tt := range []struct {
		name  string
		spans [][2]int // start and end in ms; end -1: under way
		want  int
	}{
		{"none", nil, 0},
		{"one after the other", [][2]int{{0, 10}, {10, 20}, {21, 30}}, 3},
		{"all at once", [][2]int{{0, 10}, {1, 11}, {2, 12}}, 1},
		{"four in two waves", [][2]int{{0, 10}, {1, 11}, {12, 20}, {13, 21}}, 2},
		{"a long one beside three short", [][2]int{{0, 100}, {0, 10}, {20, 30}, {40, 50}}, 3},
		{"given in any order", [][2]int{{40, 50}, {0, 10}, {20, 30}}, 3},
		{"each overlaps the next", [][2]int{{0, 10}, {5, 15}, {10, 20}, {15, 25}}, 2},
		{"one under way", [][2]int{{0, 10}, {20, -1}, {30, 40}}, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var recs []Record
			for _, s := range tt.spans {
				r := Record{Start: at(s[0])}
				if s[1] >= 0 {
					r.End = at(s[1])
				}
				recs = append(recs, r)
			}
			if got := longestChain(recs, at(1000)); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

func TestStatsCountBodies(t *testing.T) {
	s := serve(t, Options{})
	blob := []byte("0123456789")
	s.push(t, "a", blob)
	s.do(t, "GET", "/v2/a/blobs/"+sum(blob), nil, "Range", "bytes=0-3")
	s.do(t, "HEAD", "/v2/a/blobs/"+sum(blob), nil)
	missing := s.do(t, "GET", "/v2/a/blobs/"+sum(nil), nil)
	s.do(t, "POST", "/v2/b/blobs/uploads/?mount="+sum(blob)+"&from=a", nil)
	s.do(t, "POST", "/v2/c/blobs/uploads/?mount="+sum(blob)+"&from=b2", nil)
	m := imageManifest(sum(blob), sum(blob), 10, 10)
	s.do(t, "PUT", "/v2/a/manifests/v1", m, "Content-Type", ociManifest)
	s.do(t, "GET", "/v2/a/manifests/v1", nil)
	want := Stats{
		Requests: 9,
		ByKind: map[string]int{
			"POST upload": 1, "PUT upload": 1, "GET blob": 2, "HEAD blob": 1, "mount": 1, "mount refused": 1,
			"PUT manifest": 1, "GET manifest": 1,
		},
		BytesIn:     int64(10 + len(m)),
		BytesOut:    int64(4 + len(missing.body) + len(m)),
		BlobBytesIn: 10, BlobBytesOut: 4, Mounts: 1,
		RoundTrips: 9, // one client, one request at a time
	}
	if diff := cmp.Diff(want, s.Stats()); diff != "" {
		t.Error(diff)
	}
	if r := s.Records()[2]; r.Method != "GET" || r.Status != 206 || r.Path != "/v2/a/blobs/"+sum(blob) || r.End.Before(r.Start) {
		t.Errorf("%+v", r)
	}
	s.Reset()
	if st := s.Stats(); st.Requests != 0 || st.BytesIn != 0 {
		t.Errorf("after Reset: %+v", st)
	}
	if a := s.do(t, "GET", "/v2/a/manifests/v1", nil); a.status != 200 {
		t.Errorf("Reset took the content: %d", a.status)
	}
}

func TestLatency(t *testing.T) {
	s := serve(t, Options{Latency: 30 * time.Millisecond})
	blob := make([]byte, 1<<20)
	begin := time.Now()
	s.push(t, "a", blob)
	if took := time.Since(begin); took < 30*time.Millisecond {
		t.Errorf("answered after %s", took)
	}
	s.SetLatency(0)
	s.Reset()
	s.do(t, "GET", "/v2/a/blobs/"+sum(blob), nil)
	if r := s.Records()[0]; r.End.Sub(r.Start) > 25*time.Millisecond {
		t.Logf("slow machine: %s without latency", r.End.Sub(r.Start))
	}
}
