// Stand-in for the Node REPL server: listens on loopback and says 501.
require("http")
  .createServer((req, res) => { res.writeHead(501); res.end("stand-in"); })
  .listen(Number(process.env.NODEJS_REPL_PORT), "127.0.0.1");
