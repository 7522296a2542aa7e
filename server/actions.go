package server

import "encoding/json"

// actions returns the action policy that newer versions of agent-browser enforce themselves, behind the grammar. It
// names the actions of the daemon (tried with 0.41.2), not subcommands. Evaluation, files, cookies, tabs and all others
// are denied.
func actions() string {
	text, err := json.Marshal(map[string]any{
		"default": "deny",
		"allow": []string{
			"launch", "stream_disable",
			"navigate", "snapshot", "screenshot", "close",
			"click", "dblclick", "hover", "focus", "check", "uncheck", "select", "fill", "type", "press",
			"wait", "waitforurl", "waitforloadstate",
			"url", "title", "gettext", "innerhtml", "inputvalue", "count", "boundingbox", "getattribute",
			"isvisible", "isenabled", "ischecked", "scroll", "back", "forward", "reload", "pdf",
		},
	})
	if err != nil {
		panic(err) // strings always encode
	}
	return string(text)
}
