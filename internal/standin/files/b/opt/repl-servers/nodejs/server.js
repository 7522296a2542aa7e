// Stand-in for the Node REPL server on loopback: POST /execute {"code": ...} runs it in one lasting context; the routes are a guess.
const vm = require("vm");
const context = vm.createContext({ console, require, process });
require("http")
  .createServer((req, res) => {
    const answer = (code, body) => res.writeHead(code, { "content-type": "application/json" }).end(JSON.stringify(body));
    if (req.url === "/health") return answer(200, { status: "healthy" });
    if (req.method !== "POST" || req.url !== "/execute") return answer(501, { detail: "stand-in" });
    const pieces = [];
    req.on("data", (piece) => pieces.push(piece)).on("end", () => {
      try {
        answer(200, { result: String(vm.runInContext(JSON.parse(Buffer.concat(pieces)).code, context)) });
      } catch (e) {
        answer(400, { detail: String(e) });
      }
    });
  })
  .listen(Number(process.env.NODEJS_REPL_PORT), "127.0.0.1");
