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

// Plan is what would become of a call.
type Plan struct {
	Decision string   `json:"decision"`          // allow or deny
	Error    string   `json:"error,omitempty"`   // the class of a refusal, for instance POLICY_BLOCKED
	Rule     string   `json:"rule,omitempty"`    // its rule id
	Message  string   `json:"message,omitempty"` // what was wrong and what to do
	URL      string   `json:"url,omitempty"`     // the canonical address of an open
	Argv     []string `json:"argv,omitempty"`    // what agent-browser would be given
}

// Answers are what names resolve to: addresses separated by commas, or
// NXDOMAIN, TIMEOUT, SERVFAIL, EMPTY. The name * stands for any other; a name
// that is not there does not exist.
type Answers map[string]string

// Add puts an answer in. It is an error if it is none of the above.
func (a Answers) Add(host, answer string) error {
	var d *net.DNSError
	if _, err := addresses(answer); err != nil && !errors.As(err, &d) {
		return err
	}
	a[canonical(host)] = answer
	return nil
}

// LookupNetIP makes Answers a policy.Resolver.
func (a Answers) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	for _, name := range []string{canonical(host), "*"} {
		if answer, ok := a[name]; ok {
			return addresses(answer)
		}
	}
	return addresses("NXDOMAIN")
}

func canonical(host string) string { return strings.ToLower(strings.TrimSuffix(host, ".")) }

func addresses(answer string) ([]netip.Addr, error) {
	switch answer {
	case "NXDOMAIN":
		return nil, &net.DNSError{Err: "no such host", IsNotFound: true}
	case "TIMEOUT":
		return nil, &net.DNSError{Err: "timeout", IsTimeout: true}
	case "SERVFAIL":
		return nil, &net.DNSError{Err: "server failure", IsTemporary: true}
	case "EMPTY":
		return nil, nil
	}
	var out []netip.Addr
	for _, s := range strings.Split(answer, ",") {
		a, err := netip.ParseAddr(strings.TrimSpace(s))
		if err != nil {
			return nil, fmt.Errorf("%q is neither an address nor NXDOMAIN, TIMEOUT, SERVFAIL or EMPTY", s)
		}
		out = append(out, a)
	}
	return out, nil
}

// Explainer tells what would become of calls, without running them or asking
// a resolver. It is the part of a server's chain that comes before the run,
// but for the budgets, which are of a moment.
type Explainer struct {
	Policy     *policy.Policy
	Generation policy.Generation
	Answers    Answers
}

// MaxLine bounds a line for Line, in bytes.
const MaxLine = 1 << 20

// Line explains one JSON object: the arguments of a call as the tool that the
// policy names takes them (session_id, argv, timeout_sec; or cmd, timeout,
// session_id), or a url for what would become of opening it; "resolve" adds
// answers for this line.
func (e Explainer) Line(ctx context.Context, line []byte) Plan {
	if len(line) > MaxLine {
		return denied(invalid("explain.line", "the line is longer than %d bytes; send less", MaxLine))
	}
	keys, err := decodeObject(line)
	if err != nil {
		return denied(invalid("explain.line", "%s", err))
	}
	var own map[string]string
	if text, ok := keys["resolve"]; ok {
		if json.Unmarshal(text, &own) != nil {
			return denied(invalid("explain.resolve", "resolve must be an object of host: answer"))
		}
		delete(keys, "resolve")
	}
	answers := Answers{}
	if _, all := own["*"]; !all {
		maps.Copy(answers, e.Answers)
	}
	for host, answer := range own {
		if err := answers.Add(host, answer); err != nil {
			return denied(invalid("explain.resolve", "%s", err))
		}
	}
	p := *e.Policy
	if url, ok := keys["url"]; ok && len(keys) == 1 {
		p.ToolName = policy.ToolName // its form holds any address
		keys = map[string]json.RawMessage{"session_id": json.RawMessage(`"explain"`), "argv": json.RawMessage(`["open",` + string(url) + `]`)}
	}
	arguments, err := json.Marshal(keys)
	if err != nil {
		return denied(invalid("explain.line", "%s", err))
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
	c, r := hooks.before(ctx, Call{Tool: p.ToolName, Arguments: arguments, Received: time.Now()})
	if r != nil {
		return denied(r)
	}
	plan := Plan{Decision: "allow", Argv: c.Run}
	if c.Command.Name == "open" {
		plan.URL = c.Command.Args[0]
	}
	return plan
}

func denied(r *policy.Refusal) Plan {
	return Plan{Decision: "deny", Error: r.Code.Name(), Rule: r.Rule, Message: r.Message}
}
