#!/bin/sh
# A stand-in for agent-browser that can fail in every way the real one can.
# It keeps its notes beside itself.
D=${0%/*}
if [ "$1" = --version ]; then
	cat "$D/version"
	exit 0
fi
for a; do printf '%s|' "$a"; done >"$D/argv"
printf '%s\n' "$*" >>"$D/calls"
tr '\0' '\n' <"/proc/$$/environ" >"$D/environ"
{ pwd; ls -A; } >"$D/cwd"
readlink /proc/self/fd/0 >"$D/stdin"
session=$2
shift 5
[ "$1" = --pin-tab ] && shift

ok() { printf '{"success":true,"data":%s,"error":null}\n' "$1"; }

if [ -s "$D/daemon-late" ]; then # one line for each time that the daemon takes too long: what is said then
	printf '{"success":false,"error":"%s"}\n' "$(head -n 1 "$D/daemon-late")"
	sed -i 1d "$D/daemon-late"
	exit 1
fi
pid="$AGENT_BROWSER_SOCKET_DIR/$session.pid"
if [ -e "$D/daemon-slow" ] && [ ! -e "$pid" ]; then # it comes up after the command line has given up
	rm -f "$D/daemon-left"
	setsid sh -c ': >"$1"; sleep 0.5; echo $$ >"$0.pid"; : >"$0.sock"; exec sleep 600' "$AGENT_BROWSER_SOCKET_DIR/$session" "$D/daemon-left" </dev/null >/dev/null 2>&1 &
	while [ ! -e "$D/daemon-left" ]; do sleep 0.01; done # it has left this process group, whose end would be its own
	printf '{"success":false,"error":"Daemon failed to start (socket: %s)"}\n' "$AGENT_BROWSER_SOCKET_DIR/$session.sock"
	exit 1
fi
if [ ! -e "$pid" ]; then # start a daemon, as the real one does
	setsid sh -c 'echo $$ >"$0"; exec sleep 600' "$pid" </dev/null >/dev/null 2>&1 &
	while [ ! -s "$pid" ]; do sleep 0.01; done # until it has left this process group
fi

case "$1 $2" in
"open "*) ok '{"title":"T","url":"'"$2"'"}' ;;
"stream disable")
	if [ -e "$D/stream-fails" ]; then printf '{"success":false,"error":"no stream"}\n'; exit 1; fi
	ok '{"disabled":true}' ;;
"click #exit0") printf '{"success":false,"error":"it failed"}\n' ;;
"click #replaced") # the daemon ends, another one takes its place and answers
	old=$(cat "$pid"); kill "$old"; rm "$pid"
	while grep -q '^State:.[^ZX]' "/proc/$old/status" 2>/dev/null; do sleep 0.01; done
	setsid sh -c 'echo $$ >"$0"; exec sleep 600' "$pid" </dev/null >/dev/null 2>&1 &
	while [ ! -s "$pid" ]; do sleep 0.01; done
	ok '{"clicked":true}' ;;
"click #exit3") ok '{"secret":1}'; exit 3 ;;
"click #text") echo 'Usage: agent-browser' ;;
"click #nothing") ;;
"click #endless") yes ;;
"click #large") printf '{"success":true,"data":"'; head -c 300000 /dev/zero | tr '\0' a; printf '"}\n' ;;
"click #hang") sleep 600 & wait ;;
"click #late") sleep 0.2; setsid sleep 600 </dev/null >/dev/null 2>&1 & wait; sleep 600 ;;
"hover #alone") # fails when another one runs at the same time
	if ! mkdir "$D/alone" 2>/dev/null; then printf '{"success":false,"error":"overlap"}\n'; exit 1; fi
	sleep 0.1; rmdir "$D/alone"; ok '{"hovered":true}' ;;
"hover #meet") # succeeds only when two run at the same time
	: >"$D/meet.$session"
	for i in $(seq 200); do
		set -- "$D"/meet.*
		[ $# -ge 2 ] && { ok '{"met":true}'; exit 0; }
		sleep 0.1
	done
	printf '{"success":false,"error":"alone"}\n'; exit 1 ;;
"screenshot #link") ln -s /etc/hostname "$3"; ok '{"path":"'"$3"'"}' ;;
"pdf "*.page.pdf) printf '%%PDF-1.4\n' >"$2"; ok '{"path":"'"$2"'"}' ;;
"pdf "*) printf 'no such thing\n' >"$2"; ok '{"path":"'"$2"'"}' ;;
"screenshot #none") ok '{"path":"/etc/hostname"}' ;;
"screenshot "*) shift; [ $# -gt 1 ] && shift; printf '\211PNG\r\n\032\n' >"$1"; ok '{"path":"'"$1"'","annotations":[]}' ;;
"snapshot "*)
	if [ -s "$D/moving" ]; then # one line for each time that the page moves on meanwhile: what is said then
		printf '{"success":false,"error":"%s"}\n' "$(head -n 1 "$D/moving")"
		sed -i 1d "$D/moving"
		exit 1
	fi
	if [ -e "$D/snapshot" ]; then ok "$(cat "$D/snapshot")"; else ok '{"done":true}'; fi ;;
*) ok '{"done":true}' ;;
esac
