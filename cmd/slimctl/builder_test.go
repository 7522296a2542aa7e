package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slimctl/slimctl/image"
	"github.com/slimctl/slimctl/internal/buildkitd"
	"github.com/slimctl/slimctl/internal/dockerd"
	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/internal/standin"
)

// TestBuilderGivesTheSameDigest builds with and without a BuildKit daemon, through the command line.
func TestBuilderGivesTheSameDigest(t *testing.T) {
	bin, _ := buildkitd.Ensure(t)
	t.Setenv("PATH", filepath.Dir(bin)+string(os.PathListSeparator)+os.Getenv("PATH"))
	var digests []string
	for i, args := range [][]string{nil, {"--builder", "auto", "--progress", "plain"}} {
		dest := filepath.Join(t.TempDir(), "out")
		var stdout, stderr bytes.Buffer
		args = append([]string{"build", "--base", "standin:A", "--output", "type=oci,dest=" + dest, "--progress", "quiet"}, args...)
		if code := run(t.Context(), args, &stdout, &stderr); code != 0 {
			t.Fatalf("slimctl %q: exit %d\n%s", args, code, &stderr)
		}
		if i == 1 && !bytes.Contains(stderr.Bytes(), []byte("[linux/arm64] overlay of l0")) {
			t.Errorf("BuildKit's progress isn't shown:\n%s", &stderr)
		}
		if _, err := os.Stat(filepath.Join(dest, "index.json")); err != nil {
			t.Error(err)
		}
		digests = append(digests, stdout.String())
	}
	if digests[0] != digests[1] || digests[0] == "" {
		t.Errorf("the engines print %q and %q", digests[0], digests[1])
	}
}

// TestSmallByBuilder: a BuildKit daemon pushes the same small image, with its ledger.
func TestSmallByBuilder(t *testing.T) {
	daemon := buildkitd.Start(t)
	s := newSite(t)
	image := s.Host + "/small/a:1"
	small := []string{"--profile", "l1", "--base", "standin:B", "--platform", "linux/amd64", "--progress", "quiet"}
	cli := func(args ...string) (int, string, string) {
		t.Helper()
		return slimctl(t.Context(), slices.Concat(args[:1], small, args[1:])...)
	}
	_, want, _ := cli("build")
	code, got, stderr := cli("build", "--builder", daemon.Addr, "-t", image, "--push")
	if code != exitOK || !strings.HasSuffix(got, "@"+want) {
		t.Fatalf("exit code %d, %q instead of %q:\n%s", code, got, want, stderr)
	}
	if code, text, stderr := slimctl(t.Context(), "why", image, "/usr/bin/openbox"); code != exitOK || !strings.Contains(text, "says the ledger") {
		t.Errorf("exit code %d: %s%s", code, text, stderr)
	}
}

// TestBuildkitHost: BUILDKIT_HOST is another tool's setting, which counts when --builder asks for it.
func TestBuildkitHost(t *testing.T) {
	build := []string{"build", "--base", "standin:A", "--platform", "linux/amd64", "--progress", "quiet"}
	t.Setenv("BUILDKIT_HOST", "docker-container://nosuch")
	code, want, stderr := slimctl(t.Context(), build...)
	if code != exitOK {
		t.Fatalf("exit code %d:\n%s", code, stderr)
	}
	t.Setenv("BUILDKIT_HOST", buildkitd.Start(t).Addr)
	if code, got, stderr := slimctl(t.Context(), append(build, "--builder", "env")...); code != exitOK || got != want {
		t.Errorf("exit code %d, %q instead of %q:\n%s", code, got, want, stderr)
	}
	t.Setenv("BUILDKIT_HOST", "")
	if code, _, stderr := slimctl(t.Context(), append(build, "--builder", "env")...); code != exitUsage || !anyIn(stderr, "BUILDKIT_HOST is not set") {
		t.Errorf("exit code %d:\n%s", code, stderr)
	}
}

