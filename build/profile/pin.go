package profile

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// Pin returns data, the content of a profile file, with version and integrity as those of agent-browser. All other
// bytes stay, including comments, blank lines and quotes, which an encoder would lose.
func Pin(file string, data []byte, version, integrity string) ([]byte, error) {
	root, perr := parse(file, data)
	if perr != nil {
		return nil, Errors{perr}
	}
	if root.Kind != yaml.MappingNode {
		return nil, Errors{{Position: Position{file, root.Line, root.Column}, Msg: "not a mapping"}}
	}
	var out []byte
	want := AgentBrowser{version, integrity}
	if valueOf(root, "payload") == nil {
		out = fmt.Appendf(bytes.TrimRight(data, "\n"), "\n\npayload:\n  agentBrowser:\n    version: %s\n    integrity: %s\n", version, integrity)
	} else {
		var err error
		if out, err = splice(data, valueOf(valueOf(root, "payload"), "agentBrowser"), want); err != nil {
			return nil, Errors{{
				Position: Position{file, valueOf(root, "payload").Line, 1}, Path: "payload.agentBrowser", Msg: err.Error(),
				Hint: fmt.Sprintf("write it as two lines, `version: %s` and `integrity: %s`", version, integrity),
			}}
		}
	}
	// The parser named the places of the changes; parse the result again, as a build will.
	again, perr := parse(file, out)
	if perr != nil {
		return nil, Errors{perr}
	}
	var got AgentBrowser
	if err := valueOf(valueOf(again, "payload"), "agentBrowser").Decode(&got); err != nil || got != want {
		return nil, fmt.Errorf("%s: payload.agentBrowser can't be changed in this form of YAML; write it by hand", file)
	}
	return out, nil
}

// valueOf returns the value of key, or nil if n isn't a mapping or lacks the key.
func valueOf(n *yaml.Node, key string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// splice replaces the values of version and integrity in the mapping n.
func splice(data []byte, n *yaml.Node, want AgentBrowser) ([]byte, error) {
	lines := bytes.SplitAfter(data, []byte("\n"))
	values := [][2]string{{"version", want.Version}, {"integrity", want.Integrity}}
	if v, i := valueOf(n, "version"), valueOf(n, "integrity"); v != nil && i != nil && v.Column < i.Column {
		slices.Reverse(values) // the later one first, because it would move if on the same line
	}
	for _, kv := range values {
		old := valueOf(n, kv[0])
		if old == nil || old.Kind != yaml.ScalarNode {
			return nil, fmt.Errorf("has no %s in this file", kv[0])
		}
		line := lines[old.Line-1]
		text := string(line[old.Column-1:])
		written := old.Value
		switch old.Style &^ yaml.TaggedStyle {
		case yaml.DoubleQuotedStyle:
			written = `"` + written + `"`
		case yaml.SingleQuotedStyle:
			written = "'" + written + "'"
		}
		rest, ok := strings.CutPrefix(text, written)
		if !ok || old.Anchor != "" {
			return nil, errors.New("is not plain text on one line")
		}
		lines[old.Line-1] = []byte(string(line[:old.Column-1]) + kv[1] + rest)
	}
	return bytes.Join(lines, nil), nil
}
