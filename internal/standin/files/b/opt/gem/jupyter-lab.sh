#!/bin/bash
set -e
exec /opt/python3.12/bin/jupyter lab \
  --ip=127.0.0.1 --port="$JUPYTER_LAB_PORT" --no-browser --allow-root \
  --ServerApp.token='' --ServerApp.password='' \
  --ServerApp.allow_origin='*' --ServerApp.disable_check_xsrf=True --ServerApp.base_url=/jupyter
