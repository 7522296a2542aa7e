// judge.mjs RESULTS REVISION compares what the suite wrote with expected.mjs: one line a scenario on stdout, what is
// wrong on stderr, exit status 1 if anything is.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { applies, expected } from "./expected.mjs";

const [results, revision] = process.argv.slice(2);
const wrong = [];
const used = new Set();

// The suite writes RESULTS/server-SCENARIO-TIME/checks.json.
const written = readdirSync(results);
const checksOf = (scenario) => {
  const dirs = written.filter((d) => d.replace(/-\d{4}-\d\d-\d\dT[\d-]+Z$/, "") === `server-${scenario}`);
  return dirs.flatMap((d) => JSON.parse(readFileSync(join(results, d, "checks.json"), "utf8")));
};

for (const scenario of applies[revision]) {
  const count = { SUCCESS: 0, expected: 0, wrong: 0 };
  // The suite adds this check to every scenario that gets an answer, so by itself it says little.
  let more = false;
  for (const check of checksOf(scenario)) {
    // INFO and SKIPPED are about what is optional.
    if (check.status === "INFO" || check.status === "SKIPPED") continue;
    more ||= check.id !== "wire-schema-valid";
    if (check.status === "SUCCESS") {
      count.SUCCESS++;
      continue;
    }
    const said = check.errorMessage ?? JSON.stringify(check.details ?? {});
    const entry = expected.find(([s, id, status, message]) =>
      s === scenario && id === check.id && status === check.status && message.test(said));
    if (entry) {
      used.add(entry);
      count.expected++;
    } else {
      count.wrong++;
      wrong.push(`${revision} ${scenario}: ${check.status} ${check.id}: ${said}`);
    }
  }
  if (!more) {
    count.wrong++;
    wrong.push(`${revision} ${scenario}: the suite checked nothing`);
  }
  const verdict = count.wrong ? "FAIL" : "ok";
  console.log([revision, scenario, verdict, `${count.SUCCESS} green, ${count.expected} as expected, ${count.wrong} wrong`].join("\t"));
}

for (const entry of expected) {
  const [scenario, id, status] = entry;
  if (applies[revision].includes(scenario) && !used.has(entry)) {
    wrong.push(`${revision} ${scenario}: ${id} is no longer ${status} as expected.mjs says: remove it there`);
  }
}
wrong.forEach((line) => console.error(line));
process.exitCode = wrong.length ? 1 : 0;
