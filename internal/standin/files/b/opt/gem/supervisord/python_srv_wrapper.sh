#!/bin/bash
# supervisord keeps PYTHONPATH for itself, so the server's comes under another name.
if [ -n "${SRV_PYTHONPATH}" ]; then
  export PYTHONPATH="${SRV_PYTHONPATH}${PYTHONPATH:+:$PYTHONPATH}"
fi
exec /usr/local/bin/python-server "$@"
