// Package output processes agent-browser's output for the answer. Normalise converts it to data or an error text, a
// Redactor hides secrets, and Truncate limits the size, in this order.
package output

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/slimctl/slimctl/internal/lazyregexp"
)

// Run is a finished run of agent-browser.
type Run struct {
	Stdout, Stderr []byte
	ExitCode       int
}

// Exit codes of Normalise if agent-browser's own was 0.
const (
	ExitFailed   = 1  // it reported failure
	ExitProtocol = 70 // it did not print the promised JSON
)

// Normalise returns the data of a success as one line of JSON, or an error text in stderr and an exit code other than
// 0. Data must be the promised JSON: one object, no repeated key, at most 200 levels.
//
// Request arguments are not echoed. Normalise removes those that agent-browser repeats in the data. In its texts
// "[argument]" replaces each of args: positionals and values of options, from 4 bytes on, except references such as
// @e12. 64 KiB of a text are kept, without stack traces. subcommand is the executed one.
func Normalise(subcommand string, args []string, run Run) (stdout, stderr string, exitCode int) {
	echoes := newEchoes(args)
	words := echoes.words(string(run.Stderr))
	data, reported, err := readAnswer(valid(string(run.Stdout)))
	switch {
	case err != nil:
		return "", joinLines("agent-browser gave no valid answer: "+err.Error(), words), orElse(run.ExitCode, ExitProtocol)
	case data == nil:
		if ref := staleReference(args, reported); ref != "" {
			reported = ref + NotInSnapshot
		} else if strings.HasPrefix(reported, "page.") && ownLimit.MatchString(reported) || strings.Contains(reported, noResponse) {
			reported = "agent-browser gave up before the call's timeout (0.8 to 0.19 after 10 seconds, later versions after 30); the page may still be loading: send wait --load load, then take a snapshot"
		} else if reported = echoes.words(reported); strings.TrimSpace(reported) == "" {
			reported = noReason
		}
		return "", joinLines(reported, words), orElse(run.ExitCode, ExitFailed)
	case run.ExitCode != 0:
		why := fmt.Sprintf("agent-browser exited with %d although it reported success; take a snapshot to see the page's state", run.ExitCode)
		return "", joinLines(why, words), run.ExitCode
	}
	dropMembers(data, "lifecycle", "targetId") // the native daemon's internal state
	withoutEchoes(subcommand, data)
	return format(*data) + "\n", joinLines(words), 0
}

// NotInSnapshot follows a reference that isn't valid any more.
const NotInSnapshot = " is not in the last snapshot; take snapshot -i"

// ownLimit matches the texts of a time limit of agent-browser itself: Playwright's and the native one's.
var ownLimit = lazyregexp.New(`Timeout [0-9]+ms exceeded|^Wait timed out after [0-9]+ms`)

// noResponse is part of the native program's text when its daemon has not answered for 30 s.
const noResponse = "reached the daemon but no response came back"

// TimedOut reports whether a run failed by a time limit of agent-browser itself.
func TimedOut(run Run) bool {
	data, reported, err := readAnswer(valid(string(run.Stdout)))
	return err == nil && data == nil && ownLimit.MatchString(reported)
}

// staleReference returns the reference among args that the program's text calls unknown: the native one prints "Unknown
// ref: e99", 0.8 that its selector engine can't parse "@e99".
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

// readAnswer returns the data of a success. Otherwise it returns nil and the reason for a failure, if there is one.
func readAnswer(out string) (data *node, reported string, err error) {
	if strings.TrimSpace(out) == "" {
		return nil, "", errors.New("its stdout is empty")
	}
	answer, err := parse(out)
	if err != nil || answer.Members == nil {
		return nil, "", errors.New("its stdout is not one JSON object of at most 200 levels with each key once")
	}
	success := findMember(&answer, "success")
	if success == nil || success.Value != true && success.Value != false {
		return nil, "", errors.New("its JSON object has no \"success\" of true or false")
	}
	if success.Value == false {
		if e := findMember(&answer, "error"); e != nil {
			reported, _ = e.Value.(string)
		}
		return nil, reported, nil
	}
	if data = findMember(&answer, "data"); data == nil {
		return nil, "", errors.New("its JSON object reports success and has no \"data\"")
	}
	return data, "", nil
}

// done maps a subcommand to the key under which agent-browser 0.8 prints true and the native one repeats the selector,
// or even the typed text.
var done = map[string]string{
	"click": "clicked", "dblclick": "clicked", "fill": "filled", "type": "typed", "press": "pressed",
	"check": "checked", "uncheck": "unchecked", "hover": "hovered", "focus": "focused",
}

// withoutEchoes removes request arguments from the data. A text under the subcommand's own key becomes true. The values
// under `selected` become their number (0: none matched). For `wait` the kind of the condition remains.
func withoutEchoes(subcommand string, data *node) {
	if key, ok := done[subcommand]; ok {
		dropMembers(data, "selector", "text", "value", "key", "ref")
		if v := findMember(data, key); v != nil && v.Value != false {
			*v = node{Raw: []byte("true")}
		}
	}
	switch subcommand {
	case "snapshot":
		dropMembers(data, "refs") // the tree has them too
	case "select":
		dropMembers(data, "selector", "value", "values", "ref")
		if v := findMember(data, "selected"); v != nil {
			n := 1
			if v.Items != nil {
				n = len(v.Items)
			}
			*v = node{Raw: []byte(strconv.Itoa(n))}
		}
	case "wait":
		if w := findMember(data, "waited"); w != nil && w.Value == "url" {
			dropMembers(data, "url") // the pattern; agent-browser 0.8 prints the page's address
		}
		dropMembers(data, "selector", "text", "ms", "pattern")
	}
}

func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// joinLines joins the parts, each on lines of its own.
func joinLines(parts ...string) string {
	var b strings.Builder
	for _, p := range parts {
		if p = strings.TrimSpace(p); p != "" {
			b.WriteString(p + "\n")
		}
	}
	return b.String()
}
