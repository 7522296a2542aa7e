package output

import (
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/slimctl/slimctl/internal/need"
)

// TestNormalise: only a success with data yields stdout and exit code 0.
func TestNormalise(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	tests := []struct {
		name, stdout, stderr string
		exit, want           int
		data, words          string // exact stdout; part of stderr
	}{
		{"success", `{"success":true,"data":{"b":1, "a":"<é>"},"error":null}` + "\n", "", 0, 0, "{\"b\":1,\"a\":\"<é>\"}\n", ""},
		{"large number kept", `{"success":true,"data":{"n":12345678901234567890, "f":1.50e+3}}`, "", 0, 0, "{\"n\":12345678901234567890,\"f\":1.50e+3}\n", ""},
		{"null data", `{"success":true,"data":null}`, "", 0, 0, "null\n", ""},
		{"list", `{"success":true,"data":[1, {}, []]}`, "", 0, 0, "[1,{},[]]\n", ""},
		{"warning", `{"success":true,"data":{}}`, "careful\n", 0, 0, "{}\n", "careful"},
		{"lifecycle", `{"success":true,"data":{"lifecycle":{"launched":false},"title":"x","lifecycl\u0065":1}}`, "", 0, 70, "", "each key once"},
		{"lifecycle dropped", `{"success":true,"data":{"a":{"lifecycle":1},"lifecycl\u0065":{"launched":false},"title":"x"}}`, "", 0, 0, "{\"a\":{\"lifecycle\":1},\"title\":\"x\"}\n", ""},
		{"failure", `{"success":false,"data":null,"error":"no such element"}`, "", 1, 1, "", "no such element\n"},
		{"failure with exit 0", `{"success":false,"error":"x"}`, "", 0, 1, "", "x"},
		{"failure with data", `{"success":false,"data":{"secret":1},"error":"x"}`, "", 1, 1, "", "x"},
		{"failure without a reason", `{"success":false,"error":{"a":1}}`, "", 1, 1, "", "without a reason"},
		{"success with exit 3", `{"success":true,"data":{"secret":1}}`, "", 3, 3, "", "exited with 3"},
		{"no data", `{"success":true}`, "", 0, 70, "", "no \"data\""},
		{"nothing", "", "", 0, 70, "", "stdout is empty"},
		{"nothing, with a reason", "", "bad config", 1, 1, "", "bad config"},
		{"help text", "Usage: agent-browser", "", 0, 70, "", "not one JSON object"},
		{"cut", `{"success":true,"data":{"a":`, "", 0, 70, "", "not one JSON object"},
		{"unescaped", "{\"success\":false,\"error\":\"a \"b\"\"}", "", 1, 1, "", "not one JSON object"},
		{"two objects", `{"success":true,"data":1}{"success":true,"data":2}`, "", 0, 70, "", "not one JSON object"},
		{"success twice", `{"success":false,"success":true,"data":1}`, "", 0, 70, "", "each key once"},
		{"success twice, escaped", `{"success":false,"s\u0075ccess":true,"data":1}`, "", 0, 70, "", "each key once"},
		{"key twice inside", `{"success":true,"data":{"a":[{"b":1,"b":2}]}}`, "", 0, 70, "", "each key once"},
		{"success in another case", `{"Success":true,"data":1}`, "", 0, 70, "", "no \"success\""},
		{"success as a word", `{"success":"true","data":1}`, "", 0, 70, "", "no \"success\""},
		{"array", `[1]`, "", 0, 70, "", "not one JSON object"},
		{"deep", `{"success":true,"data":` + deep(199) + `}`, "", 0, 0, deep(199) + "\n", ""},
		{"too deep", `{"success":true,"data":` + deep(200) + `}`, "", 0, 70, "", "at most 200 levels"},
		{"far too deep", `{"success":true,"data":` + deep(1<<20) + `}`, "", 0, 70, "", "not one JSON object"},
		{"bad UTF-8", "{\"success\":true,\"data\":\"\xff\"}", "\xff", 0, 0, "\"\ufffd\"\n", "\ufffd"},
		{"lone surrogate", `{"success":true,"data":["\ud800","\ud83d\ude00","\udc00x","\\ud800"]}`, "", 0, 0, "[\"\ufffd\",\"😀\",\"\ufffdx\",\"\\\\ud800\"]\n", ""},
		{"spaces", " \n{\"success\": true , \"data\" : [ 1 , 2 ] }\r\n", "", 0, 0, "[1,2]\n", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			data, words, code := Normalise("get", nil, Run{[]byte(tt.stdout), []byte(tt.stderr), tt.exit})
			if code != tt.want || data != tt.data || !strings.Contains(words, tt.words) || tt.words == "" && words != "" {
				t.Errorf("got %q, %q, %d", data, words, code)
			}
		})
	}
}

