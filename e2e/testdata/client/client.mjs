// client.mjs URL KEY ERA SDK: an MCP client over streamable HTTP. ERA is legacy or modern, SDK is 1 or 2 (1 speaks the
// legacy era only). It prints what it connected to and the tools as one line of JSON; then each line of stdin is the
// arguments of a call, and its result is a line of stdout.
import { createInterface } from "node:readline";

const [url, key, era, sdk] = process.argv.slice(2);
const options = { requestInit: { headers: key ? { "X-AIO-API-Key": key } : {} } };
const say = (v) => process.stdout.write(JSON.stringify(v) + "\n");

async function connect() {
  const me = { name: "e2e", version: "1" };
  if (sdk === "1") {
    const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
    const { StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
    const client = new Client(me);
    const transport = new StreamableHTTPClientTransport(new URL(url), options);
    await client.connect(transport);
    return [client, transport.protocolVersion];
  }
  const { Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
  const client = new Client(me, { versionNegotiation: { mode: era === "modern" ? { pin: "2026-07-28" } : "legacy" } });
  await client.connect(new StreamableHTTPClientTransport(new URL(url), options));
  return [client, client.getNegotiatedProtocolVersion()];
}

const [client, protocol] = await connect();
const { tools } = await client.listTools();
say({ server: client.getServerVersion(), protocol, tools: tools.map((t) => t.name) });
for await (const line of createInterface({ input: process.stdin })) {
  const { tool, args } = JSON.parse(line);
  try {
    say(await client.callTool({ name: tool, arguments: args }));
  } catch (error) {
    say({ error: String(error) });
  }
}
await client.close();
