// What @modelcontextprotocol/conformance should say of browser-shell.
//
// The suite is written for a server that has every feature and some tools made for the test. browser-shell has one
// tool, no prompts, no resources and no logging, and says so (server/discover, initialize).

// These scenarios apply. Each check of theirs is green or named in `expected`. The others need tools, prompts or
// resources with names of the suite's own, or sessions, which the hub does not keep.
export const applies = {
  "2026-07-28": [
    "server-stateless",
    "tools-list",
    "caching",
    "dns-rebinding-protection",
    "server-sse-multiple-streams",
    "http-header-validation",
    "input-required-result-unsupported-methods",
    "input-required-result-validate-input",
    "input-required-result-ignore-extra-params",
    "input-required-result-missing-input-response",
    "prompts-list",
    "resources-list",
    "sep-2164-resource-not-found",
  ],
  "2025-11-25": [
    "server-initialize",
    "ping",
    "tools-list",
    "dns-rebinding-protection",
    "prompts-list",
    "resources-list",
    "logging-set-level",
  ],
};

const noFeature = "browser-shell does not have this feature and does not declare it, so the method is not found (-32601)";
const noTool = "the check calls a tool of the suite's own, which browser-shell does not have";
const notFound = /the method is not offered|method not found/;

// [scenario, check, status, what its message has to match, why it is right]
export const expected = [
  ["server-stateless", "sep-2575-server-rejects-undeclared-capability", "FAILURE", /Not testable: .*'test_missing_capability'/, noTool],
  ["server-stateless", "sep-2575-missing-capability-http-400", "FAILURE", /Not testable: .*'test_missing_capability'/, noTool],
  ["server-stateless", "sep-2575-http-server-no-independent-requests-on-stream", "FAILURE", /Not testable: .*'test_streaming_elicitation'/, noTool],
  ["server-stateless", "sep-2575-server-no-log-without-loglevel", "FAILURE", /Not testable: .*'test_logging_tool'/, noTool],
  ["server-stateless", "sep-2575-server-sends-tools-list-changed-on-subscription", "WARNING", /no notifications\/tools\/list_changed arrived/, noTool + ", to change the list; the hub's changes with its servers and their state"],
  ["input-required-result-ignore-extra-params", "sep-2322-ignore-unexpected-params", "WARNING", /unknown tool/, noTool],
  ["input-required-result-missing-input-response", "sep-2322-missing-response-rerequests", "WARNING", /JSON-RPC error instead of re-requesting/, noTool],
  ["caching", "sep-2549-prompts-list-caching-hints", "FAILURE", /-32601/, noFeature],
  ["caching", "sep-2549-resources-list-caching-hints", "FAILURE", /-32601/, noFeature],
  ["caching", "sep-2549-resources-templates-list-caching-hints", "FAILURE", /-32601/, noFeature],
  ["prompts-list", "prompts-list", "FAILURE", notFound, noFeature],
  ["resources-list", "resources-list", "FAILURE", notFound, noFeature],
  ["logging-set-level", "logging-set-level", "FAILURE", notFound, noFeature],
  ["sep-2164-resource-not-found", "sep-2164-error-code", "WARNING", /got -32601/, noFeature],
  ["sep-2164-resource-not-found", "sep-2164-data-uri", "WARNING", /data\.uri is undefined/, noFeature],
];
