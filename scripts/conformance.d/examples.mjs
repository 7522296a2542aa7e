// examples.mjs FILE COMMAND... sends the "> " lines of each ```mcp block of FILE to a new process of COMMAND and checks
// that each "< " line is part of an answer: objects may have more keys. One line a block on stdout, what is wrong on
// stderr, exit status 1 if anything is.
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { basename } from "node:path";
import { createInterface } from "node:readline";

const [file, command, ...args] = process.argv.slice(2);
const patience = 10_000; // ms for a block

const within = (want, got) =>
  want !== null && typeof want === "object"
    ? got !== null && typeof got === "object" && Object.entries(want).every(([k, v]) => within(v, got[k]))
    : want === got;

// run gives the wanted answers of a block that did not come, and those that came beyond them.
async function run(lines) {
  const server = spawn(command, args, { stdio: ["pipe", "pipe", "inherit"] });
  server.stdin.on("error", () => {}); // it ended; the answers that lack say so
  const dead = setTimeout(() => server.kill("SIGKILL"), patience);
  const answers = createInterface({ input: server.stdout })[Symbol.asyncIterator]();
  const missing = [], got = [];
  for (const line of lines) {
    if (line.startsWith("> ")) {
      server.stdin.write(line.slice(2) + "\n");
      continue;
    }
    const { value, done } = await answers.next();
    if (!done) got.push(value);
    if (done || !within(JSON.parse(line.slice(2)), JSON.parse(value))) missing.push(line.slice(2));
  }
  server.stdin.end();
  for await (const more of answers) missing.push(`nothing more, but: ${more}`);
  clearTimeout(dead);
  return { missing, got };
}

const blocks = [...readFileSync(file, "utf8").matchAll(/^```mcp\n([^]*?)^```$/gm)].map((m) => m[1].trimEnd().split("\n"));
if (blocks.length === 0) {
  console.error(`${file}: no examples`);
  process.exitCode = 1;
}
for (const [i, lines] of blocks.entries()) {
  const { missing, got } = await run(lines);
  const verdict = missing.length ? "FAIL" : "ok";
  console.log([basename(file), `example ${i + 1}`, verdict, `${got.length} answers`].join("\t"));
  for (const m of missing) console.error(`${file}: example ${i + 1}: wanted ${m}\n  came:\n  ${got.join("\n  ")}`);
  if (missing.length) process.exitCode = 1;
}
