package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/slimctl/slimctl/server/policy"
)

// Plan is the decision for a call.
type Plan struct {
	Decision string   `json:"decision"`          // allow or deny
	Error    string   `json:"error,omitempty"`   // the class of a refusal, for instance POLICY_BLOCKED
	Rule     string   `json:"rule,omitempty"`    // its rule id
	Message  string   `json:"message,omitempty"` // what was wrong and what to do
	URL      string   `json:"url,omitempty"`     // the canonical address of `open`
	Argv     []string `json:"argv,omitempty"`    // the arguments for agent-browser
}

// Answers maps names to the resolver's answer: addresses separated by commas, or NXDOMAIN, TIMEOUT.
// The name * stands for all others; a missing name does not exist.
type Answers map[string]string

// Add adds an answer. It returns an error if the answer has none of these forms.
func (a Answers) Add(host, answer string) error {
	var d *net.DNSError
	if _, err := parseAnswer(answer); err != nil && !errors.As(err, &d) {
		return err
	}
	a[canonicalHost(host)] = answer
	return nil
}

// LookupNetIP implements policy.Resolver.
func (a Answers) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	for _, name := range []string{canonicalHost(host), "*"} {
		if answer, ok := a[name]; ok {
			return parseAnswer(answer)
		}
	}
	return parseAnswer("NXDOMAIN")
}

func canonicalHost(host string) string { return strings.ToLower(strings.TrimSuffix(host, ".")) }

func parseAnswer(answer string) ([]netip.Addr, error) {
	switch answer {
	case "NXDOMAIN":
		return nil, &net.DNSError{Err: "no such host", IsNotFound: true}
	case "TIMEOUT":
		return nil, &net.DNSError{Err: "timeout", IsTimeout: true}
	}
	var out []netip.Addr
	for _, s := range strings.Split(answer, ",") {
		a, err := netip.ParseAddr(strings.TrimSpace(s))
		if err != nil {
			return nil, fmt.Errorf("%q is neither an address nor NXDOMAIN nor TIMEOUT", s)
		}
		out = append(out, a)
	}
	return out, nil
}

// Explainer explains the decisions for calls without running them or contacting a resolver. It uses the part of a
// server's chain before the run, without the budgets.
type Explainer struct {
	Policy     *policy.Policy
	Generation policy.Generation
	Answers    Answers
}

// MaxLine limits the length of a line for Line, in bytes.
const MaxLine = 1 << 20

// Line explains one JSON object. It holds the arguments of a call of the policy's tool (session_id, argv, timeout_sec;
// or cmd, timeout, session_id), or a url to open. "resolve" adds answers for this line.
func (e Explainer) Line(ctx context.Context, line []byte) Plan {
	if len(line) > MaxLine {
		return deniedPlan(invalidRefusal("explain.line", "the line is longer than %d bytes; send less", MaxLine))
	}
	keys, err := readArguments(line)
	if err != nil {
		return deniedPlan(invalidRefusal("explain.line", "%s", err))
	}
	var own map[string]string
	if text, ok := keys["resolve"]; ok {
		if json.Unmarshal(text.Raw, &own) != nil {
			return deniedPlan(invalidRefusal("explain.resolve", "resolve must be an object of host: answer"))
		}
		delete(keys, "resolve")
	}
	answers := Answers{}
	if _, all := own["*"]; !all {
		maps.Copy(answers, e.Answers)
	}
	for host, answer := range own {
		if err := answers.Add(host, answer); err != nil {
			return deniedPlan(invalidRefusal("explain.resolve", "%s", err))
		}
	}
	p := *e.Policy
	raw := map[string]json.RawMessage{}
	for key, n := range keys {
		raw[key] = n.Raw
	}
	if url, ok := keys["url"]; ok && len(keys) == 1 {
		p.ToolName = policy.ToolName // its arguments can express any address
		raw = map[string]json.RawMessage{"session_id": json.RawMessage(`"explain"`), "argv": json.RawMessage(`["open",` + string(url.Raw) + `]`)}
	}
	arguments, err := json.Marshal(raw)
	if err != nil {
		return deniedPlan(invalidRefusal("explain.line", "%s", err))
	}
	return e.plan(ctx, &p, answers, arguments)
}

func (e Explainer) plan(ctx context.Context, p *policy.Policy, answers Answers, arguments json.RawMessage) Plan {
	output := orDefault(p.ArtifactsDir, orDefault(p.StateDir, "/STATE_DIR", ""), "artifacts")
	hooks := chain{
		validate{policy: p, generation: func(context.Context) (policy.Generation, error) { return e.Generation, nil }},
		address{policy: p, network: policy.Network{Resolver: answers}},
		inject{cdpPort: p.AgentBrowser.CDPPort, output: filepath.Join(output, "RUN")},
	}
	c, r := hooks.runBefore(ctx, Call{Tool: p.ToolName, Arguments: arguments, Received: time.Now()})
	if r != nil {
		return deniedPlan(r)
	}
	plan := Plan{Decision: "allow", Argv: c.Run}
	if c.Command.Name == "open" {
		plan.URL = c.Command.Args[0]
	}
	return plan
}

func deniedPlan(r *policy.Refusal) Plan {
	return Plan{Decision: "deny", Error: r.Code.Name(), Rule: r.Rule, Message: r.Message}
}
