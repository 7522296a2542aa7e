"""Reads configurations with supervisord's own code: one JSON object a line in, {path: content} of a root directory with the
main file at /main/supervisord.conf, and env; one a line out."""
import configparser
import fnmatch
import io
import json
import os
import shlex
import sys

from supervisor import options


class File(io.StringIO):
    """A file of the root directory."""


def opened(files, path):
    if path not in files:
        raise OSError(path)
    # As open() does with text: \r and \r\n are \n.
    f = File(io.TextIOWrapper(io.BytesIO(files[path].encode())).read())
    f.name = path
    return f


def globbed(files, pattern):
    """glob.glob over files, whose own functions look at the machine's."""
    def match(parts, names):
        if len(parts) != len(names):
            return False
        return all(fnmatch.fnmatchcase(n, p) and (not n.startswith(".") or p.startswith(".")) if options.glob.has_magic(p) else n == p
                   for p, n in zip(parts, names))
    return [f for f in files if match(os.path.normpath(pattern).split("/"), f.split("/"))]


def read(files, env):
    opts = options.ServerOptions()
    opts.configfile = "/main/supervisord.conf"
    opts.here = "/main"
    opts.environ_expansions = {"ENV_" + k: v for k, v in env.items()}
    opts.exists = lambda p: p in files
    opts.open = lambda p, *_: opened(files, p)
    read = ["/main/supervisord.conf"]
    programs = {}

    def open_included(path, **_):
        f = opened(files, path)
        read.append(path)
        return f

    def processes(parser, section, *args):
        out = original(parser, section, *args)
        if out:
            p = out[0]
            try:
                args = shlex.split(p.command)
            except ValueError:
                args = None
            programs[section] = {"args": args, "user": p.uid, "priority": p.priority, "autostart": p.autostart,
                                 "environment": p.environment, "directory": p.directory, "processes": len(out)}
        return out

    original = opts._processes_from_section
    opts._processes_from_section = processes
    configparser.open = open_included
    options.glob.glob = lambda pattern: globbed(files, pattern)
    for name in ("existing_directory", "existing_dirpath", "name_to_uid", "logfile_name", "colon_separated_user_group"):
        setattr(options, name, lambda v: v)
    options.gid_for_uid = lambda v: 0
    try:
        section = opts.read_config("/main/supervisord.conf")
    except (ValueError, configparser.Error) as e:
        return {"error": str(e), "files": read}
    sockets = []
    for c in section.server_configs:
        sockets.append({"address": c.get("file") or "%s:%d" % (c["host"] or "*", c["port"])})
    # What supervisord adds to each program's own environment.
    common = section.environment
    for p in programs.values():
        p["environment"] = {k: v for k, v in p["environment"].items() if k not in common}
    return {"files": read, "programs": programs, "user": section.user, "sockets": sockets, "environment": common}


for line in sys.stdin:
    request = json.loads(line)
    try:
        out = read(request["files"], request["env"])
    except (TypeError, AttributeError, IndexError, AssertionError, OverflowError) as e:  # supervisord's own slips
        out = {"error": repr(e), "files": []}
    print(json.dumps(out), flush=True)
