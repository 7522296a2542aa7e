#!/bin/bash
# Stand-in: waits for the ports of WAIT_PORTS (a comma list), then becomes nginx. Run by root.
PORTS=()
if [ -n "$WAIT_PORTS" ]; then
  if [ -f /opt/gem/mcp.disabled ] && [ -n "$MCP_SERVER_PORT" ]; then
    WAIT_PORTS=$(echo "$WAIT_PORTS" | sed -e "s/$MCP_SERVER_PORT,//g" -e "s/,$MCP_SERVER_PORT//g" -e "s/^$MCP_SERVER_PORT\$//")
  fi
  IFS=',' read -ra PORTS <<<"$WAIT_PORTS"
else
  [ -n "$GEM_SERVER_PORT" ] && PORTS+=("$GEM_SERVER_PORT")
  [ -n "$BROWSER_REMOTE_DEBUGGING_PORT" ] && PORTS+=("$BROWSER_REMOTE_DEBUGGING_PORT")
  [ -n "$MCP_SERVER_PORT" ] && [ ! -f /opt/gem/mcp.disabled ] && PORTS+=("$MCP_SERVER_PORT")
fi

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

exec /usr/sbin/nginx -c /opt/gem/nginx.conf -g 'daemon off;'
