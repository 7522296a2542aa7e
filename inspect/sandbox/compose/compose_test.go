package compose

import (
	"bufio"
	"bytes"
	"flag"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/slimctl/slimctl/inspect/sandbox"
	"github.com/slimctl/slimctl/internal/need"
	"github.com/slimctl/slimctl/server/policy"
)

var update = flag.Bool("update", false, "write the golden files")

const pinned = "registry.example/slim@sha256:4b825dc642cb6eb9a060e54bf8d69288fbee49044b825dc642cb6eb9a060e54b"

// service is one that can be written; change makes it another.
func service(change func(*Service)) Service {
	s := Service{Image: pinned, Name: "browser", Settings: Settings("127.0.0.1:8080")}
	if change != nil {
		change(&s)
	}
	return s
}

// variants are what the golden files hold.
var variants = map[string]func(*Service){
	"plain":    nil,
	"rootless": func(s *Service) { s.Rootless = true },
	"tokens":   func(s *Service) { s.Settings.Env = map[string]string{tokenName: "LS0tLS1CRUdJTi…"} },
	"full": func(s *Service) {
		s.Image, s.Name, s.Namespace = "registry.example/slim:1", "desk-2", "agents"
		s.PolicyFile, s.Policy = "/etc/policies/a.json", []byte("{\n  \"commands\": [\"open\"]\n}\n")
		s.Private = []policy.PrivateRange{{Range: netip.MustParsePrefix("10.1.2.0/24")}}
		s.Settings.Publish = []string{"[::1]:9000"}
		s.Settings.Env = map[string]string{"TZ": "Europe/Berlin", "TICKET_TTL_SECONDS": "60"}
		s.Settings.Memory, s.Settings.CPUs = 1536<<20, 1.5
	},
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is another file now (go test -update writes it anew):\n%s", file, got)
	}
}

// named is the name that docker compose takes from the directory.
func named(o *loader.Options) { o.SetProjectName("browser", false) }

// load reads a file as docker compose does, with its schema, and with a key in the environment.
func load(t *testing.T, text []byte) types.ServiceConfig {
	t.Helper()
	p, err := loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir:  t.TempDir(),
		ConfigFiles: []types.ConfigFile{{Filename: "docker-compose.yml", Content: text}},
		Environment: types.Mapping{keyName: "the key $x"},
	}, named)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	for _, s := range p.Services {
		return s
	}
	t.Fatal("no service")
	return types.ServiceConfig{}
}

func TestCompose(t *testing.T) {
	for name, change := range variants {
		t.Run(name, func(t *testing.T) {
			s := service(change)
			s.Settings.Work, s.Settings.Output = "/srv/in $HOME", "/srv/out"
			text, err := Compose(s)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name+".compose.yml", text)
			c := load(t, text)
			key, has := c.Environment[keyName]
			if has == (s.Settings.Env[tokenName] != "") || has && (key == nil || *key != "the key $x") {
				t.Errorf("the key is %v", key)
			}
			if c.Image != s.Image || !c.ReadOnly || !slices.Equal(c.CapDrop, []string{"ALL"}) ||
				!slices.Equal(c.SecurityOpt, []string{"no-new-privileges:true"}) || c.Privileged || c.NetworkMode != "" {
				t.Errorf("got %+v", c)
			}
			if int64(c.MemLimit) != s.Settings.Memory || c.MemSwapLimit != c.MemLimit || float64(c.CPUS) != s.Settings.CPUs ||
				c.PidsLimit != s.Settings.PIDs || int64(c.ShmSize) != s.Settings.ShmSize {
				t.Errorf("limits: %+v", c)
			}
			want := sandbox.CapsNeeded
			if s.Rootless {
				want = nil
			}
			if !slices.Equal(slices.Sorted(slices.Values(c.CapAdd)), slices.Sorted(slices.Values(want))) || (c.User == "1000:1000") != s.Rootless {
				t.Errorf("capabilities %q as user %q", c.CapAdd, c.User)
			}
			if len(c.Ports) != 1 || !netip.MustParseAddr(c.Ports[0].HostIP).IsLoopback() || c.Ports[0].Target != port {
				t.Errorf("ports %+v", c.Ports)
			}
			for _, v := range c.Volumes {
				if v.Target == sandbox.AuditMount { // outlasts the container
					if v.Type != "volume" || v.Source != "audit" || v.ReadOnly {
						t.Errorf("volume %+v", v)
					}
					continue
				}
				if v.ReadOnly != (v.Target != "/output") {
					t.Errorf("volume %+v", v)
				}
				if v.Target == "/work" && v.Source != "/srv/in $HOME" {
					t.Errorf("/work is %q", v.Source)
				}
			}
			for _, m := range c.Tmpfs {
				if !strings.Contains(m, ":size=") {
					t.Errorf("tmpfs %s can take all memory", m)
				}
			}
			for _, p := range sandbox.WritablePaths {
				mounted := slices.ContainsFunc(c.Tmpfs, func(m string) bool { return strings.HasPrefix(m, p+":") }) ||
					slices.ContainsFunc(c.Volumes, func(v types.ServiceVolumeConfig) bool { return v.Target == p })
				if !mounted {
					t.Errorf("%s can't be written", p)
				}
			}
		})
	}
}

