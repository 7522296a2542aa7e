package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/slimctl/slimctl/server/policy"
	"github.com/slimctl/slimctl/server/protocol"
	"github.com/slimctl/slimctl/server/strictjson"
)

// validate parses the tool's arguments and checks argv against the grammar.
type validate struct {
	pass
	policy     *policy.Policy
	generation func(context.Context) (policy.Generation, error)
}

func (v validate) OnBefore(ctx context.Context, c Call) (Call, Decision) {
	if c.Tool != v.policy.ToolName {
		return c, deny(policy.NoExecutor(v.policy.ToolName))
	}
	c, r := v.parseArguments(c)
	if r != nil {
		return c, deny(r)
	}
	ctx, cancel := c.deadline(ctx)
	defer cancel()
	c.Generation, c.missing = v.generation(ctx)
	if c.missing != nil {
		c.Generation = policy.Node // the narrower grammar
	}
	c.Argv = policy.Canonical(c.Argv)
	within := *v.policy
	within.Limits.MaxTimeoutSec = int(c.Timeout / time.Second)
	c.Command, r = within.Check(c.Generation, c.Argv)
	return c, deny(r)
}

func deny(r *policy.Refusal) Decision { return Decision{Refusal: r} }

var (
	argvKeys   = map[string]bool{"session_id": true, "argv": true, "timeout_sec": true}
	compatKeys = map[string]bool{"session_id": true, "cmd": true, "timeout": true}
)

// compatSession is the session id for clients that don't send one.
const compatSession = "default"

// parseArguments sets the call's session, argv and timeout. With a refusal it still sets the session id if that is
// well-formed.
func (v validate) parseArguments(c Call) (Call, *policy.Refusal) {
	compat := c.Tool == policy.CompatName
	args, err := readArguments(c.Arguments)
	if err != nil {
		return c, invalidRefusal("args.object", "%s", err)
	}
	var r *policy.Refusal
	if id := args["session_id"]; compat && id.Raw == nil {
		c.SessionID, c.unnamed = compatSession, true
	} else if c.SessionID, r = parseSession(id); r != nil {
		return c, r
	}
	keys, timeout := argvKeys, args["timeout_sec"]
	if compat {
		keys, timeout = compatKeys, args["timeout"]
	}
	for key := range args {
		if !keys[key] {
			return c, invalidRefusal("args.unknown-key", "only %s are known (in this spelling); remove the rest", strings.Join(slices.Sorted(maps.Keys(keys)), ", "))
		}
	}
	if c.Timeout, r = parseTimeout(timeout, v.policy.Limits); r != nil {
		return c, r
	}
	if !compat {
		c.Argv, r = parseArgv(args["argv"])
		return c, r
	}
	return v.parseCommand(c, args)
}

// parseCommand parses cmd. A session in it becomes the call's and must equal session_id.
func (v validate) parseCommand(c Call, args map[string]strictjson.Node) (Call, *policy.Refusal) {
	cmd, ok := args["cmd"].Value.(string)
	if !ok {
		return c, invalidRefusal("cmd.type", "cmd must be a string, for instance \"open https://example.com\"")
	}
	argv, session, r := policy.Words(cmd, v.policy.AgentBrowser.CDPPort)
	if r != nil {
		return c, r
	}
	c.Argv = argv
	if session == "" || session == c.SessionID {
		return c, nil
	}
	if args["session_id"].Raw != nil {
		return c, invalidRefusal("session.twice", "session_id and AGENT_BROWSER_SESSION name two sessions; leave one out")
	}
	if r := checkSession(session); r != nil {
		return c, r
	}
	c.SessionID, c.unnamed = session, false
	return c, nil
}

func invalidRefusal(rule, format string, args ...any) *policy.Refusal {
	return &policy.Refusal{Code: policy.InvalidParams, Rule: rule, Message: fmt.Sprintf(format, args...)}
}

func parseSession(n strictjson.Node) (string, *policy.Refusal) {
	s, ok := n.Value.(string)
	if !ok {
		return "", invalidRefusal("session.format", "session_id must be a string of 1 to 64 letters, digits, `.`, `_` or `-`")
	}
	if r := checkSession(s); r != nil {
		return "", r
	}
	return s, nil
}

func checkSession(id string) *policy.Refusal {
	if strings.ContainsAny(id, "/\\\x00") {
		return &policy.Refusal{Code: policy.SandboxViolation, Rule: "session.path", Message: "session_id is a name, not a path: 1 to 64 letters, digits, `.`, `_` or `-`"}
	}
	if !protocol.SessionID.MatchString(id) {
		return invalidRefusal("session.format", "session_id must be 1 to 64 letters, digits, `.`, `_` or `-`")
	}
	return nil
}

func parseArgv(n strictjson.Node) ([]string, *policy.Refusal) {
	if n.Items == nil {
		return nil, invalidRefusal("argv.type", "argv must be an array of strings, numbers or booleans, for instance [\"open\",\"https://example.com\"]")
	}
	argv := make([]string, len(n.Items))
	for i, item := range n.Items {
		switch v := item.Value.(type) {
		case string:
			argv[i] = v
		case json.Number, bool:
			argv[i] = string(item.Raw)
		default:
			return nil, invalidRefusal("argv.type", "argv[%d] must be a string, a number or a boolean", i)
		}
	}
	return argv, nil
}

func parseTimeout(n strictjson.Node, limits policy.Limits) (time.Duration, *policy.Refusal) {
	if n.Raw == nil {
		return time.Duration(limits.TimeoutSec) * time.Second, nil
	}
	number, _ := n.Value.(json.Number) // "" of another type is none
	seconds, err := number.Float64()
	if err != nil || seconds < 1 || seconds > float64(limits.MaxTimeoutSec) {
		return 0, invalidRefusal("args.timeout", "the timeout must be a number of seconds from 1 to %d", limits.MaxTimeoutSec)
	}
	return time.Duration(math.Ceil(seconds)) * time.Second, nil
}

// readArguments reads one JSON object without repeated keys.
func readArguments(raw json.RawMessage) (map[string]strictjson.Node, error) {
	n, err := strictjson.ParseData(raw)
	switch {
	case n.Members == nil:
		return nil, errors.New("the arguments must be a JSON object")
	case err != nil: // its words may repeat the client's
		return nil, errors.New("the arguments are not one JSON object with each key once; give each key once")
	}
	args := map[string]strictjson.Node{}
	for _, m := range n.Members {
		args[m.Name] = m.Node
	}
	return args, nil
}
