// The least that does what browser-shell does without guarding anything: one
// tool, typed, that runs agent-browser and answers with the same four keys.
// usage: node server.mjs AGENT_BROWSER
import { execFile } from "node:child_process";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { z } from "zod";

const program = process.argv[2];
const server = new McpServer({ name: "minimal", version: "1.0.0" });

server.registerTool(
  "browser-shell",
  {
    description: "Drive the browser, one command a call.",
    inputSchema: {
      session_id: z.string().regex(/^[a-zA-Z0-9._-]{1,64}$/),
      argv: z.array(z.string()).min(1).max(64),
      timeout_sec: z.number().int().min(1).max(120).default(30),
    },
    outputSchema: { session_id: z.string(), exit_code: z.number(), stdout: z.string(), stderr: z.string() },
  },
  ({ session_id, argv, timeout_sec }) =>
    new Promise((resolve) => {
      const args = ["--session", session_id, "--json", ...argv];
      execFile(program, args, { timeout: timeout_sec * 1000 }, (error, stdout, stderr) => {
        const result = { session_id, exit_code: error ? (error.code ?? 1) : 0, stdout, stderr };
        resolve({ content: [{ type: "text", text: JSON.stringify(result) }], structuredContent: result, isError: !!error });
      });
    }),
);

// The transport doesn't see the end of input by itself.
process.stdin.on("end", () => process.exit(0));
await server.connect(new StdioServerTransport());
