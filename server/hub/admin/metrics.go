package admin

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/slimctl/slimctl/server/hub/upstream"
)

// buckets holds the upper bounds in seconds that the OTel conventions for MCP recommend (semantic-conventions-genai,
// docs/gen-ai/mcp.md).
var buckets = [...]float64{0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300}

// methods lists all methods of MCP, of both eras. Clients may invent others.
var methods = splitWords(`initialize ping
	server/discover subscriptions/listen
	tools/list tools/call
	resources/list resources/templates/list resources/read resources/subscribe resources/unsubscribe
	prompts/list prompts/get completion/complete logging/setLevel
	sampling/createMessage elicitation/create roots/list
	tasks/get tasks/list tasks/result tasks/cancel
	notifications/initialized notifications/cancelled notifications/progress notifications/message
	notifications/tools/list_changed notifications/prompts/list_changed notifications/resources/list_changed
	notifications/resources/updated notifications/roots/list_changed notifications/tasks/status
	notifications/elicitation/complete notifications/subscriptions/acknowledged`)

// errorTypes lists tool_error and the codes that JSON-RPC and MCP define. Servers may invent others.
var errorTypes = splitWords(`tool_error -32700 -32600 -32601 -32602 -32603 -32002 -32042 -32020 -32021 -32022`)

func splitWords(s string) map[string]bool {
	set := map[string]bool{"": true}
	for w := range strings.FieldsSeq(s) {
		set[w] = true
	}
	return set
}

// other is OTel's replacement for values that are not counted separately.
const other = "_OTHER"

// maxTools limits the tools that are counted separately: a server may rename its tools forever.
const maxTools = 256

// Metrics counts the hub's operations, as Prometheus text with the OTel MCP names. The number of series is limited, and
// no label contains an address, a session or an argument.
type Metrics struct {
	mu         sync.Mutex
	tools      map[string]bool // those counted separately
	operations map[operation]*histogram
	denied     map[denial]uint64
}

type operation struct {
	client                  bool
	method, tool, errorType string
}

type denial struct{ server, tool, rule string }

type histogram struct {
	counts [len(buckets) + 1]uint64 // not cumulative; the last is for durations beyond all buckets
	sum    float64
}

// NewMetrics returns Metrics with all counters at 0.
func NewMetrics() *Metrics {
	return &Metrics{tools: map[string]bool{"": true}, operations: map[operation]*histogram{}, denied: map[denial]uint64{}}
}

// Operation counts a request served (mcp.server.operation.duration) or sent to a server
// (mcp.client.operation.duration). tool must be empty or listed by the hub: invented names would use up the 256
// separate tools. errorType is empty, "tool_error", or a JSON-RPC code as text.
func (m *Metrics) Operation(client bool, method, tool, errorType string, d time.Duration) {
	seconds := max(d, 0).Seconds()
	m.mu.Lock()
	defer m.mu.Unlock()
	op := operation{client, keepKnown(methods, method), "", keepKnown(errorTypes, errorType)}
	if op.method == "tools/call" {
		op.tool = m.toolLabel(tool)
	}
	h := m.operations[op]
	if h == nil {
		h = &histogram{}
		m.operations[op] = h
	}
	i, _ := slices.BinarySearch(buckets[:], seconds)
	h.counts[i]++
	h.sum += seconds
}

// Denied counts a call that the guard denied; the hub lists its server and tool.
func (m *Metrics) Denied(server, tool, rule string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.denied[denial{server, m.toolLabel(tool), rule}]++
}

func keepKnown(known map[string]bool, s string) string {
	if known[s] {
		return s
	}
	return other
}

// toolLabel returns the label for a tool; only the first maxTools names have one. The caller holds the lock.
func (m *Metrics) toolLabel(name string) string {
	if !m.tools[name] {
		if len(m.tools) > maxTools || len(name) > 256 {
			return other
		}
		m.tools[name] = true
	}
	return name
}

// formatText returns everything in the Prometheus text format, version 0.0.4, in a stable order.
func (m *Metrics) formatText(servers []upstream.Status) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	var b bytes.Buffer
	writeFamily(&b, "mcp_server_operation_duration_seconds", "histogram", "How long requests of clients took.")
	m.histograms(&b, "mcp_server_operation_duration_seconds", false)
	writeFamily(&b, "mcp_client_operation_duration_seconds", "histogram", "How long requests to servers took.")
	m.histograms(&b, "mcp_client_operation_duration_seconds", true)
	writeFamily(&b, "mcp_hub_server_state", "gauge", "1 for the state that a server is in.")
	for _, s := range servers {
		for _, state := range []upstream.State{upstream.Stopped, upstream.Starting, upstream.Running, upstream.Error} {
			value := 0
			if s.State == state {
				value = 1
			}
			fmt.Fprintf(&b, "mcp_hub_server_state{%s} %d\n", formatLabels("server", s.Name, "state", string(state)), value)
		}
	}
	writeFamily(&b, "mcp_hub_server_restarts_total", "counter", "Starts of a server after its first.")
	for _, s := range servers {
		fmt.Fprintf(&b, "mcp_hub_server_restarts_total{%s} %d\n", formatLabels("server", s.Name), s.Restarts)
	}
	writeFamily(&b, "mcp_hub_tool_denied_total", "counter", "Calls that hub.policy.json denied.")
	var lines []string // sorted as text: a sort for each type would add 10 kB to the program
	for d, n := range m.denied {
		lines = append(lines, fmt.Sprintf("mcp_hub_tool_denied_total{%s} %d\n", formatLabels("server", d.server, "tool", d.tool, "rule", d.rule), n))
	}
	slices.Sort(lines)
	for _, line := range lines {
		b.WriteString(line)
	}
	return b.Bytes()
}

func (m *Metrics) histograms(b *bytes.Buffer, name string, client bool) {
	of := map[string]operation{}
	for op := range m.operations {
		if op.client == client {
			of[formatLabels("mcp_method_name", op.method, "gen_ai_tool_name", op.tool, "error_type", op.errorType)] = op
		}
	}
	for _, l := range slices.Sorted(maps.Keys(of)) {
		h := m.operations[of[l]]
		var sum uint64
		for i, n := range h.counts {
			sum += n
			le := "+Inf"
			if i < len(buckets) {
				le = formatNumber(buckets[i])
			}
			fmt.Fprintf(b, "%s_bucket{%s,le=%q} %d\n", name, l, le, sum)
		}
		fmt.Fprintf(b, "%s_sum{%s} %s\n%s_count{%s} %d\n", name, l, formatNumber(h.sum), name, l, sum)
	}
}

func writeFamily(b *bytes.Buffer, name, kind, help string) {
	fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

func formatNumber(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }

var escape = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// formatLabels returns name="value" pairs; the format requires UTF-8 and knows only these three escapes.
func formatLabels(pairs ...string) string {
	var b strings.Builder
	for i := 0; i+1 < len(pairs); i += 2 {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(pairs[i] + `="` + escape.Replace(strings.ToValidUTF8(pairs[i+1], "\uFFFD")) + `"`)
	}
	return b.String()
}
