#!/bin/bash
# start, stop or restart the browser program.
set -e
case "${1:-}" in
  start | stop | restart | status) exec supervisorctl "$1" browser ;;
esac
echo "usage: $0 start|stop|restart|status" >&2
exit 1
