#!/bin/bash
# Stand-in for line C (a guess), second half of the start: environment, proxy, hooks, supervisord.
set -e

log() { echo "$(date '+%F %T') INFO $*"; }

run_hook() { # NAME COMMANDS: whatever the environment says, as root
  [ -z "$(echo "$2" | tr -d '[:space:]')" ] && return 0
  log "hook $1"
  if [ "$RUN_HOOKS_STRICT" = "true" ]; then
    bash -c "$2"
  else
    bash -c "$2" || log "WARNING: hook $1 left with $?"
  fi
}


RUN_DIR=/var/run/gem
mkdir -p "$RUN_DIR"
chown "$USER:$USER" "$RUN_DIR"

IMAGE_VERSION=$(cat /etc/aio_version 2>/dev/null || echo unknown)
export IMAGE_VERSION
export AIO_USER="${AIO_USER:-$USER}"
export USER="$AIO_USER"
export HOME="/home/$USER"
. /etc/profile.d/nodejs.sh
export BROWSER_EXTRA_ARGS="$BROWSER_NO_SANDBOX --lang=${BROWSER_LANG:-en-US} --time-zone-for-testing=$TZ --homepage ${HOMEPAGE:-} $BROWSER_EXTRA_ARGS"

PROXY_SERVER="$(echo -n "$PROXY_SERVER" | xargs)"
if [ -n "$PROXY_SERVER" ]; then
  PROXY_SERVER=${PROXY_SERVER#http://}
  PROXY_SERVER=${PROXY_SERVER#https://}
  : >/opt/gem/gost-hosts.txt
  : >/opt/gem/gost-bypass.txt
  : >/opt/gem/nginx-proxy-map.conf
  echo "[]" >/var/lib/aio-sandbox/proxy-map.json
  echo "[]" >/var/lib/aio-sandbox/proxy-map-user-bypasses.json
  openssl req -x509 -newkey rsa:2048 -nodes -keyout /opt/gem/proxy-map-tls.key -out /opt/gem/proxy-map-tls.crt \
    -days 3650 -subj "/CN=AIO Sandbox Proxy Map" 2>/dev/null
  if [ -n "$PROXY_AUTH_CMD" ] && [ "$PROXY_SERVER" != "true" ]; then
    PROXY_SERVER="$(bash -c "$PROXY_AUTH_CMD" || true)@${PROXY_SERVER##*@}"
  fi
  {
    printf 'api:\n  addr: "127.0.0.1:18080"\n'
    printf 'services:\n  - name: browser-proxy\n    addr: "127.0.0.1:%s"\n' "${TINYPROXY_PORT:-8118}"
    [ "$PROXY_SERVER" = "true" ] || printf 'upstream: "%s"\n' "$PROXY_SERVER"
  } >/opt/gem/gost.yaml
  # PROXY_MAP: source>target[,source>target...], one nginx server per source.
  IFS=',' read -ra MAPS <<<"$PROXY_MAP"
  for map in "${MAPS[@]}"; do
    printf 'server {\n    listen 127.0.0.1:80;\n    listen 127.0.0.1:443 ssl;\n    ssl_certificate /opt/gem/proxy-map-tls.crt;\n    ssl_certificate_key /opt/gem/proxy-map-tls.key;\n    server_name %s;\n    location / {\n        proxy_pass http://%s;\n    }\n}\n' \
      "${map%%>*}" "${map##*>}" >>/opt/gem/nginx-proxy-map.conf
  done
  # The sandbox user may write what root's nginx includes.
  chown "$USER:$USER" /opt/gem/gost-hosts.txt /opt/gem/gost-bypass.txt /opt/gem/nginx-proxy-map.conf \
    /var/lib/aio-sandbox/proxy-map.json /var/lib/aio-sandbox/proxy-map-user-bypasses.json || true
  if [ -n "$PROXY_BYPASS_LIST" ]; then
    printf 'function FindProxyForURL(url, host) { return "PROXY 127.0.0.1:%s"; }\n' "${TINYPROXY_PORT:-8118}" >/opt/gem/proxy.pac
  fi
  export BROWSER_EXTRA_ARGS="$BROWSER_EXTRA_ARGS --proxy-server=http://127.0.0.1:${TINYPROXY_PORT:-8118}"
else
  rm -f /opt/gem/supervisord/supervisord.gost.conf
  touch /opt/gem/nginx-proxy-map.conf
fi

if [ -f /opt/aio/index.html.template ]; then
  envsubst '${DISABLE_JUPYTER},${DISABLE_CODE_SERVER}' </opt/aio/index.html.template >/opt/aio/index.html
  rm -rf /opt/aio/index.html.template
fi

echo "[]" >/var/lib/aio-sandbox/shutdown-hooks.json
chown "$USER:$USER" /var/lib/aio-sandbox/shutdown-hooks.json
run_hook RUN_HOOK_PRE_SERVICES "$RUN_HOOK_PRE_SERVICES"
if [ -n "$RUN_HOOK_POST_READY" ]; then
  (
    until nc -z localhost "${WAIT_PORTS%%,*}" >/dev/null 2>&1; do sleep 1; done
    run_hook RUN_HOOK_POST_READY "$RUN_HOOK_POST_READY"
  ) &
fi

log "AIO sandbox stand-in $IMAGE_VERSION: http://localhost:$PUBLIC_PORT"
exec /usr/bin/supervisord -n -c /opt/gem/supervisord.conf
