package compose

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/slimctl/slimctl/inspect/sandbox"
)

// The ranges of addresses that aren't the public internet (IANA's special-purpose registries, and Azure's WireServer):
// those that the image's egress proxy refuses. In IPv6 all but 2000::/3 is special, so these are the exceptions in it.
var (
	special4 = []string{
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16", "172.16.0.0/12",
		"192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24",
		"203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
	}
	special6 = []string{"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"}
)

const (
	policyKey = "policy.json"
	auditSize = "128Mi" // two logs of four files of 8 MiB each, and room
)

// Kubernetes gives a manifest: the policy's ConfigMap, if there is one, a Deployment, a Service of the cluster and a
// NetworkPolicy. The Secret with the key is only named.
func Kubernetes(s Service) ([]byte, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if s.Settings.Work != "" || s.Settings.Output != "" {
		return nil, errors.New("a Pod has no directories of this machine: mount volumes of the cluster at /work and /output instead")
	}
	if s.PolicyFile != "" && len(s.Policy) == 0 {
		return nil, fmt.Errorf("policy %s: it is empty", s.PolicyFile)
	}
	labels := map[string]string{"app.kubernetes.io/name": s.Name}
	kind := func(version, kind, name string) object {
		return object{APIVersion: version, Kind: kind, Metadata: meta{name, s.Namespace, labels}}
	}
	var docs []document
	if len(s.Policy) > 0 {
		o := kind("v1", "ConfigMap", s.Name+"-policy")
		o.Data = map[string]string{policyKey: string(s.Policy)}
		docs = append(docs, document{o, map[string]string{"data": "The policy that says what the tool may do; the tool can't change it."}})
	}
	deploy, err := s.deployment(kind("apps/v1", "Deployment", s.Name))
	if err != nil {
		return nil, err
	}
	service := kind("v1", "Service", s.Name)
	service.Spec = clusterService{Type: "ClusterIP", Selector: labels, Ports: []servicePort{{"http", port, "http"}}}
	policy, comments := s.networkPolicy(kind("networking.k8s.io/v1", "NetworkPolicy", s.Name))
	claim := kind("v1", "PersistentVolumeClaim", s.Name+"-audit")
	claim.Spec = volumeClaim{[]string{"ReadWriteOnce"}, claimResources{claimRequest{auditSize}}}
	docs = append(docs, document{claim, map[string]string{
		"spec": "The audit log outlasts the Pod. Without a default StorageClass name one here, as storageClassName.",
	}}, deploy,
		document{service, map[string]string{"spec/type": "Inside of the cluster only: the image speaks plain HTTP. An Ingress with TLS may serve others."}},
		document{policy, comments})
	head := fmt.Sprintf(`The closed browser image on Kubernetes. The key isn't in this file; make its Secret first:
  openssl rand -hex 32 | tr -d '\n' | kubectl create secret generic %[1]s-api-key --from-file=%[2]s=/dev/stdin
Then an MCP client in the namespace connects`, s.Name, keyName)
	if s.takesTokens() {
		head = "The closed browser image on Kubernetes. Callers show a token that JWT_PUBLIC_KEY, which is public, checks.\nAn MCP client in the namespace connects"
	}
	head += fmt.Sprintf(` to http://%s:%d/mcp.
The limit of processes is the kubelet's: set podPidsLimit to %d there.
`, s.Name, port, s.Settings.PIDs)
	return encode(head, docs...)
}