// TestDockerComposeV1: Debian 12's docker-compose, 1.29, takes every file.
func TestDockerComposeV1(t *testing.T) {
	program := need.Program(t, "docker-compose")
	for name, change := range variants {
		t.Run(name, func(t *testing.T) {
			s := service(change)
			s.Settings.Work, s.Settings.Output = "/srv/in $HOME", "/srv/out"
			text, err := Compose(s)
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), program, "--file", "-", "config")
			cmd.Dir, cmd.Stdin = t.TempDir(), bytes.NewReader(text)
			cmd.Env = append(os.Environ(), keyName+"=the key", "DOCKER_HOST=unix:///nowhere")
			out, err := cmd.CombinedOutput()
			if err != nil || bytes.Contains(out, []byte("SANDBOX_API_KEY: the key")) == (s.Settings.Env[tokenName] != "") || !bytes.Contains(out, []byte(":8080")) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// TestComposeNeedsAKey: without one docker compose starts nothing.
func TestComposeNeedsAKey(t *testing.T) {
	text, err := Compose(service(nil))
	if err != nil {
		t.Fatal(err)
	}
	_, err = loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir: t.TempDir(), ConfigFiles: []types.ConfigFile{{Filename: "docker-compose.yml", Content: text}},
	})
	if err == nil || !strings.Contains(err.Error(), keyName) {
		t.Errorf("got %v", err)
	}
}

// manifest holds what Kubernetes reads from a file.
type manifest struct {
	deployment    *appsv1.Deployment
	service       *corev1.Service
	networkPolicy *networkingv1.NetworkPolicy
	configMap     *corev1.ConfigMap
	claim         *corev1.PersistentVolumeClaim
}

// decode reads a file as a strict API server does: a field that its types don't have is an error, and one twice.
func decode(t *testing.T, text []byte) (m manifest) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{appsv1.AddToScheme, corev1.AddToScheme, networkingv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	strict := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Yaml: true, Strict: true})
	documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		one, err := documents.Read()
		if err == io.EOF {
			return m
		}
		if err != nil {
			t.Fatal(err)
		}
		o, _, err := strict.Decode(one, nil, nil)
		if err != nil {
			t.Fatalf("%v\n%s", err, one)
		}
		switch o := o.(type) {
		case *appsv1.Deployment:
			m.deployment = o
		case *corev1.Service:
			m.service = o
		case *networkingv1.NetworkPolicy:
			m.networkPolicy = o
		case *corev1.ConfigMap:
			m.configMap = o
		case *corev1.PersistentVolumeClaim:
			m.claim = o
		default:
			t.Fatalf("a %T", o)
		}
	}
}

