#!/bin/bash
# Stand-in: switches the old mcp server on port 8089 on or off.
set -e
case "${1:-}" in
  enable)
    cp /opt/gem/supervisord.mcp.conf /opt/gem/supervisord/mcp.conf
    envsubst '${MCP_SERVER_PORT}' </opt/gem/nginx.mcp.conf >/opt/gem/nginx/mcp.conf
    ;;
  disable) rm -f /opt/gem/supervisord/mcp.conf /opt/gem/nginx/mcp.conf ;;
  *)
    echo "usage: $0 enable|disable" >&2
    exit 1
    ;;
esac
supervisorctl reread
supervisorctl update
