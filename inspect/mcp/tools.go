package mcp

import (
	"net/url"
	"path"
	"slices"
	"strings"
)

// browserShell is the name of the image's one tool unless its policy sets another (server/policy).
const browserShell = "browser-shell"

var (
	// sandboxTools are python-server's own on line A (facts/aio-base.md section 5).
	sandboxTools = []string{
		"get_browser_info", "browser_screenshot", "browser_execute_action", "execute_code", "file_operations", "str_replace_editor",
		"get_context", "get_packages", "execute_bash", "convert_to_markdown",
	}
	// pythonTools are python-server's own on lines B and C, whatever mcp-hub.json holds.
	pythonTools = []string{
		"sandbox_execute_bash", "sandbox_execute_code", "sandbox_file_operations", "sandbox_str_replace_editor", "sandbox_get_context",
		"sandbox_get_packages", "sandbox_load_skill", "sandbox_convert_to_markdown", "browser_get_info", "browser_gui_screenshot",
		"browser_gui_execute_action",
	}
	// browserTools are those of @agent-infra/mcp-server-browser 1.2; visionTools are added by --vision, which line A
	// passes.
	browserTools = []string{
		"browser_navigate", "browser_go_back", "browser_go_forward", "browser_close", "browser_close_tab", "browser_press_key",
		"browser_get_markdown", "browser_get_text", "browser_read_links", "browser_get_download_list", "browser_click", "browser_hover",
		"browser_select", "browser_form_input_fill", "browser_get_clickable_elements", "browser_scroll", "browser_evaluate",
		"browser_new_tab", "browser_tab_list", "browser_switch_tab", "browser_screenshot",
	}
	visionTools = []string{"browser_vision_screen_capture", "browser_vision_screen_click"}
	// devtoolsTools are those of chrome-devtools-mcp 0.9.
	devtoolsTools = []string{
		"click", "drag", "fill", "fill_form", "handle_dialog", "hover", "press_key", "upload_file", "close_page", "list_pages",
		"navigate_page", "new_page", "select_page", "wait_for", "emulate", "resize_page", "performance_analyze_insight",
		"performance_start_trace", "performance_stop_trace", "get_network_request", "list_network_requests", "evaluate_script",
		"get_console_message", "list_console_messages", "take_screenshot", "take_snapshot",
	}
)

// toolsOf returns the tools that a server is known to have, under the server's own names. unknown is false only for
// servers whose list is known to be complete.
func (r *reader) toolsOf(s Server) (tools []string, unknown bool) {
	if s.Type == "stdio" {
		switch path.Base(s.Command) {
		case "browser-shell":
			if len(s.Args) == 0 || s.Args[0] != "mcp" {
				return nil, true
			}
			return []string{r.shell}, len(s.Args) > 1 // --policy may give it another name
		case "chrome-devtools-mcp":
			return slices.Clone(devtoolsTools), true
		case "mcp-server-browser":
			tools := slices.Clone(browserTools)
			if slices.Contains(s.Args, "--vision") {
				tools = append(tools, visionTools...)
			}
			return tools, true
		}
		return nil, true
	}
	switch {
	case isSandbox(s) && r.hub == hubA:
		return slices.Clone(sandboxTools), false
	case isSandbox(s):
		return slices.Clone(pythonTools), false
	case pointsTo(s, "MCP_SERVER_BROWSER_PORT", "8100"):
		tools := slices.Clone(browserTools)
		if r.hub == hubA {
			tools = append(tools, visionTools...)
		}
		return tools, true
	}
	return nil, true
}

// isSandbox reports whether s is python-server.
func isSandbox(s Server) bool { return pointsTo(s, "SANDBOX_SRV_PORT", "8091") }

// pointsTo reports whether a server's URL is on this machine, with the port given as a number or as envsubst's
// placeholder.
func pointsTo(s Server, variable, port string) bool {
	address := strings.NewReplacer("${"+variable+"}", port, "$"+variable, port).Replace(s.URL)
	u, err := url.Parse(address)
	if err != nil || u.Port() != port {
		return false
	}
	return u.Hostname() == "localhost" || u.Hostname() == "::1" || strings.HasPrefix(u.Hostname(), "127.")
}
