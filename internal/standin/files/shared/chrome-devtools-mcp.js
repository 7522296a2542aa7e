#!/usr/bin/env node
// Stand-in for chrome-devtools-mcp on stdio: real tools, which all say "stand-in".
const { serveStdio, text, tool } = require("./mcp.cjs");
const names = [
  "click", "drag", "fill", "fill_form", "handle_dialog", "hover", "press_key", "upload_file", "close_page", "list_pages",
  "navigate_page", "new_page", "select_page", "wait_for", "emulate", "resize_page", "performance_analyze_insight",
  "performance_start_trace", "performance_stop_trace", "get_network_request", "list_network_requests", "evaluate_script",
  "get_console_message", "list_console_messages", "take_screenshot", "take_snapshot",
];
serveStdio({ list: () => names.map(tool), call: () => text("stand-in") });