// TestOwnLimits: agent-browser's own time limits are told in our words, and those of a wait are known.
func TestOwnLimits(t *testing.T) {
	for reported, tt := range map[string]struct {
		words    string
		timedOut bool
	}{
		"page.goto: Timeout 10000ms exceeded.\nCall log:\n\x1b[2m  - navigating to \"https://a.test/\", waiting until \"load\"\x1b[22m\n":                                              {"send wait --load load", true},
		"Failed to read: Resource temporarily unavailable (os error 11) (the command reached the daemon but no response came back; it may or may not have run, so it was not retried)": {"send wait --load load", false},
		"Wait timed out after 50000ms":                   {"Wait timed out", true},
		"Element not found: Wait timed out after 1ms":    {"Element not found", false},
		"page.goto: net::ERR_ABORTED at https://a.test/": {"ERR_ABORTED", false},
	} {
		run := Run{Stdout: []byte(`{"success":false,"error":` + quote(reported) + `}`), ExitCode: 1}
		_, words, code := Normalise("open", nil, run)
		if code != 1 || !strings.Contains(words, tt.words) || TimedOut(run) != tt.timedOut {
			t.Errorf("%s: %d %s", reported, code, words)
		}
	}
}

// TestNoEcho: the native agent-browser repeats what it was asked; both
// generations read the same.
func TestNoEcho(t *testing.T) {
	for _, tt := range []struct{ command, data, want string }{
		{"click", `{"clicked":"#go"}`, `{"clicked":true}`},
		{"dblclick", `{"clicked":"h1"}`, `{"clicked":true}`},
		{"fill", `{"filled":"#name"}`, `{"filled":true}`},
		{"fill", `{"filled":true}`, `{"filled":true}`},
		{"fill", `{"filled":"#name","text":"s3cret","value":"s3cret"}`, `{"filled":true}`},
		{"type", `{"typed":"s3cret"}`, `{"typed":true}`},
		{"type", `{"typed":{"a":"s3cret"}}`, `{"typed":true}`},
		{"press", `{"pressed":"Tab"}`, `{"pressed":true}`},
		{"check", `{"checked":"#agree"}`, `{"checked":true}`},
		{"check", `{"checked":false}`, `{"checked":false}`},
		{"uncheck", `{"unchecked":"#agree"}`, `{"unchecked":true}`},
		{"hover", `{"hovered":"*"}`, `{"hovered":true}`},
		{"focus", `{"focused":"#name"}`, `{"focused":true}`},
		{"select", `{"selected":["g","s3cret"]}`, `{"selected":2}`},
		{"select", `{"selected":[]}`, `{"selected":0}`},
		{"select", `{"selected":"g"}`, `{"selected":1}`},
		{"wait", `{"selector":"#late","waited":"selector"}`, `{"waited":"selector"}`},
		{"wait", `{"text":"Hello Alice","waited":"text"}`, `{"waited":"text"}`},
		{"wait", `{"ms":200,"waited":"timeout"}`, `{"waited":"timeout"}`},
		{"wait", `{"url":"**/x","waited":"url"}`, `{"waited":"url"}`},
		{"wait", `{"url":"https://example.com/"}`, `{"url":"https://example.com/"}`},
		{"wait", `{"state":"load"}`, `{"state":"load"}`},
		{"open", `{"lifecycle":{},"targetId":"A","title":"T","url":"https://example.com/"}`, `{"title":"T","url":"https://example.com/"}`},
		{"snapshot", `{"origin":"o","refs":{"e1":{"name":"Go","role":"button"}},"snapshot":"- button \"Go\" [ref=e1]"}`, `{"origin":"o","snapshot":"- button \"Go\" [ref=e1]"}`},
		{"get", `{"text":"x","value":"y"}`, `{"text":"x","value":"y"}`},
		{"close", `{"closed":true}`, `{"closed":true}`},
		{"click", `null`, `null`},
		{"wait", `["text"]`, `["text"]`},
	} {
		data, words, code := Normalise(tt.command, nil, Run{Stdout: []byte(`{"success":true,"data":` + tt.data + `}`)})
		if data != tt.want+"\n" || words != "" || code != 0 {
			t.Errorf("%s %s: got %q, %q, %d", tt.command, tt.data, data, words, code)
		}
	}
}