func TestKubernetes(t *testing.T) {
	for name, change := range variants {
		t.Run(name, func(t *testing.T) {
			s := service(change)
			text, err := Kubernetes(s)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name+".kubernetes.yml", text)
			m := decode(t, text)
			pod := m.deployment.Spec.Template.Spec
			if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken || *pod.EnableServiceLinks || pod.HostNetwork ||
				pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
				t.Errorf("pod %+v", pod)
			}
			c := pod.Containers[0]
			sc := c.SecurityContext
			if *sc.AllowPrivilegeEscalation || !*sc.ReadOnlyRootFilesystem || sc.Capabilities.Drop[0] != "ALL" || c.Image != s.Image {
				t.Errorf("container %+v", c)
			}
			if (len(sc.Capabilities.Add) == 0) != s.Rootless || (pod.SecurityContext.RunAsNonRoot != nil) != s.Rootless {
				t.Errorf("rootless %v: %+v %+v", s.Rootless, pod.SecurityContext, sc)
			}
			if got := c.Resources.Limits.Memory().Value(); got != s.Settings.Memory {
				t.Errorf("memory %d", got)
			}
			if got := c.Resources.Limits.Cpu().MilliValue(); got != int64(s.Settings.CPUs*1000) {
				t.Errorf("cpu %d m", got)
			}
			if s.Settings.Env[tokenName] != "" {
				if len(c.Env) != 1 || c.Env[0].Name != tokenName || c.Env[0].ValueFrom != nil {
					t.Errorf("environment %+v", c.Env)
				}
			} else if ref := c.Env[0].ValueFrom.SecretKeyRef; c.Env[0].Value != "" || ref.Name != s.Name+"-api-key" || ref.Key != keyName {
				t.Errorf("key %+v", c.Env[0])
			}
			if m.service.Spec.Type != corev1.ServiceTypeClusterIP || m.service.Spec.Ports[0].TargetPort.StrVal != c.Ports[0].Name {
				t.Errorf("service %+v", m.service.Spec)
			}
			for _, selects := range []map[string]string{m.service.Spec.Selector, m.networkPolicy.Spec.PodSelector.MatchLabels, m.deployment.Spec.Selector.MatchLabels} {
				if len(selects) == 0 || selects["app.kubernetes.io/name"] != m.deployment.Spec.Template.Labels["app.kubernetes.io/name"] {
					t.Errorf("%v selects other Pods", selects)
				}
			}
			names := map[string]bool{}
			for _, v := range pod.Volumes {
				if bad := validation.IsDNS1123Label(v.Name); len(bad) > 0 || names[v.Name] {
					t.Errorf("volume %q: %q", v.Name, bad)
				}
				names[v.Name] = true
				if v.EmptyDir != nil && v.EmptyDir.SizeLimit == nil {
					t.Errorf("volume %s can take all memory", v.Name)
				}
			}
			audit := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil })
			if audit < 0 || m.claim == nil || pod.Volumes[audit].PersistentVolumeClaim.ClaimName != m.claim.Name ||
				!slices.ContainsFunc(c.VolumeMounts, func(v corev1.VolumeMount) bool {
					return v.Name == pod.Volumes[audit].Name && v.MountPath == sandbox.AuditMount
				}) {
				t.Errorf("the audit log has no volume that lasts: %+v, %+v", pod.Volumes, m.claim)
			}
			mounted := map[string]bool{}
			for _, v := range c.VolumeMounts {
				if !names[v.Name] {
					t.Errorf("no volume %s", v.Name)
				}
				mounted[v.MountPath] = true
			}
			for _, p := range append(slices.Clone(sandbox.WritablePaths), "/dev/shm") {
				if !mounted[p] {
					t.Errorf("%s can't be written", p)
				}
			}
			if (len(m.deployment.Spec.Template.Annotations) > 0) != (len(s.Policy) > 0) {
				t.Errorf("a changed policy has to start another Pod: annotations %v", m.deployment.Spec.Template.Annotations)
			}
			if len(s.Policy) > 0 && (m.configMap.Data[policyKey] != string(s.Policy) || !mounted["/etc/agent-browser/browser-shell.policy.json"]) {
				t.Errorf("policy %+v", m.configMap)
			}
		})
	}
}

