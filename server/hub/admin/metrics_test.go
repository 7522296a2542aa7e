package admin

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slimctl/slimctl/server/hub/upstream"
)

var (
	metricName = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*`)
	labelPair  = regexp.MustCompile(`^([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"`)
)

// strict reads the Prometheus text format 0.0.4 as its grammar has it and gives each series' value. It refuses what
// Prometheus' own parser does: a family twice or torn apart, a series twice, a type that comes after its samples, a
// sample of another family, buckets that fall, and a +Inf bucket that is not the count.
func strict(t *testing.T, text string) map[string]float64 {
	t.Helper()
	series, families := map[string]float64{}, map[string]string{}
	current, buckets := "", map[string][]float64{} // bucket bounds and values in turn, by the rest of the labels
	if !strings.HasSuffix(text, "\n") {
		t.Error("the last line has no end")
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, kind, _ := strings.Cut(rest, " ")
			if families[name] != "" || !slices.Contains([]string{"counter", "gauge", "histogram"}, kind) {
				t.Errorf("%q", line)
			}
			families[name], current = kind, name
			continue
		}
		if strings.HasPrefix(line, "# HELP ") {
			continue
		}
		name := metricName.FindString(line)
		base := name
		if families[current] == "histogram" {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				base = strings.TrimSuffix(base, suffix)
			}
		}
		if name == "" || base != current {
			t.Errorf("%q is not in its family %q", line, current)
		}
		rest := strings.TrimPrefix(line[len(name):], "{")
		labels, le := []string{}, ""
		for !strings.HasPrefix(rest, "}") {
			m := labelPair.FindStringSubmatch(rest)
			if m == nil {
				t.Fatalf("%q: no label at %q", line, rest)
			}
			if m[1] == "le" {
				le = m[2]
			} else {
				labels = append(labels, m[0])
			}
			rest = strings.TrimPrefix(rest[len(m[0]):], ",")
		}
		slices.Sort(labels)
		value, err := strconv.ParseFloat(strings.TrimPrefix(rest, "} "), 64)
		key := name + "{" + strings.Join(labels, ",") + "}" + le
		if _, twice := series[key]; err != nil || twice || value < 0 || math.IsNaN(value) {
			t.Errorf("%q: %v, twice: %v", line, err, twice)
		}
		series[key] = value
		id := base + strings.Join(labels, ",")
		if le != "" {
			bound, err := strconv.ParseFloat(le, 64)
			if have := buckets[id]; err != nil || len(have) > 0 && (bound <= have[len(have)-2] || value < have[len(have)-1]) {
				t.Errorf("%q: the buckets fall", line)
			}
			buckets[id] = append(buckets[id], bound, value)
		}
		if strings.HasSuffix(name, "_count") && families[current] == "histogram" {
			if have := buckets[id]; len(have) < 2 || !math.IsInf(have[len(have)-2], 1) || have[len(have)-1] != value {
				t.Errorf("%q: not the count of the +Inf bucket", line)
			}
		}
	}
	return series
}

