#!/bin/bash
set -e
exec tinyproxy -d -c /etc/tinyproxy.conf