// TestBuilderTLS: a daemon that wants certificates gets those of BUILDKIT_TLS_DIR, under either of the names that buildctl's
// --tlsdir may hold.
func TestBuilderTLS(t *testing.T) {
	certs, others := writeCertificates(t), writeCertificates(t)
	addr := fmt.Sprintf("tcp://localhost:%d", need.FreePort(t))
	buildkitd.Start(t, "--addr", addr, "--tlscacert", filepath.Join(certs, "ca.crt"), "--tlscert", filepath.Join(certs, "tls.crt"), "--tlskey", filepath.Join(certs, "tls.key"))
	other := t.TempDir() // the other names
	for from, to := range map[string]string{"ca.crt": "ca.pem", "tls.crt": "cert.pem", "tls.key": "key.pem"} {
		if err := os.Symlink(filepath.Join(certs, from), filepath.Join(other, to)); err != nil {
			t.Fatal(err)
		}
	}
	build := []string{"build", "--base", "standin:A", "--platform", "linux/amd64", "--progress", "quiet"}
	_, want, _ := slimctl(t.Context(), build...)
	t.Setenv("BUILDKIT_HOST", addr)
	for _, tt := range []struct {
		builder, dir string
		code         int
		says         string // on stderr
	}{
		{addr, certs, exitOK, ""},
		{"env", other, exitOK, ""},
		{"env", "", exitError, "doesn't answer"}, // "certificate required", or a connection that is gone
		{"env", others, exitError, "unknown authority"},
		{"env", t.TempDir(), exitUsage, "has neither "},
	} {
		t.Setenv("BUILDKIT_TLS_DIR", tt.dir)
		code, got, stderr := slimctl(t.Context(), append(build, "--builder", tt.builder)...)
		if code != tt.code || code == exitOK && got != want || !anyIn(stderr, tt.says) {
			t.Errorf("%+v: exit code %d, %q instead of %q:\n%s", tt, code, got, want, stderr)
		}
	}
}