func TestMetrics(t *testing.T) {
	m := NewMetrics()
	empty := strict(t, string(m.formatText(nil)))
	if len(empty) != 0 {
		t.Errorf("%v", empty)
	}
	m.Operation(false, "tools/call", "read", "", 10*time.Millisecond) // a bound is in its bucket
	m.Operation(false, "tools/call", "read", "", 11*time.Millisecond)
	m.Operation(false, "tools/call", "read", "tool_error", time.Hour)
	m.Operation(true, "tools/call", "read", "-32603", 3*time.Second)
	m.Operation(false, "tools/list", "not a tool's operation", "", -time.Second)
	m.Denied("files", "read", "arguments.path")
	m.Denied("files", "read", "arguments.path")
	m.Denied("a\"b\\c\nd\xff", "x", "y")
	got := strict(t, string(m.formatText(newFake().Servers())))
	const ok = `{error_type="",gen_ai_tool_name="read",mcp_method_name="tools/call"}`
	const failed = `{error_type="tool_error",gen_ai_tool_name="read",mcp_method_name="tools/call"}`
	for key, want := range map[string]float64{
		"mcp_server_operation_duration_seconds_bucket" + ok + "0.01":                                                            1,
		"mcp_server_operation_duration_seconds_bucket" + ok + "0.02":                                                            2,
		"mcp_server_operation_duration_seconds_bucket" + ok + "300":                                                             2,
		"mcp_server_operation_duration_seconds_bucket" + ok + "+Inf":                                                            2,
		"mcp_server_operation_duration_seconds_count" + ok:                                                                      2,
		"mcp_server_operation_duration_seconds_sum" + ok:                                                                        0.021,
		"mcp_server_operation_duration_seconds_bucket" + failed + "300":                                                         0,
		"mcp_server_operation_duration_seconds_bucket" + failed + "+Inf":                                                        1,
		`mcp_client_operation_duration_seconds_count{error_type="-32603",gen_ai_tool_name="read",mcp_method_name="tools/call"}`: 1,
		`mcp_server_operation_duration_seconds_sum{error_type="",gen_ai_tool_name="",mcp_method_name="tools/list"}`:             0,
		`mcp_hub_server_state{server="files",state="error"}`:                                                                    1,
		`mcp_hub_server_state{server="files",state="running"}`:                                                                  0,
		`mcp_hub_server_state{server="browser_shell",state="running"}`:                                                          1,
		`mcp_hub_server_restarts_total{server="files"}`:                                                                         3,
		`mcp_hub_tool_denied_total{rule="arguments.path",server="files",tool="read"}`:                                           2,
		`mcp_hub_tool_denied_total{rule="y",server="a\"b\\c\nd` + "\ufffd" + `",tool="x"}`:                                      1,
	} {
		if have, ok := got[key]; !ok || math.Abs(have-want) > 1e-9 {
			t.Errorf("%s: %v, not %v", key, have, want)
		}
	}
}

// TestCardinality: clients make up methods, servers names of tools and codes of errors; none makes the text grow for ever.
func TestCardinality(t *testing.T) {
	m := NewMetrics()
	secret := "http://example.test/?session=1234"
	for i := range 20000 {
		m.Operation(i%2 == 0, fmt.Sprintf("%s/%d", secret, i), "x", "", time.Second)
		m.Operation(i%2 == 0, "tools/call", fmt.Sprintf("tool-%d", i), strconv.Itoa(-i), time.Second)
		m.Operation(false, "tools/list", fmt.Sprintf("tool-%d", i), strconv.Itoa(-32800+i), time.Second)
		m.Denied("s", fmt.Sprintf("other-%d", i), "tool.blocked")
	}
	m.Operation(false, "tools/call", strings.Repeat("x", 1000), "", time.Second)
	text := string(m.formatText([]upstream.Status{{Name: "s", State: upstream.Running}}))
	got := strict(t, text)
	if most := (2*maxTools + 100) * (len(buckets) + 3); len(got) > most {
		t.Errorf("%d series, more than %d", len(got), most)
	}
	if strings.Contains(text, "example.test") {
		t.Error("a method that a client made up is a label")
	}
	if !strings.Contains(text, `mcp_method_name="_OTHER"`) || !strings.Contains(text, `gen_ai_tool_name="_OTHER"`) || !strings.Contains(text, `error_type="_OTHER"`) {
		t.Error("what is too much is not counted together")
	}
}

func BenchmarkOperation(b *testing.B) {
	m := NewMetrics()
	b.ReportAllocs()
	for b.Loop() {
		m.Operation(false, "tools/call", "browser-shell", "", 30*time.Millisecond)
	}
}

// TestDocs: the guide names every metric.
func TestDocs(t *testing.T) {
	doc, err := os.ReadFile(filepath.FromSlash("../hub.md"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(NewMetrics().formatText(nil))
	names := regexp.MustCompile(`(?m)^# TYPE (\S+)`).FindAllStringSubmatch(text, -1)
	if len(names) != 5 {
		t.Errorf("%d metrics", len(names))
	}
	for _, name := range names {
		if !strings.Contains(string(doc), "`"+name[1]+"`") {
			t.Errorf("docs/hub.md does not tell of %s", name[1])
		}
	}
}
