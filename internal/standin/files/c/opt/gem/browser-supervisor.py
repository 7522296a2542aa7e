#!/usr/bin/env python3
"""Stand-in (a guess): keeps the browser running by starting start-browser.sh again when it ends."""
import subprocess
import time

while True:
    subprocess.run(["/opt/gem/start-browser.sh"], check=False)
    time.sleep(1)
