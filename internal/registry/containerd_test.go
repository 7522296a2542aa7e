package registry

import (
	"bytes"
	"context"
	"io"
	"testing"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	digest "github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// containerdClient is the client that BuildKit pushes and pulls with.
func (s *Server) containerdClient(user, pass string) remotes.Resolver {
	auth := docker.NewDockerAuthorizer(docker.WithAuthCreds(func(string) (string, string, error) { return user, pass, nil }))
	return docker.NewResolver(docker.ResolverOptions{
		Hosts: docker.ConfigureDefaultRegistries(docker.WithPlainHTTP(docker.MatchLocalhost), docker.WithAuthorizer(auth)),
	})
}

func containerdPush(ctx context.Context, p remotes.Pusher, d ocispec.Descriptor, data []byte) error {
	w, err := p.Push(ctx, d)
	if err != nil {
		return err
	}
	defer w.Close()
	if _, err := w.Write(data); err != nil {
		return err
	}
	return w.Commit(ctx, d.Size, d.Digest)
}

func TestContainerdClient(t *testing.T) {
	for name, o := range map[string]Options{
		"open":   {},
		"basic":  {User: "me", Password: "secret"},
		"bearer": {User: "me", Password: "secret", Bearer: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, o)
			ctx, client := t.Context(), s.containerdClient("me", "secret")
			layer := bytes.Repeat([]byte("layer"), 10_000)
			ld := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: digest.FromBytes(layer), Size: int64(len(layer))}
			manifest := imageManifest(sum(layer), sum(layer), len(layer), len(layer))
			md := ocispec.Descriptor{MediaType: ociManifest, Digest: digest.FromBytes(manifest), Size: int64(len(manifest))}

			base, err := client.Pusher(ctx, s.Host+"/base:v1")
			if err != nil {
				t.Fatal(err)
			}
			if err := containerdPush(ctx, base, ld, layer); err != nil {
				t.Fatal(err)
			}
			if err := containerdPush(ctx, base, md, manifest); err != nil {
				t.Fatal(err)
			}

			s.Reset()
			client = s.containerdClient("me", "secret") // one remembers what it pushed, whatever the repository
			slim, err := client.Pusher(ctx, s.Host+"/slim:v1")
			if err != nil {
				t.Fatal(err)
			}
			ld.Annotations = map[string]string{"containerd.io/distribution.source.127.0.0.1": "base"} // a host without port
			if w, err := slim.Push(ctx, ld); err == nil {
				w.Close()
				t.Fatal("the layer was to be mounted, not uploaded")
			}
			if st := s.Stats(); st.Mounts != 1 || st.BlobBytesIn != 0 {
				t.Errorf("%+v", st)
			}
			if err := containerdPush(ctx, slim, md, manifest); err != nil {
				t.Fatal(err)
			}

			_, got, err := client.Resolve(ctx, s.Host+"/slim:v1")
			if err != nil || got.Digest != md.Digest {
				t.Fatalf("resolved %s, %v", got.Digest, err)
			}
			f, err := client.Fetcher(ctx, s.Host+"/slim:v1")
			if err != nil {
				t.Fatal(err)
			}
			for want, d := range map[string]ocispec.Descriptor{string(layer): ld, string(manifest): md} {
				rc, err := f.Fetch(ctx, d)
				if err != nil {
					t.Fatal(err)
				}
				b, err := io.ReadAll(rc)
				rc.Close()
				if err != nil || string(b) != want {
					t.Errorf("fetched %d bytes of %s, %v", len(b), d.Digest, err)
				}
			}
			if o.User != "" {
				if _, _, err := s.containerdClient("me", "wrong").Resolve(ctx, s.Host+"/slim:v1"); err == nil {
					t.Error("resolved with a wrong password")
				}
			}
			if asked := s.Stats().ByKind["POST token"] > 0; asked != o.Bearer {
				t.Errorf("tokens: %v", s.Stats().ByKind)
			}
		})
	}
}