func (s Service) deployment(o object) (document, error) {
	set, id := s.Settings, account
	limit := quantities{CPU: strconv.FormatInt(int64(set.CPUs*1000), 10) + "m", Memory: quantity(set.Memory)}
	check := func(period, failures int) probe {
		return probe{Exec: execAction{health}, PeriodSeconds: period, TimeoutSeconds: 5, FailureThreshold: failures}
	}
	c := container{
		Name: s.Name, Image: s.Image,
		Ports:        []containerPort{{"http", port}},
		StartupProbe: check(2, 60), ReadinessProbe: check(10, 3), LivenessProbe: check(30, 4),
		Resources: resources{limit, limit},
		SecurityContext: containerSecurity{
			ReadOnlyRootFilesystem: set.ReadOnly, Capabilities: capabilities{Drop: []string{"ALL"}, Add: s.caps()},
		},
		VolumeMounts: []volumeMount{{Name: "shm", MountPath: "/dev/shm"}},
	}
	if !s.takesTokens() {
		c.Env = []variable{{Name: keyName, ValueFrom: &valueFrom{keyRef{s.Name + "-api-key", keyName}}}}
	}
	const in = "spec/template/spec/"
	comments := map[string]string{
		"spec/replicas":                     "Sessions live in one Pod: a second one would not know them.",
		in + "automountServiceAccountToken": "A page that broke out would find no way to the API server.",
		in + "enableServiceLinks":           "Nothing of the cluster is told in the environment.",
		in + "containers/0/image":           imageComment(s),
		in + "containers/0/startupProbe":    "The image's own health check, run inside: no port is opened for it.",
		in + "containers/0/resources":       "Requests equal to limits: the last to be evicted. What is in memory volumes counts too.",
		in + "volumes/0":                    "Chromium keeps what its processes share in /dev/shm, and crashes when it is full.",
	}
	for _, k := range slices.Sorted(maps.Keys(set.Env)) {
		c.Env = append(c.Env, variable{Name: k, Value: verbatim(set.Env[k])})
	}
	for _, word := range set.Command {
		if err := checkText(word); err != nil {
			return document{}, fmt.Errorf("command: %w", err)
		}
		c.Args = append(c.Args, verbatim(word))
	}
	p := pod{
		SecurityContext: podSecurity{Seccomp: seccomp{"RuntimeDefault"}},
		Volumes:         []volume{{Name: "shm", EmptyDir: &emptyDir{"Memory", quantity(set.ShmSize)}}},
	}
	if s.rootless() {
		p.SecurityContext = podSecurity{true, &id, &id, &id, seccomp{"RuntimeDefault"}}
		comments[in+"securityContext"] = "All programs run as this account and need no capability: the namespace may enforce the \"restricted\" Pod Security Standard."
	} else if len(s.caps()) > 0 {
		comments[in+"containers/0/securityContext/capabilities/add"] = "To make the directories of the image's two accounts, change to these, and end their programs: all within the \"baseline\" Pod Security Standard."
	}
	for i, path := range s.writable() {
		name := "tmp" + strings.ReplaceAll(path, "/", "-")
		if !volumeName.MatchString(name) {
			return document{}, fmt.Errorf("tmpfs %q: a volume's name is made from it: use lower-case letters, digits and dashes", path)
		}
		c.VolumeMounts = append(c.VolumeMounts, volumeMount{Name: name, MountPath: path})
		p.Volumes = append(p.Volumes, volume{Name: name, EmptyDir: &emptyDir{Medium: "Memory"}})
		if i == 0 {
			comments[in+"volumes/1"] = "What has to be written goes away with the Pod."
		}
	}
	if len(s.Policy) > 0 {
		c.VolumeMounts = append(c.VolumeMounts, volumeMount{"policy", policyPath, policyKey, true})
		p.Volumes = append(p.Volumes, volume{Name: "policy", ConfigMap: &configMap{s.Name + "-policy"}})
	}
	c.VolumeMounts = append(c.VolumeMounts, volumeMount{Name: auditVolume, MountPath: sandbox.AuditMount})
	p.Volumes = append(p.Volumes, volume{Name: auditVolume, Claim: &claimSource{s.Name + "-audit"}})
	p.Containers = []container{c}
	labels := o.Metadata.Labels
	o.Spec = deployment{Replicas: 1, Strategy: deploymentStrategy{"Recreate"}, Selector: selector{labels}, Template: podTemplate{meta{Labels: labels}, p}}
	return document{o, comments}, nil
}

func (s Service) networkPolicy(o object) (object, map[string]string) {
	tcp := []peerPort{{Protocol: "TCP"}}
	o.Spec = networkPolicy{
		PodSelector: selector{o.Metadata.Labels},
		PolicyTypes: []string{"Ingress", "Egress"},
		Ingress:     []ingressRule{{[]peer{{PodSelector: &selector{map[string]string{}}}}, []peerPort{{"TCP", port}}}},
		Egress: []egressRule{
			{
				[]peer{{
					NamespaceSelector: &selector{map[string]string{"kubernetes.io/metadata.name": "kube-system"}},
					PodSelector:       &selector{map[string]string{"k8s-app": "kube-dns"}},
				}},
				[]peerPort{{"UDP", 53}, {"TCP", 53}},
			},
			{[]peer{{IPBlock: &ipBlock{"0.0.0.0/0", special4}}, {IPBlock: &ipBlock{"2000::/3", special6}}}, tcp},
		},
	}
	return o, map[string]string{
		"spec/ingress/0": "Pods of this namespace, and no other port.",
		"spec/egress/0":  "Names. Where a node-local cache answers them, allow its address here.",
		"spec/egress/1":  "The public internet and nothing else: no Pod, no node, no metadata service. The image's egress proxy refuses the same; this holds if Chromium gets past it. UDP isn't needed.",
	}
}

// quantity gives bytes in the largest unit that they are whole in.
func quantity(bytes int64) string {
	for _, u := range []struct {
		size int64
		name string
	}{{1 << 30, "Gi"}, {1 << 20, "Mi"}, {1 << 10, "Ki"}} {
		if bytes%u.size == 0 {
			return strconv.FormatInt(bytes/u.size, 10) + u.name
		}
	}
	return strconv.FormatInt(bytes, 10)
}

// verbatim keeps Kubernetes from putting the value of a variable into text.
func verbatim(s string) string { return strings.ReplaceAll(s, "$(", "$$(") }