// TestNoArgument: no words of agent-browser hold an argument, in any form, and
// our own words stay whole.
func TestNoArgument(t *testing.T) {
	failed := func(reason string) string { return `{"success":false,"error":` + quote(reason) + `}` }
	const href = "https://site.test:4/?q=marigold-hunter2"
	for name, tt := range map[string]struct {
		args           []string
		stdout, stderr string
		exit           int
		want           string
	}{
		"0.8 open": {
			[]string{href},
			failed("page.goto: net::ERR_CONNECTION_REFUSED at " + href + "\nCall log:\n\x1b[2m  - navigating to \"" + href + "\", waiting until \"load\"\x1b[22m\n\nThen\n    at Frame.goto (/x/y.js:1:2)\n"),
			"", 1, "page.goto: net::ERR_CONNECTION_REFUSED at [argument]\nThen\n",
		},
		"a log only":           {nil, failed("Call log:\n  - x"), "", 1, "agent-browser reported failure without a reason\n"},
		"0.41 click":           {[]string{"#marigold > b"}, failed("Element not found: #marigold > b. Try a snapshot."), "", 1, "Element not found: [argument]. Try a snapshot.\n"},
		"0.41 select":          {[]string{"#s", `mari"gold`, "hunter22"}, failed(`No option matched ["mari\"gold", "hunter22"]`), "", 1, `No option matched ["[argument]", "[argument]"]` + "\n"},
		"stderr of a success":  {[]string{"marigold"}, `{"success":true,"data":{"title":"marigold"}}`, "slow: marigold", 0, "slow: [argument]\n"},
		"of no answer":         {[]string{"marigold", "valid answer"}, "", "bad marigold", 1, "agent-browser gave no valid answer: its stdout is empty\nbad [argument]\n"},
		"of a late failure":    {[]string{"marigold", "snapshot"}, `{"success":true,"data":1}`, "bad marigold", 3, "agent-browser exited with 3 although it reported success; take a snapshot to see the page's state\nbad [argument]\n"},
		"our reason":           {[]string{"agent-browser"}, failed(" "), "", 1, "agent-browser reported failure without a reason\n"},
		"slash at the end":     {[]string{"https://site.test/"}, failed("at https://site.test/ or https://site.test."), "", 1, "at [argument] or [argument].\n"},
		"in a URL":             {[]string{"mari gold/é"}, failed("x?a=mari+gold%2F%C3%A9 mari%20gold%2f%c3%a9 mari%20gold/%C3%A9"), "", 1, "x?a=[argument] [argument] [argument]\n"},
		"decoded":              {[]string{"https://site.test/mari%20gold"}, failed("at https://site.test/mari gold"), "", 1, "at [argument]\n"},
		"quoted and in HTML":   {[]string{"<mari>\n\"gold\" é"}, failed(`a "<mari>\n\"gold\" é" "<mari>\n\"gold\" \u00e9" &lt;mari&gt;` + "\n" + `&#34;gold&#34; é`), "", 1, `a "[argument]" "[argument]" [argument]` + "\n"},
		"overlapping":          {[]string{"marigold", "goldfish", "gold"}, failed("a marigoldfish gold marimarigoldgold"), "", 1, "a [argument] [argument] mari[argument]\n"},
		"blanks around it":     {[]string{"  marigold\n"}, failed("no 'marigold'"), "", 1, "no '[argument]'\n"},
		"short and references": {[]string{"a", "not", "@e12", "e1234"}, failed("not a @e12 e1234"), "", 1, "not a @e12 e1234\n"},
		"0.41 stale reference": {[]string{"@e99"}, failed("Unknown ref: e99"), "", 1, "@e99 is not in the last snapshot; take snapshot -i\n"},
		"0.8 stale reference":  {[]string{"@e99", "x"}, failed(`locator.fill: Unsupported token "@e99" while parsing css selector "@e99". Did you mean to CSS.escape it?`), "", 1, "@e99 is not in the last snapshot; take snapshot -i\n"},
		"another reference":    {[]string{"@e9"}, failed(`Unsupported token "@e99"`), "", 1, `Unsupported token "@e99"` + "\n"},
		"itself a marker":      {[]string{"[argument]", "argument"}, failed("x [argument] argument"), "", 1, "x [argument] [argument]\n"},
	} {
		t.Run(name, func(t *testing.T) {
			_, words, _ := Normalise("open", tt.args, Run{[]byte(tt.stdout), []byte(tt.stderr), tt.exit})
			if words != tt.want {
				t.Errorf("got  %q\nwant %q", words, tt.want)
			}
		})
	}
}

