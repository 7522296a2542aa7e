#!/bin/bash
# One shot: connects agent-browser to the visible browser as soon as that one answers.
for _ in $(seq 1 60); do
  if nc -z localhost "${BROWSER_REMOTE_DEBUGGING_PORT:-9222}" >/dev/null 2>&1; then
    exec /usr/local/bin/agent-browser get url
  fi
  sleep 1
done
exit 0
