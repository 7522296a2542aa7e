// MCP, as little as the stand-ins need: a server on streamable HTTP (stateless, answers by JSON) or on stdio.
const http = require("http");
const readline = require("readline");
const versions = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

exports.tool = (name) => ({ name, description: name.replace(/_/g, " "), inputSchema: { type: "object" } });
exports.text = (text) => ({ content: [{ type: "text", text }], isError: false });

// reply answers a request by list(search) and call(name, arguments).
async function reply(request, { list, call }, search) {
  const out = { jsonrpc: "2.0", id: request.id };
  const params = request.params || {};
  try {
    switch (request.method) {
      case "initialize":
        out.result = {
          protocolVersion: versions.includes(params.protocolVersion) ? params.protocolVersion : versions[0],
          capabilities: { tools: {} }, serverInfo: { name: "stand-in", version: "0.0.0" },
        };
        break;
      case "ping":
        out.result = {};
        break;
      case "tools/list":
        out.result = { tools: await list(search) };
        break;
      case "tools/call":
        out.result = await call(params.name, params.arguments || {});
        break;
      default:
        out.error = { code: -32601, message: "Method not found" };
    }
  } catch (e) {
    out.error = { code: -32602, message: String(e.message) };
  }
  return out;
}

exports.serveHTTP = (host, port, server) => {
  http.createServer((req, res) => {
    const url = new URL(req.url, "http://localhost");
    const answer = (code, body) => {
      res.writeHead(code, { "content-type": "application/json" });
      res.end(body === undefined ? "" : JSON.stringify(body));
    };
    const accept = String(req.headers.accept);
    if (url.pathname !== "/mcp") return answer(404, { error: "Not Found" });
    if (!accept.includes("text/event-stream") || (req.method === "POST" && !accept.includes("application/json"))) {
      return answer(406, { error: "accept application/json and text/event-stream" });
    }
    if (req.method !== "POST") return answer(405, { error: "stateless: POST only" });
    const pieces = [];
    req.on("data", (piece) => pieces.push(piece)).on("end", async () => {
      let request;
      try {
        request = JSON.parse(Buffer.concat(pieces));
      } catch (e) {
        return answer(400, { jsonrpc: "2.0", id: null, error: { code: -32700, message: "Parse error" } });
      }
      if (request.id === undefined) return answer(202);
      answer(200, await reply(request, server, url.searchParams.get("search")));
    });
  }).listen(port, host);
};

exports.serveStdio = (server) => {
  readline.createInterface({ input: process.stdin }).on("line", async (row) => {
    const request = JSON.parse(row);
    if (request.id !== undefined) console.log(JSON.stringify(await reply(request, server, null)));
  });
};

// flag gives a command line's value of --name VALUE or --name=VALUE.
exports.flag = (name, fallback) => {
  for (const [i, arg] of process.argv.entries()) {
    if (arg === name) return process.argv[i + 1];
    if (arg.startsWith(name + "=")) return arg.slice(name.length + 1);
  }
  return fallback;
};
