// score.mjs LOG reads what the suite printed for one revision: how many of the scored scenarios passed, and which did not.
// One line: PASSED OF, a tab, the names of the others.
import { readFileSync } from "node:fs";

const log = readFileSync(process.argv[2], "utf8");
const summary = log.split("=== SUMMARY ===")[1] ?? "";
const [scored, unscored = ""] = summary.split(/^Not scored for /m);
const named = (text, mark) => [...text.matchAll(new RegExp(`^ *${mark} ([\\w-]+)`, "gm"))].map((m) => m[1]);
const without = new Set(["✓", "✗"].flatMap((mark) => named(unscored, mark)));
const passed = named(scored, "✓").filter((s) => !without.has(s));
const failed = named(scored, "✗").filter((s) => !without.has(s));
console.log(`${passed.length} ${passed.length + failed.length}\t${failed.join(" ")}`);
