#!/bin/bash
set -e
exec /usr/bin/openbox --config-file /opt/gem/openbox.xml
