#!/usr/bin/env node
// Stand-in for @agent-infra/mcp-server-browser: real flags and tools. It lists, opens and closes tabs, and says "stand-in" to the rest.
const { flag, serveHTTP, serveStdio, text, tool } = require("./mcp.cjs");
const names = [
  "browser_navigate", "browser_go_back", "browser_go_forward", "browser_close", "browser_close_tab", "browser_press_key",
  "browser_get_markdown", "browser_get_text", "browser_read_links", "browser_get_download_list",
  "browser_click", "browser_hover", "browser_select", "browser_form_input_fill", "browser_get_clickable_elements",
  "browser_scroll", "browser_evaluate", "browser_new_tab", "browser_tab_list", "browser_switch_tab", "browser_screenshot",
];
if (process.argv.includes("--vision")) names.push("browser_vision_screen_capture", "browser_vision_screen_click");
const cdp = new URL(flag("--cdp-endpoint", "http://127.0.0.1:9222/json/version"));

async function call(name, args) {
  const json = (path, method) => fetch(new URL(path, cdp), { method }).then((r) => r.text()).then(text);
  switch (name) {
    case "browser_navigate":
    case "browser_new_tab":
      return json("/json/new?" + encodeURIComponent(args.url || "about:blank"), "PUT");
    case "browser_tab_list":
      return json("/json/list");
  }
  if (!names.includes(name)) throw new Error("Tool " + name + " not found");
  return text("stand-in");
}

const server = { list: () => names.map(tool), call };
if (flag("--port")) serveHTTP(flag("--host", "127.0.0.1"), Number(flag("--port")), server);
else serveStdio(server);