// TestEgressIsPublicOnly: the NetworkPolicy lets through just the addresses that the egress proxy takes for public.
func TestEgressIsPublicOnly(t *testing.T) {
	text, err := Kubernetes(service(nil))
	if err != nil {
		t.Fatal(err)
	}
	np := decode(t, text).networkPolicy.Spec
	if len(np.Egress) != 2 || len(np.Ingress) != 1 || len(np.PolicyTypes) != 2 || np.Ingress[0].Ports[0].Port.IntVal != port || len(np.Ingress[0].Ports) != 1 {
		t.Fatalf("got %+v", np)
	}
	lets := func(a netip.Addr) bool {
		for _, to := range np.Egress[1].To {
			if netip.MustParsePrefix(to.IPBlock.CIDR).Contains(a) {
				return !slices.ContainsFunc(to.IPBlock.Except, func(p string) bool { return netip.MustParsePrefix(p).Contains(a) })
			}
		}
		return false
	}
	try := []netip.Addr{netip.MustParseAddr("8.8.8.8"), netip.MustParseAddr("2606:4700::1111"), netip.MustParseAddr("::1"), netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fe80::1"), netip.MustParseAddr("64:ff9b::7f00:1")}
	for _, p := range append(slices.Clone(np.Egress[1].To[0].IPBlock.Except), np.Egress[1].To[1].IPBlock.Except...) { // the edges of each range, and what is beside them
		prefix := netip.MustParsePrefix(p)
		if prefix.Masked() != prefix {
			t.Errorf("%s isn't a range", p)
		}
		last := prefix.Addr().AsSlice()
		for i := prefix.Bits(); i < len(last)*8; i++ {
			last[i/8] |= 1 << (7 - i%8)
		}
		end, _ := netip.AddrFromSlice(last)
		for _, a := range []netip.Addr{prefix.Addr(), end, prefix.Addr().Prev(), end.Next()} {
			if a.IsValid() {
				try = append(try, a)
			}
		}
	}
	for a := range 256 { // and every /16 of IPv4
		for b := range 256 {
			try = append(try, netip.AddrFrom4([4]byte{byte(a), byte(b), 7, 9}))
		}
	}
	for _, a := range try {
		if lets(a) != policy.Public(a) {
			t.Errorf("%s: let through %v, public %v", a, lets(a), policy.Public(a))
		}
	}
}

// TestEgressToPrivateHosts: the NetworkPolicy lets through what the policy opens besides.
func TestEgressToPrivateHosts(t *testing.T) {
	p, err := policy.Parse([]byte(`{"open": {"allow_hosts": ["*.corp.example"]}, "egress": {"private_hosts": [
		"a.corp.example=10.1.2.0/24", "b.corp.example=10.1.2.0/24", "c.corp.example=100.64.0.0/10"]}}`))
	if err != nil {
		t.Fatal(err)
	}
	text, err := Kubernetes(service(func(s *Service) { s.Private = p.PrivateRanges() }))
	if err != nil {
		t.Fatal(err)
	}
	got := decode(t, text).networkPolicy.Spec.Egress[1].To[2:]
	want := []networkingv1.NetworkPolicyPeer{
		{IPBlock: &networkingv1.IPBlock{CIDR: "10.1.2.0/24"}},
		{IPBlock: &networkingv1.IPBlock{CIDR: "100.64.0.0/10", Except: []string{"100.100.100.0/24"}}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\n%s", got, text)
	}
}

// TestClaimHoldsTheAuditLog: both logs fit on the volume before the log counts as full.
func TestClaimHoldsTheAuditLog(t *testing.T) {
	text, err := Kubernetes(service(nil))
	if err != nil {
		t.Fatal(err)
	}
	audit := policy.Default().Audit
	if claim := decode(t, text).claim.Spec.Resources.Requests.Storage().Value(); claim < 2*int64(audit.Keep+1)*audit.MaxBytes {
		t.Errorf("%d bytes for two logs of %d files of %d bytes", claim, audit.Keep+1, audit.MaxBytes)
	}
}

// TestRefused: what can't be written as it is meant, or would open more.
func TestRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Service)
		want   string
	}{
		"an image with YAML":       {func(s *Service) { s.Image = "a:1\n    privileged: true" }, "image"},
		"an image with a variable": {func(s *Service) { s.Image = "${IMAGE}" }, "image"},
		"no image":                 {func(s *Service) { s.Image = "" }, "image"},
		"an image's directory":     {func(s *Service) { s.Image = "oci:out/slim" }, "push it"},
		"an image of Docker's":     {func(s *Service) { s.Image = "docker-daemon:slim:l0" }, "give slim:l0"},
		"an image's archive":       {func(s *Service) { s.Image = "docker-archive:x.tar" }, "push it"},
		"a name with YAML":         {func(s *Service) { s.Name = "a:\n  b" }, "name"},
		"a name that is long":      {func(s *Service) { s.Name = strings.Repeat("a", 41) }, "name"},
		"a namespace":              {func(s *Service) { s.Namespace = "kube system" }, "namespace"},
		"a policy's path":          {func(s *Service) { s.PolicyFile = "/a\n/b" }, "control"},
		"a relative path":          {func(s *Service) { s.PolicyFile = "a/b" }, "absolute"},
		"a path that turns around": {func(s *Service) { s.PolicyFile = "/a\u202egnp.b" }, "control"},
		"a path out of a path":     {func(s *Service) { s.PolicyFile = "/a/../b" }, "clean"},
		"a policy without end":     {func(s *Service) { s.Policy = make([]byte, maxPolicy+1) }, "at most"},
		"a policy of bytes":        {func(s *Service) { s.Policy = []byte("\xff") }, "UTF-8"},
		"a key":                    {func(s *Service) { s.Settings.Env = map[string]string{keyName: "s3cret"} }, "never written"},
		"another variable":         {func(s *Service) { s.Settings.Env = map[string]string{"RUN_HOOK_X": "x"} }, "RUN_HOOK_X"},
		"a variable's lines":       {func(s *Service) { s.Settings.Env = map[string]string{"TZ": "a\nb"} }, "control"},
		"a capability":             {func(s *Service) { s.Settings.CapAdd = []string{"SYS_ADMIN"} }, "SYS_ADMIN"},
		"a user":                   {func(s *Service) { s.Settings.User = "0:0" }, "user"},
		"privileges":               {func(s *Service) { s.Settings.NoNewPrivileges = false }, "no_new_privileges"},
		"no limit":                 {func(s *Service) { s.Settings.PIDs = 0 }, "limit"},
		"a tmpfs with options":     {func(s *Service) { s.Settings.Tmpfs = []string{"/run:exec"} }, "tmpfs"},
		"a command's lines":        {func(s *Service) { s.Settings.Command = []string{"a\nb"} }, "command"},
	} {
		t.Run(name, func(t *testing.T) {
			for kind, render := range map[string]func(Service) ([]byte, error){"compose": Compose, "kubernetes": Kubernetes} {
				if text, err := render(service(tt.change)); err == nil || !strings.Contains(err.Error(), tt.want) || text != nil {
					t.Errorf("%s: got %v\n%s", kind, err, text)
				}
			}
		})
	}
	for _, at := range []string{"", "8080", "localhost:8080", "0.0.0.0:8080", "[::]:8080", "192.168.1.2:8080", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:8080:8080", "[::1%lo]:1", "127.0.0.1:1\n"} {
		if text, err := Compose(service(func(s *Service) { s.Settings.Publish = []string{at} })); err == nil {
			t.Errorf("port %q:\n%s", at, text)
		}
	}
	if _, err := Kubernetes(service(func(s *Service) { s.Settings.Work = "/srv" })); err == nil || !strings.Contains(err.Error(), "Pod") {
		t.Errorf("got %v", err)
	}
}

