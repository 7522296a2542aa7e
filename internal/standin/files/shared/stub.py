"""What the stand-in's python servers share: answers, tickets and auth, the way to the browser's debugging port."""
import base64
import http.client
import http.server
import json
import os
import socketserver
import threading
import time
import urllib.parse
import uuid


class Gate:
    """Tickets and auth by the original's rules, flaws included: a ticket opens every route, makes the next ticket, and is
    good any number of times in its life; a token needs no exp; a blank key opens everything."""

    def __init__(self, api_keys):
        self.ttl = int(os.environ.get("TICKET_TTL_SECONDS") or 30)
        self.jwt_key = os.environ.get("JWT_PUBLIC_KEY", "").strip()
        self.api_key = os.environ.get("SANDBOX_API_KEY", "").strip() if api_keys else ""
        self.tickets = {}
        self.lock = threading.Lock()

    def ticket(self):
        now = time.monotonic()
        with self.lock:
            self.tickets = {t: end for t, end in self.tickets.items() if end > now}
            ticket = str(uuid.uuid4())
            self.tickets[ticket] = now + self.ttl
        return {"ticket": ticket, "expires_in": self.ttl}

    def status(self, headers, uri):
        """The status of /auth for a request to uri: 200, 401 or 503."""
        if not self.jwt_key and not self.api_key:
            return 200
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(headers.get("X-Original-URI") or uri).query)
        if "ticket" in query:
            # A bad ticket is refused even beside a good token.
            with self.lock:
                return 200 if self.tickets.get(query["ticket"][-1], 0) > time.monotonic() else 401
        kind, _, token = headers.get("Authorization", "").partition(" ")
        bearer = token.strip() if kind.lower() == "bearer" else ""
        if self.api_key and self.api_key in (headers.get("X-AIO-API-Key"), query.get("api_key", [""])[-1], bearer):
            return 200
        if not self.jwt_key or not bearer:
            return 401
        import jwt

        try:
            key = base64.b64decode(self.jwt_key, validate=True)
            key = jwt.algorithms.RSAAlgorithm(jwt.algorithms.RSAAlgorithm.SHA256).prepare_key(key)
        except (ValueError, TypeError, jwt.PyJWTError):
            return 503
        try:
            jwt.decode(bearer, key, algorithms=["RS256"], options={"verify_aud": False})
        except jwt.PyJWTError:
            return 401
        return 200


class Handler(http.server.BaseHTTPRequestHandler):
    """A request whose body is read; get and post are the subclass's."""

    protocol_version = "HTTP/1.1"

    def answer(self, code, body, kind="application/json"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def handle_one(self, method):
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.path_only = urllib.parse.urlsplit(self.path).path
        try:
            method(self.path_only)
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            self.answer(422, {"detail": str(e)})
        except OSError as e:
            self.answer(502, {"detail": str(e)})

    def do_GET(self):
        self.handle_one(self.get)

    do_HEAD = do_GET

    def do_POST(self):
        self.handle_one(self.post)

    do_PUT = do_DELETE = do_POST

    def stand_in(self):
        self.answer(501, {"detail": "stand-in"})

    def cdp(self, origin, path):
        """Passes a plain request on to the browser's debugging port."""
        conn = http.client.HTTPConnection(urllib.parse.urlsplit(origin).netloc, timeout=30)
        conn.request(self.command, path, self.body or None)
        response = conn.getresponse()
        self.answer(response.status, response.read(), response.getheader("Content-Type") or "application/json")


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 128


def serve(host, port, handler):
    Server((host, port), handler).serve_forever()


# One white point.
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mP8/x8AAwMCAO+ip1sAAAAASUVORK5CYII="
)
