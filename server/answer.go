package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// cliAnswer is what agent-browser prints with --json.
type cliAnswer struct {
	Success *bool           `json:"success"`
	Data    json.RawMessage `json:"data"`
	Error   json.RawMessage `json:"error"`
}

// normalise turns a finished run into a result: data-only stdout on success,
// words in stderr otherwise. Nothing that is not the promised JSON passes as
// data, and exit_code is 0 only for a success.
func normalise(id string, run runResult) Result {
	res := Result{SessionID: id, ExitCode: run.exitCode, Stderr: clean(run.stderr)}
	a, err := readAnswer(run.stdout)
	switch {
	case err != nil:
		if res.ExitCode == 0 {
			res.ExitCode = exitProtocol
		}
		res.Stderr = joinLines("agent-browser gave no valid answer: "+err.Error(), res.Stderr)
	case !*a.Success:
		if res.ExitCode == 0 {
			res.ExitCode = exitFailed
		}
		res.Stderr = joinLines(a.message(), res.Stderr)
	case res.ExitCode != 0:
		res.Stderr = joinLines(fmt.Sprintf("agent-browser exited with %d although it reported success; take a snapshot to see the page's state", res.ExitCode), res.Stderr)
	default:
		res.Stdout = string(a.Data) + "\n"
	}
	return res
}

// readAnswer insists on one JSON object with success and, on success, data.
func readAnswer(out []byte) (cliAnswer, error) {
	out = bytes.TrimSpace(out)
	if len(out) == 0 {
		return cliAnswer{}, fmt.Errorf("it printed nothing")
	}
	keys, err := decodeObject(bytes.ToValidUTF8(out, []byte("\uFFFD")))
	if err != nil {
		return cliAnswer{}, fmt.Errorf("what it printed is not one JSON object")
	}
	a := cliAnswer{Data: keys["data"], Error: keys["error"]}
	if json.Unmarshal(keys["success"], &a.Success) != nil || a.Success == nil {
		return cliAnswer{}, fmt.Errorf("it did not say whether the command succeeded")
	}
	if !*a.Success {
		return a, nil
	}
	if a.Data == nil {
		return cliAnswer{}, fmt.Errorf("it reported success without data")
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, a.Data); err != nil {
		return cliAnswer{}, fmt.Errorf("its data is not JSON")
	}
	a.Data = compact.Bytes()
	return a, nil
}

func (a cliAnswer) message() string {
	var s string
	if json.Unmarshal(a.Error, &s) != nil || strings.TrimSpace(s) == "" {
		return "agent-browser reported failure without a reason"
	}
	return s
}

// maxStderr bounds the words of a result.
const maxStderr = 30 << 10

func clean(b []byte) string {
	return strings.ToValidUTF8(string(b), "\uFFFD")
}

// joinLines puts the reason first and each part on its own line, within
// maxStderr.
func joinLines(parts ...string) string {
	var b strings.Builder
	for _, p := range parts {
		if p = strings.TrimSpace(p); p != "" {
			b.WriteString(p + "\n")
		}
	}
	s := b.String()
	if len(s) <= maxStderr {
		return s
	}
	return strings.ToValidUTF8(s[:maxStderr], "") + fmt.Sprintf("\n[%d bytes cut]\n", len(s)-maxStderr)
}