// writeCertificates writes ca.crt, tls.crt and tls.key, for localhost and buildkit.test as well as for a client.
func writeCertificates(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "daemon"}, NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
		DNSNames: []string{"localhost", "buildkit.test"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	write := func(name, kind string, der []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]*x509.Certificate{"ca.crt": authority, "tls.crt": leaf} {
		der, err := x509.CreateCertificate(rand.Reader, c, authority, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		write(name, "CERTIFICATE", der)
	}
	write("tls.key", "PRIVATE KEY", private)
	return dir
}

// TestBuilderInDocker: docker-container:// reaches a daemon in a container, as docker buildx starts it.
func TestBuilderInDocker(t *testing.T) {
	daemon, buildctl := buildkitd.Ensure(t)
	need.Containers(t)
	t.Setenv("DOCKER_HOST", dockerd.Host(t))
	dir := t.TempDir()
	docker := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("docker", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("docker %q: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	// `docker import` takes an archive, in which both programs are.
	tar := exec.Command("tar", "-cf", filepath.Join(dir, "root.tar"), "-C", filepath.Dir(daemon), filepath.Base(daemon), filepath.Base(buildctl))
	if out, err := tar.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	image := docker("import", "--change", "ENV PATH=/", filepath.Join(dir, "root.tar"))
	t.Cleanup(func() { docker("rmi", "--force", image) })
	// No base layer is unpacked and nothing is run, so that it needs no rights.
	container := docker("run", "--detach", "--network", "none", "--tmpfs", "/run", "--tmpfs", "/tmp", image,
		"buildkitd", "--containerd-worker=false", "--oci-worker=true", "--oci-worker-binary=/buildctl", "--oci-worker-snapshotter=native", "--oci-worker-net=host")
	t.Cleanup(func() { docker("rm", "--force", "--volumes", container) })
	need.Eventually(t, func() bool {
		return exec.Command("docker", "exec", container, "buildctl", "debug", "workers").Run() == nil
	}, func() string { return docker("logs", container) })

	build := []string{"build", "--base", "standin:A", "--platform", "linux/amd64", "--progress", "quiet"}
	_, want, _ := slimctl(t.Context(), build...)
	code, got, stderr := slimctl(t.Context(), append(build, "--builder", "docker-container://"+container)...)
	if code != exitOK || got != want {
		t.Errorf("exit code %d, %q instead of %q:\n%s", code, got, want, stderr)
	}
	code, _, stderr = slimctl(t.Context(), append(build, "--builder", "docker-container://nosuch")...)
	if code != exitError || !anyIn(stderr, "nosuch") {
		t.Errorf("exit code %d:\n%s", code, stderr)
	}
}

// shell returns a function that runs a line in dir by a shell. In its PATH are buildctl, with a daemon of its own, and slimctl,
// which is this test.
func shell(t *testing.T, dir string) func(line string) (output string, err error) {
	t.Helper()
	_, buildctl := buildkitd.Ensure(t)
	env, err := privateEnv(dir)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(bin, "slimctl")); err != nil {
		t.Fatal(err)
	}
	path := strings.Join([]string{bin, filepath.Dir(buildctl), os.Getenv("PATH")}, string(os.PathListSeparator))
	env = append(env, "PATH="+path, "BUILDKIT_HOST="+buildkitd.Start(t).Addr)
	return func(line string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
		cmd.Dir, cmd.Env = dir, env
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
}

// TestRenderingsVerify builds what llb and dockerfile render with BuildKit's own program, as their help says, and verifies it.
func TestRenderingsVerify(t *testing.T) {
	s := newSite(t)
	run := shell(t, s.dir)
	withRm := filepath.Join(s.dir, "with-rm") // for RUN; stand-ins have no programs
	o := standin.Options{Line: "B", Platforms: []string{"linux/amd64"}, Extra: []image.File{image.Bytes("/usr/bin/rm", 0o755, buildkitd.Rm(t, "amd64"))}}
	if _, err := standin.Write(t.Context(), withRm, o); err != nil {
		t.Fatal(err)
	}
	if err := s.LoadLayout("base/aio", "1", withRm); err != nil {
		t.Fatal(err)
	}
	base := s.Host + "/base/aio:1"
	_, help, _ := strings.Cut((&app{}).llb().Example, "--context ctx")
	line := "slimctl llb --base " + base + " --platform linux/amd64 --context ctx" + help // as in the help, on a directory that isn't there
	for name, lines := range map[string][]string{
		"llb": {line, "slimctl verify --same tree --base " + base + " oci-archive:slim.tar"},
		"small llb": {
			strings.NewReplacer("slimctl llb", "slimctl llb --profile l1", "ctx", "ctx1", "slim.", "small.").Replace(line),
			"slimctl verify --profile l1 --same tree --base " + base + " oci-archive:small.tar",
		},
		"dockerfile": {
			"slimctl dockerfile --base " + base + " --platform linux/amd64 -o df",
			`sed -n 's/^  annotations = \["manifest:\(.*\)", "manifest:\(.*\)"\]$/annotation.\1,annotation.\2/p' df/docker-bake.hcl > df.annotations`,
			`buildctl build --frontend dockerfile.v0 --local context=df --local dockerfile=df --opt platform=linux/amd64 --output "type=oci,dest=df.tar,rewrite-timestamp=true,$(cat df.annotations)"`,
			"slimctl verify --same tree --base " + base + " oci-archive:df.tar",
		},
		"dockerfile on a layout": {
			"slimctl dockerfile --base oci:with-rm --platform linux/amd64 -o dl",
			`sed -n 's/^  annotations = \["manifest:\(.*\)"\]$/annotation.\1/p' dl/docker-bake.hcl > dl.annotations`,
			`sed -n 's/^  contexts .*"oci-layout:\/\/\(.*\)@\(.*\)".*/--oci-layout slimctl-base=\1 --opt context:slimctl-base=oci-layout:\/\/slimctl-base@\2/p' dl/docker-bake.hcl > dl.context`,
			`buildctl build --frontend dockerfile.v0 --local context=dl --local dockerfile=dl --opt platform=linux/amd64 $(cat dl.context) --output "type=oci,dest=dl.tar,$(cat dl.annotations)"`,
			"slimctl verify --same tree --base oci:with-rm oci-archive:dl.tar",
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, line := range lines {
				if out, err := run(line); err != nil {
					t.Fatalf("%s: %v\n%s", line, err, out)
				}
			}
		})
	}
}