// TestQuoted: text that is YAML, or a variable, stays text.
func TestQuoted(t *testing.T) {
	for _, odd := range []string{"/a: b", "/- c", "/${HOME}", "/$$x", "/#x", "/'\"", "/{a: 1}", "/&a *b", "/!!int 1", "/ä ö", "/" + strings.Repeat("long ", 60) + "x"} {
		text, err := Compose(service(func(s *Service) {
			s.PolicyFile = odd
			s.Settings.Env = map[string]string{"TZ": odd}
			s.Settings.Command = []string{odd, "yes", "1", "~"}
		}))
		if err != nil {
			t.Fatal(err)
		}
		c := load(t, text)
		if c.Volumes[0].Source != odd || *c.Environment["TZ"] != odd || !slices.Equal(c.Command, types.ShellCommand{odd, "yes", "1", "~"}) {
			t.Errorf("%q became %q, %q, %q", odd, c.Volumes[0].Source, *c.Environment["TZ"], c.Command)
		}
	}
	for _, odd := range []string{"$(HOME)", "$$(x)", "a: b", "yes", "1e3", "null", "- x"} {
		text, err := Kubernetes(service(func(s *Service) {
			s.Policy = []byte(odd + "\n---\nkind: Secret\n")
			s.Settings.Env = map[string]string{"TZ": odd}
		}))
		if err != nil {
			t.Fatal(err)
		}
		m := decode(t, text)
		if got := m.configMap.Data[policyKey]; got != odd+"\n---\nkind: Secret\n" {
			t.Errorf("policy %q", got)
		}
		if got := m.deployment.Spec.Template.Spec.Containers[0].Env[1].Value; got != strings.ReplaceAll(odd, "$(", "$$(") {
			t.Errorf("%q became %q", odd, got)
		}
	}
}

// TestSameBytes: the order of what is given doesn't matter.
func TestSameBytes(t *testing.T) {
	for _, render := range []func(Service) ([]byte, error){Compose, Kubernetes} {
		one, err := render(service(nil))
		if err != nil {
			t.Fatal(err)
		}
		two, err := render(service(func(s *Service) {
			s.Settings.CapAdd, s.Settings.Tmpfs = slices.Clone(s.Settings.CapAdd), slices.Clone(s.Settings.Tmpfs)
			slices.Reverse(s.Settings.CapAdd)
			slices.Reverse(s.Settings.Tmpfs)
		}))
		if err != nil || !bytes.Equal(one, two) {
			t.Errorf("%v\n%s", err, two)
		}
	}
}
