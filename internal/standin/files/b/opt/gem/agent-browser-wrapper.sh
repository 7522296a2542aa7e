#!/bin/bash
# Puts --cdp in front, so that agent-browser drives the visible browser and starts none of its own.
set -e
self=$(readlink -f "$0")
real=
for candidate in "$(command -v agent-browser-real || true)" "/home/${USER:-gem}/.fnm_shell/bin/agent-browser" \
  /opt/nodejs/{22,20,24}/bin/agent-browser \
  /opt/fnm/node-versions/*/installation/lib/node_modules/agent-browser/bin/agent-browser-linux-*; do
  [ -n "$candidate" ] && [ -x "$candidate" ] || continue
  path=$(readlink -f "$candidate")
  if [ "$path" != "$self" ] && [ "$path" != /opt/gem/bin/agent-browser ]; then
    real=$path
    break
  fi
done
if [ -z "$real" ]; then
  echo "ERROR: agent-browser's binary is not there" >&2
  exit 1
fi
for arg in "$@"; do
  if [ "$arg" = "--cdp" ]; then
    exec "$real" "$@"
  fi
done
exec "$real" --cdp "${BROWSER_REMOTE_DEBUGGING_PORT:-9222}" "$@"
