package front

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/slimctl/slimctl/server/strictjson"
)

// DefaultConfig is the path of mcp-hub.json in the image.
const DefaultConfig = "/opt/gem/mcp-hub.json"

// CheckConfig reads mcp-hub.json, which may only name this program; see ParseConfig. A file that doesn't exist names
// nothing, but must be the default one. Errors begin with file:line:column.
func CheckConfig(path string) error {
	text, err := strictjson.Read(path, 1<<20)
	if errors.Is(err, fs.ErrNotExist) && path == DefaultConfig {
		return nil
	}
	if err != nil {
		return fmt.Errorf("MCP servers: %w", err)
	}
	if err := ParseConfig(text); err != nil {
		return fmt.Errorf("MCP servers %s:%w", path, err)
	}
	return nil
}

// entry is the only server that mcp-hub.json may name. It is served by this process, and nothing is started for it.
var entry = map[string]any{"type": "stdio", "command": "/usr/local/bin/browser-shell", "args": []any{"mcp"}}

// ParseConfig refuses a text of mcp-hub.json with any other server, command or key. Errors begin with line:column.
func ParseConfig(text []byte) error { return strictjson.Locate(text, parseConfig(text)) }

func parseConfig(text []byte) error {
	root, err := strictjson.Parse(text)
	if err != nil {
		return err
	}
	top, err := root.Object("the file", "mcpServers")
	if err != nil {
		return err
	}
	if len(top) == 0 {
		return strictjson.Errorf(root.At, "mcpServers is missing")
	}
	servers, err := top[0].Object("mcpServers", "browser_shell")
	if err != nil {
		return err
	}
	if len(servers) == 0 {
		return strictjson.Errorf(top[0].Node.At, "mcpServers has no server browser_shell")
	}
	keys, err := servers[0].Object("server browser_shell", "type", "command", "args")
	if err != nil {
		return err
	}
	for _, k := range keys {
		want, _ := json.Marshal(entry[k.Name]) // strings always encode
		var given bytes.Buffer
		if err := json.Compact(&given, k.Raw); err != nil || !bytes.Equal(given.Bytes(), want) {
			return strictjson.Errorf(k.Node.At, "%s of server browser_shell must be %s", k.Name, want)
		}
	}
	if len(keys) < len(entry) {
		return strictjson.Errorf(servers[0].Node.At, "server browser_shell needs type, command and args")
	}
	return nil
}
