// Package output is what happens to agent-browser's output between the run and
// the answer: Normalise makes data or words of it, a Redactor hides secrets,
// and Truncate bounds it, in this order.
package output

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Run is a finished run of agent-browser.
type Run struct {
	Stdout, Stderr []byte
	ExitCode       int
}

// Exit codes that Normalise gives where agent-browser's own was 0.
const (
	ExitFailed   = 1  // it reported failure
	ExitProtocol = 70 // it did not answer with the JSON that it promises
)

// Normalise gives the data of a success as one line of JSON, or words in
// stderr and an exit code other than 0. Nothing but the promised JSON (one
// object, no key twice, at most 200 levels) passes as data. Request arguments
// are not echoed: data is without those that agent-browser repeats by itself,
// and "[argument]" takes the place of each of args (positionals and values of
// options, from 4 bytes on, but for references such as @e12) in agent-browser's
// words, of which 64 KiB are kept, without stack traces. subcommand is the one
// that ran.
func Normalise(subcommand string, args []string, run Run) (stdout, stderr string, exitCode int) {
	echoes := newEchoes(args)
	words := echoes.words(string(run.Stderr))
	data, reported, err := readAnswer(valid(string(run.Stdout)))
	switch {
	case err != nil:
		return "", joinLines("agent-browser gave no valid answer: "+err.Error(), words), orElse(run.ExitCode, ExitProtocol)
	case data == nil:
		if ref := staleReference(args, reported); ref != "" {
			reported = ref + " is not in the last snapshot; take snapshot -i"
		} else if reported = echoes.words(reported); strings.TrimSpace(reported) == "" {
			reported = noReason
		}
		return "", joinLines(reported, words), orElse(run.ExitCode, ExitFailed)
	case run.ExitCode != 0:
		why := fmt.Sprintf("agent-browser exited with %d although it reported success; take a snapshot to see the page's state", run.ExitCode)
		return "", joinLines(why, words), run.ExitCode
	}
	data.drop("lifecycle") // the native daemon's own state
	withoutEchoes(subcommand, data)
	data.eachString(wholeRunes)
	return data.String() + "\n", joinLines(words), 0
}

// staleReference gives the reference among args that the program's words say
// it does not know; of the native one "Unknown ref: e99", of 0.8 that its
// selector engine cannot read "@e99".
func staleReference(args []string, reported string) string {
	for _, arg := range args {
		if !isReference.MatchString(arg) {
			continue
		}
		bare := strings.TrimPrefix(arg, "@")
		if strings.HasPrefix(reported, "Unknown ref: "+bare) || strings.Contains(reported, `Unsupported token "@`+bare+`"`) {
			return "@" + bare
		}
	}
	return ""
}

func orElse(code, other int) int {
	if code == 0 {
		return other
	}
	return code
}

const noReason = "agent-browser reported failure without a reason"

// readAnswer gives the data of a success, or nil and the reason of a failure, if
// there is one.
func readAnswer(out string) (data *node, reported string, err error) {
	if strings.TrimSpace(out) == "" {
		return nil, "", errors.New("it printed nothing")
	}
	answer, err := parse(out, true)
	if err != nil || answer.kind != '{' {
		why := "what it printed is not one JSON object"
		if err != nil && !errors.Is(err, errNotJSON) {
			why += ": " + err.Error()
		}
		return nil, "", errors.New(why)
	}
	success := answer.member("success")
	if success == nil || success.raw != "true" && success.raw != "false" {
		return nil, "", errors.New("it did not say whether the command succeeded")
	}
	if success.raw == "false" {
		if e := answer.member("error"); e != nil && e.kind == '"' {
			reported = unquote(e.raw)
		}
		return nil, reported, nil
	}
	if data = answer.member("data"); data == nil {
		return nil, "", errors.New("it reported success without data")
	}
	return data, "", nil
}

// done has, for a subcommand, the key under which agent-browser 0.8 says true
// and the native one repeats the selector, or even the text that was typed.
var done = map[string]string{
	"click": "clicked", "dblclick": "clicked", "fill": "filled", "type": "typed", "press": "pressed",
	"check": "checked", "uncheck": "unchecked", "hover": "hovered", "focus": "focused",
}

// withoutEchoes takes request arguments out of the data. A text under the
// subcommand's own key becomes true; the values under `selected` become their
// number (0 says that none fitted); of `wait` stays what was waited for.
func withoutEchoes(subcommand string, data *node) {
	if key, ok := done[subcommand]; ok {
		data.drop("selector", "text", "value", "key", "ref")
		if v := data.member(key); v != nil && v.raw != "false" {
			*v = node{raw: "true"}
		}
	}
	switch subcommand {
	case "snapshot":
		data.drop("refs") // the tree has them too
	case "select":
		data.drop("selector", "value", "values", "ref")
		if v := data.member("selected"); v != nil {
			n := 1
			if v.kind == '[' {
				n = len(v.kids)
			}
			*v = node{raw: strconv.Itoa(n)}
		}
	case "wait":
		if w := data.member("waited"); w != nil && w.raw == `"url"` {
			data.drop("url") // the pattern; agent-browser 0.8 gives the page's address
		}
		data.drop("selector", "text", "ms", "pattern")
	}
}

func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// joinLines puts each part on lines of its own.
func joinLines(parts ...string) string {
	var b strings.Builder
	for _, p := range parts {
		if p = strings.TrimSpace(p); p != "" {
			b.WriteString(p + "\n")
		}
	}
	return b.String()
}
