package compose

// The part of the Kubernetes API that is used (core/v1, apps/v1, networking.k8s.io/v1). The types of k8s.io/api would
// write fields that a server fills in, and take no comments.
type (
	object struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string `yaml:"kind"`
		Metadata   meta   `yaml:"metadata"`
		Data       any    `yaml:"data,omitempty"`
		Spec       any    `yaml:"spec,omitempty"`
	}
	meta struct {
		Name      string            `yaml:"name,omitempty"`
		Namespace string            `yaml:"namespace,omitempty"`
		Labels    map[string]string `yaml:"labels,omitempty"`
	}
	selector struct {
		MatchLabels map[string]string `yaml:"matchLabels"`
	}
	deployment struct {
		Replicas int                `yaml:"replicas"`
		Strategy deploymentStrategy `yaml:"strategy"`
		Selector selector           `yaml:"selector"`
		Template podTemplate        `yaml:"template"`
	}
	deploymentStrategy struct {
		Type string `yaml:"type"`
	}
	podTemplate struct {
		Metadata meta `yaml:"metadata"`
		Spec     pod  `yaml:"spec"`
	}
	pod struct {
		Automount       bool        `yaml:"automountServiceAccountToken"`
		ServiceLinks    bool        `yaml:"enableServiceLinks"`
		SecurityContext podSecurity `yaml:"securityContext"`
		Containers      []container `yaml:"containers"`
		Volumes         []volume    `yaml:"volumes"`
	}
	podSecurity struct {
		RunAsNonRoot bool    `yaml:"runAsNonRoot,omitempty"`
		RunAsUser    *int    `yaml:"runAsUser,omitempty"`
		RunAsGroup   *int    `yaml:"runAsGroup,omitempty"`
		FSGroup      *int    `yaml:"fsGroup,omitempty"`
		Seccomp      seccomp `yaml:"seccompProfile"`
	}
	seccomp struct {
		Type string `yaml:"type"`
	}
	container struct {
		Name            string            `yaml:"name"`
		Image           string            `yaml:"image"`
		Args            []string          `yaml:"args,omitempty"`
		Env             []variable        `yaml:"env"`
		Ports           []containerPort   `yaml:"ports"`
		StartupProbe    probe             `yaml:"startupProbe"`
		ReadinessProbe  probe             `yaml:"readinessProbe"`
		LivenessProbe   probe             `yaml:"livenessProbe"`
		Resources       resources         `yaml:"resources"`
		SecurityContext containerSecurity `yaml:"securityContext"`
		VolumeMounts    []volumeMount     `yaml:"volumeMounts"`
	}
	variable struct {
		Name      string     `yaml:"name"`
		Value     string     `yaml:"value,omitempty"`
		ValueFrom *valueFrom `yaml:"valueFrom,omitempty"`
	}
	valueFrom struct {
		SecretKeyRef keyRef `yaml:"secretKeyRef"`
	}
	keyRef struct {
		Name string `yaml:"name"`
		Key  string `yaml:"key"`
	}
	containerPort struct {
		Name          string `yaml:"name"`
		ContainerPort int    `yaml:"containerPort"`
	}
	probe struct {
		Exec             execAction `yaml:"exec"`
		PeriodSeconds    int        `yaml:"periodSeconds"`
		TimeoutSeconds   int        `yaml:"timeoutSeconds"`
		FailureThreshold int        `yaml:"failureThreshold"`
	}
	execAction struct {
		Command []string `yaml:"command"`
	}
	resources struct {
		Requests quantities `yaml:"requests"`
		Limits   quantities `yaml:"limits"`
	}
	quantities struct {
		CPU    string `yaml:"cpu"`
		Memory string `yaml:"memory"`
	}
	containerSecurity struct {
		AllowPrivilegeEscalation bool         `yaml:"allowPrivilegeEscalation"`
		ReadOnlyRootFilesystem   bool         `yaml:"readOnlyRootFilesystem"`
		Capabilities             capabilities `yaml:"capabilities"`
	}
	capabilities struct {
		Drop []string `yaml:"drop"`
		Add  []string `yaml:"add,omitempty"`
	}
	volumeMount struct {
		Name      string `yaml:"name"`
		MountPath string `yaml:"mountPath"`
		SubPath   string `yaml:"subPath,omitempty"`
		ReadOnly  bool   `yaml:"readOnly,omitempty"`
	}
	volume struct {
		Name      string       `yaml:"name"`
		EmptyDir  *emptyDir    `yaml:"emptyDir,omitempty"`
		ConfigMap *configMap   `yaml:"configMap,omitempty"`
		Claim     *claimSource `yaml:"persistentVolumeClaim,omitempty"`
	}
	claimSource struct {
		ClaimName string `yaml:"claimName"`
	}
	volumeClaim struct {
		AccessModes []string       `yaml:"accessModes"`
		Resources   claimResources `yaml:"resources"`
	}
	claimResources struct {
		Requests claimRequest `yaml:"requests"`
	}
	claimRequest struct {
		Storage string `yaml:"storage"`
	}
	emptyDir struct {
		Medium    string `yaml:"medium"`
		SizeLimit string `yaml:"sizeLimit,omitempty"`
	}
	configMap struct {
		Name string `yaml:"name"`
	}
	clusterService struct {
		Type     string            `yaml:"type"`
		Selector map[string]string `yaml:"selector"`
		Ports    []servicePort     `yaml:"ports"`
	}
	servicePort struct {
		Name       string `yaml:"name"`
		Port       int    `yaml:"port"`
		TargetPort string `yaml:"targetPort"`
	}
	networkPolicy struct {
		PodSelector selector      `yaml:"podSelector"`
		PolicyTypes []string      `yaml:"policyTypes"`
		Ingress     []ingressRule `yaml:"ingress"`
		Egress      []egressRule  `yaml:"egress"`
	}
	ingressRule struct {
		From  []peer     `yaml:"from"`
		Ports []peerPort `yaml:"ports"`
	}
	egressRule struct {
		To    []peer     `yaml:"to"`
		Ports []peerPort `yaml:"ports"`
	}
	peer struct {
		NamespaceSelector *selector `yaml:"namespaceSelector,omitempty"`
		PodSelector       *selector `yaml:"podSelector,omitempty"`
		IPBlock           *ipBlock  `yaml:"ipBlock,omitempty"`
	}
	ipBlock struct {
		CIDR   string   `yaml:"cidr"`
		Except []string `yaml:"except"`
	}
	peerPort struct {
		Protocol string `yaml:"protocol"`
		Port     int    `yaml:"port,omitempty"`
	}
)
