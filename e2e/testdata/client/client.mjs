// client.mjs URL KEY ERA SDK: an MCP client over streamable HTTP. ERA is legacy or modern, SDK is 1 or 2 (1 speaks the
// legacy era only). It prints what it connected to and the tools as one line of JSON; then each line of stdin is the
// arguments of a call, and its result is a line of stdout. With OAUTH=1 in the environment it can log in by OAuth, as
// mcp-remote and editors can. If it can't connect it prints why as a line of stderr.
import { createInterface } from "node:readline";

const [url, key, era, sdk] = process.argv.slice(2);
const options = { requestInit: { headers: key ? { "X-AIO-API-Key": key } : {} } };
if (process.env.OAUTH) {
  const redirect_uris = ["http://127.0.0.1:1/callback"];
  options.authProvider = {
    redirectUrl: redirect_uris[0],
    clientMetadata: { client_name: "e2e", redirect_uris },
    clientInformation: () => undefined,
    saveClientInformation: () => {},
    tokens: () => undefined,
    saveTokens: () => {},
    redirectToAuthorization: (url) => { throw new Error("the browser would open " + url); },
    saveCodeVerifier: () => {},
    codeVerifier: () => "",
  };
}
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

const [client, protocol] = await connect().catch((error) => {
  console.error(String(error));
  process.exit(1);
});
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
