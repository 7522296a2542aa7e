#!/bin/bash
# Stand-in: waits for the servers that the hub aggregates, then becomes the hub.
WAIT_TIMEOUT=${WAIT_TIMEOUT:-300}
WAIT_INTERVAL=${WAIT_INTERVAL:-2}
# ":-": an empty MCP_HUB_WAIT_PORTS does not switch the wait off.
IFS=',' read -ra PORTS <<<"${MCP_HUB_WAIT_PORTS:-$MCP_SERVER_BROWSER_PORT,$SANDBOX_SRV_PORT}"

began=$(date +%s)
while true; do
  ready=true
  for port in "${PORTS[@]}"; do
    port=$(echo "$port" | xargs)
    [ -z "$port" ] && continue
    if ! nc -z localhost "$port" >/dev/null 2>&1; then
      echo "waiting for localhost:$port"
      ready=false
      break
    fi
  done
  [ "$ready" = true ] && break
  if [ $(($(date +%s) - began)) -ge "$WAIT_TIMEOUT" ]; then
    echo "timeout after ${WAIT_TIMEOUT}s"
    exit 1
  fi
  sleep "$WAIT_INTERVAL"
done

# MCP_HUB_CONFIG is ignored, as in the original.
exec /usr/bin/mcp-hub --port "${MCP_HUB_PORT:-8079}" --stateless --config /opt/gem/mcp-hub.json