// TestLongWords: an argument at the place of the cut is not shown in part, and
// arguments and words of any length take bounded time.
func TestLongWords(t *testing.T) {
	const arg = "marigold-hunter2"
	for _, before := range []int{maxWords - len(arg), maxWords - len(arg) + 1, maxWords - 5, maxWords - 1, maxWords} {
		text := strings.Repeat("x", before) + arg + strings.Repeat("y", 100)
		_, words, _ := Normalise("open", []string{arg}, Run{Stderr: []byte(text), ExitCode: 1})
		if strings.Contains(words, "xm") || len(words) > maxWords+200 {
			t.Errorf("%d: %d bytes, %q", before, len(words), words[len(words)-40:])
		}
	}
	hard := strings.Repeat("a", 32<<10)
	args := []string{hard + "b", "b" + hard[1:], hard[:len(hard)/2] + "b" + hard[len(hard)/2:]}
	for i := range 60 {
		args = append(args, strings.Repeat("a", 500+i)+"é<b")
	}
	run := Run{Stderr: []byte(strings.Repeat("a", 8<<20)), ExitCode: 1}
	if took := need.CPU(t, func() { Normalise("open", args, run) }); took > 3*time.Second {
		t.Errorf("it takes %s", took)
	}
}

func FuzzNormalise(f *testing.F) {
	for _, s := range []string{
		`{"success":true,"data":{"typed":"x"}}`, `{"success":false,"error":"x"}`, `{"success":true,"data":["\ud800\u0041"]}`,
		`{"success":true,"data":{"snapshot":"- a [ref=e1]\n","refs":{"e1":{}}}}`, `{"success":true,"data":1e999}`, "\xff{}", `{"success":true,"success":false}`,
	} {
		f.Add("type", "success", s, "", 0)
		f.Add("wait", "a \"b\"", s, "w a \"b\"", 1)
	}
	f.Add("open", "https://a.test/x/", `{"success":false,"error":"at https://a.test/x"}`, "https%3A%2F%2Fa.test%2Fx", 1)
	f.Fuzz(func(t *testing.T, command, arg, stdout, stderr string, code int) {
		data, words, got := Normalise(command, []string{arg, command}, Run{[]byte(stdout), []byte(stderr), code})
		if (got == 0) != (data != "") || code != 0 && got != code {
			t.Errorf("%q, %q, %d", data, words, got)
		}
		// Words of agent-browser alone, on which nothing of ours is put.
		_, alone, _ := Normalise("open", []string{arg}, Run{Stdout: []byte(`{"success":false,"error":` + quote(stderr) + `}`)})
		for _, form := range []string{arg, url.QueryEscape(arg), strconv.Quote(arg)} {
			if len(arg) < minArgument || isReference.MatchString(arg) || strings.ContainsAny(form, " \t\r\n") || strings.Contains(noReason, form) || !utf8.ValidString(arg) {
				continue
			}
			for piece := range strings.SplitSeq(alone, argMarker) {
				if strings.Contains(piece, form) {
					t.Errorf("%q is in %q", form, piece)
				}
			}
		}
		if data == "" {
			if words == "" {
				t.Error("a failure without words")
			}
			return
		}
		if !json.Valid([]byte(data)) || strings.ToValidUTF8(data, "") != data || !strings.HasSuffix(data, "\n") || strings.Count(data, "\n") != 1 {
			t.Errorf("data %q", data)
		}
		again, _, _ := Normalise(command, nil, Run{Stdout: []byte(`{"success":true,"data":` + data + `}`)})
		if command != "select" && again != data {
			t.Errorf("%q becomes %q", data, again)
		}
		n, err := parse(data)
		if err != nil || format(n)+"\n" != data {
			t.Errorf("%q is read as %q, %v", data, format(n), err)
		}
	})
}
