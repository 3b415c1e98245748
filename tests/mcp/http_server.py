"""A small MCP server over streamable HTTP. It prints its port, forgets its session when told to, and wants a token if TOKEN is set.

With RESTARTED it answers 400 and names no request where it does not know a session, as one does that was started anew.
It never answers the method MUTE; when whoever asked has gone, it makes the file RELEASED."""

import json
import os
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

sessions = set()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", kind="application/json", **headers):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def is_allowed(self):
        token = os.environ.get("TOKEN")
        if token and self.headers.get("authorization") != "Bearer " + token:
            self.answer(401, b"{}")
            return False
        if self.path == "/moved":
            self.answer(308, location="http://192.0.2.1/mcp")
            return False
        return True

    def do_GET(self):
        if self.is_allowed():
            self.answer(405)

    def do_DELETE(self):
        if self.is_allowed():
            sessions.discard(self.headers.get("mcp-session-id"))
            self.answer(200)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if not self.is_allowed():
            return
        message = json.loads(body)
        method, params = message.get("method"), message.get("params") or {}
        session = self.headers.get("mcp-session-id")
        if method == os.environ.get("MUTE"):
            self.rfile.read(1)
            open(os.environ["RELEASED"], "w").close()
            self.close_connection = True
            return
        if method == "initialize":
            session = str(uuid.uuid4())
            sessions.add(session)
            info = {"name": "http", "version": "1"}
            result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
            return self.result(message, result, mcp_session_id=session)
        if session not in sessions and os.environ.get("RESTARTED"):
            error = {"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": "Bad Request: No valid session ID provided"}}
            return self.answer(400, json.dumps(error).encode())
        if session not in sessions:
            return self.answer(404, b'{"error": "no such session"}')
        if "id" not in message:
            return self.answer(202)
        if method == "tools/list":
            return self.result(message, {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("session", "forget", "stream", "refuse")]})
        if method == "tools/call":
            name = params["name"]
            text = {"content": [{"type": "text", "text": session if name == "session" else name}]}
            if name == "refuse":
                error = {"jsonrpc": "2.0", "error": {"code": -32600, "message": "these arguments are no good"}}
                return self.answer(400, json.dumps(error).encode())
            if name == "forget":
                sessions.clear()
            if name == "stream":
                note = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": params["_meta"]["progressToken"], "progress": 1}}
                events = [note, {"jsonrpc": "2.0", "id": message["id"], "result": text}]
                body = "".join("event: message\r\ndata: %s\r\n\r\n" % json.dumps(event) for event in events)
                return self.answer(200, body.encode(), "text/event-stream")
            return self.result(message, text)
        self.answer(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "unknown"}}).encode())

    def result(self, message, result, **headers):
        self.answer(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode(), **headers)


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
