#!/bin/bash
# Stand-in: waits for WAIT_PORTS and WAIT_FILES (comma lists), then becomes nginx. Run by root.
PORTS=()
FILES=()
if [ -n "$WAIT_PORTS" ]; then
  IFS=',' read -ra PORTS <<<"$WAIT_PORTS"
else
  [ -n "$SANDBOX_SRV_PORT" ] && PORTS+=("$SANDBOX_SRV_PORT")
  [ -n "$BROWSER_REMOTE_DEBUGGING_PORT" ] && PORTS+=("$BROWSER_REMOTE_DEBUGGING_PORT")
fi
[ -n "$WAIT_FILES" ] && IFS=',' read -ra FILES <<<"$WAIT_FILES"

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
  for file in "${FILES[@]}"; do
    [ -f "$file" ] || ready=false
  done
  [ "$ready" = true ] && break
  if [ $(($(date +%s) - began)) -ge "$WAIT_TIMEOUT" ]; then
    echo "timeout after ${WAIT_TIMEOUT}s"
    exit 1
  fi
  sleep "$WAIT_INTERVAL"
done

exec /usr/sbin/nginx -c /opt/gem/nginx.conf -g 'daemon off;'
