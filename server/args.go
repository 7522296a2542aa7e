package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/slimctl/slimctl/server/policy"
)

// Call is one well-formed request.
type Call struct {
	SessionID string
	Argv      []string
	Timeout   time.Duration
}

var sessionID = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,64}$`)

// parseCall reads the tool's arguments. The session id comes back also with a
// refusal, when it is well-formed.
func parseCall(raw json.RawMessage, limits policy.Limits) (Call, *policy.Refusal) {
	args, err := decodeObject(raw)
	if err != nil {
		return Call{}, invalid("args.object", "%s", err)
	}
	var c Call
	var r *policy.Refusal
	if c.SessionID, r = parseSession(args["session_id"]); r != nil {
		return Call{}, r
	}
	for key := range args {
		if key != "session_id" && key != "argv" && key != "timeout_sec" {
			return c, invalid("args.unknown-key", "only session_id, argv and timeout_sec are known (in this spelling); remove the rest")
		}
	}
	if c.Argv, r = parseArgv(args["argv"]); r != nil {
		return c, r
	}
	c.Timeout, r = parseTimeout(args["timeout_sec"], limits)
	return c, r
}

func invalid(rule, format string, args ...any) *policy.Refusal {
	return &policy.Refusal{Code: policy.InvalidParams, Rule: rule, Message: fmt.Sprintf(format, args...)}
}

func parseSession(raw json.RawMessage) (string, *policy.Refusal) {
	var s *string
	if json.Unmarshal(raw, &s) != nil || s == nil {
		return "", invalid("session.format", "session_id must be a string of 1 to 64 letters, digits, `.`, `_` or `-`")
	}
	if strings.ContainsAny(*s, "/\\\x00") {
		return "", &policy.Refusal{Code: policy.SandboxViolation, Rule: "session.path", Message: "session_id is a name, not a path: 1 to 64 letters, digits, `.`, `_` or `-`"}
	}
	if !sessionID.MatchString(*s) {
		return "", invalid("session.format", "session_id must be 1 to 64 letters, digits, `.`, `_` or `-`")
	}
	return *s, nil
}

func parseArgv(raw json.RawMessage) ([]string, *policy.Refusal) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var elems []any
	if err := dec.Decode(&elems); err != nil || elems == nil {
		return nil, invalid("argv.type", "argv must be an array of strings, numbers or booleans, for instance [\"open\",\"https://example.com\"]")
	}
	argv := make([]string, len(elems))
	for i, e := range elems {
		switch v := e.(type) {
		case string:
			argv[i] = v
		case json.Number:
			argv[i] = v.String()
		case bool:
			argv[i] = strconv.FormatBool(v)
		default:
			return nil, invalid("argv.type", "argv[%d] must be a string, a number or a boolean", i)
		}
	}
	return argv, nil
}

func parseTimeout(raw json.RawMessage, limits policy.Limits) (time.Duration, *policy.Refusal) {
	if raw == nil {
		return time.Duration(limits.TimeoutSec) * time.Second, nil
	}
	var n *float64
	if json.Unmarshal(raw, &n) != nil || n == nil || *n != math.Trunc(*n) || *n < 1 || *n > float64(limits.MaxTimeoutSec) {
		return 0, invalid("args.timeout", "timeout_sec must be a whole number from 1 to %d", limits.MaxTimeoutSec)
	}
	return time.Duration(*n) * time.Second, nil
}

// decodeObject reads one JSON object with exact, unrepeated keys, which
// encoding/json does not insist on.
func decodeObject(raw json.RawMessage) (map[string]json.RawMessage, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	if tok, err := dec.Token(); err != nil || tok != json.Delim('{') {
		return nil, errors.New("the arguments must be an object with session_id and argv")
	}
	out := map[string]json.RawMessage{}
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return nil, errors.New("the arguments are not valid JSON")
		}
		key, _ := tok.(string) // the decoder yields only strings here
		if _, twice := out[key]; twice {
			return nil, errors.New("a key is given twice; give each key once")
		}
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return nil, errors.New("the arguments are not valid JSON")
		}
		out[key] = v
	}
	if _, err := dec.Token(); err != nil {
		return nil, errors.New("the arguments are not valid JSON")
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("there is text after the arguments")
	}
	return out, nil
}
