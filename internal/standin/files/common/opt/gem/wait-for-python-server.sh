#!/usr/bin/env bash
# Waits until python-server answers, then becomes the command given.
set -euo pipefail

if [[ ${FASTAPI_WAIT_SKIP:-0} != 0 ]]; then
  exec "$@"
fi
if [[ $# -lt 1 ]]; then
  echo "wait-for-python-server: no command" >&2
  exit 64
fi

host=${FASTAPI_WAIT_HOST:-127.0.0.1}
# The slip of the original is kept: without the variable the port is "-8091".
port=${SANDBOX_SRV_PORT:--8091}
path=${FASTAPI_WAIT_PATH:-/health}
timeout=${FASTAPI_WAIT_TIMEOUT:-10}
interval=${FASTAPI_WAIT_INTERVAL:-1}
began=$(date +%s)

until curl --silent --fail --max-time 2 "http://${host}:${port}${path}" >/dev/null; do
  if (( $(date +%s) - began >= timeout )); then
    echo "wait-for-python-server: nothing at http://${host}:${port}${path} after ${timeout}s" >&2
    exit 111
  fi
  sleep "$interval"
done
exec "$@"
