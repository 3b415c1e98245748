"""A small MCP server over standard input and output that can be told to misbehave.

Usage: server.py BEHAVIOUR. Every start is written as a line with the process id to the file named by STARTS.
"""

import json
import os
import sys
import threading
import time

BEHAVIOUR = sys.argv[1] if len(sys.argv) > 1 else "good"
# A picture of one pixel.
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
lock = threading.Lock()
answers = {}
grown = False


def send(message):
    with lock:
        sys.stdout.write(json.dumps(dict(message, jsonrpc="2.0")) + "\n")
        sys.stdout.flush()


def note(method, params):
    send({"method": method, "params": params})


def text(value, **more):
    return dict({"content": [{"type": "text", "text": str(value)}]}, **more)


def tool(name, properties=None, **annotations):
    described = {"name": name, "description": "The tool " + name + ".", "inputSchema": {"type": "object", "properties": properties or {}}}
    if annotations:
        described["annotations"] = annotations
    return described


def tools():
    named = [
        tool("echo", {"text": {"type": "string"}}, readOnlyHint=True),
        tool("pid", readOnlyHint=True),
        tool("length", {"text": {"type": "string"}}, readOnlyHint=True),
        tool("late", {"file": {"type": "string"}, "bytes": {"type": "number"}}),
        tool("variable", {"name": {"type": "string"}}),
        tool("where"),
        tool("write", {"path": {"type": "string"}}),
        tool("slow", {"seconds": {"type": "number"}}),
        tool("progress"),
        tool("ask"),
        tool("fail"),
        tool("measure"),
        tool("destroy", destructiveHint=True),
        tool("picture"),
        tool("big"),
        tool("die"),
        tool("grow"),
        tool("flood"),
        tool("a tool.with/strange name"),
    ]
    return named + ([tool("grown")] if grown else [])


def ask(call):
    number = "question-%s" % call
    event = threading.Event()
    answers[number] = [event, None]
    schema = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}
    send({"id": number, "method": "elicitation/create", "params": {"message": "Which colour?", "requestedSchema": schema}})
    event.wait()
    return text(json.dumps(answers.pop(number)[1], sort_keys=True))


def call(number, name, arguments, meta):
    global grown
    if name == "echo":
        return text(arguments.get("text", ""))
    if name == "pid":
        return text(os.getpid())
    if name == "length":
        value = arguments["text"]
        pieces = {value[at : at + 2] for at in range(0, len(value), 2)}
        return text("%d %s" % (len(value), value[:4] if len(pieces) == 1 else "mixed"))
    if name == "late":
        open(arguments["file"] + ".begun", "w").close()
        while not os.path.exists(arguments["file"]):
            time.sleep(0.01)
        return text("x" * arguments["bytes"])
    if name == "variable":
        return text(os.environ.get(arguments["name"], "not set"))
    if name == "where":
        return text(os.getcwd())
    if name == "write":
        try:
            with open(arguments["path"], "w") as file:
                file.write("written")
        except OSError as error:
            return text(error, isError=True)
        return text("done")
    if name == "slow":
        time.sleep(arguments["seconds"])
        return text("awake")
    if name == "progress":
        for step in (1, 2):
            note("notifications/progress", {"progressToken": meta["progressToken"], "progress": step, "total": 2, "message": "step %d" % step})
        return text("there")
    if name == "ask":
        return ask(number)
    if name == "fail":
        return text("it went wrong", isError=True)
    if name == "measure":
        return {"content": [{"type": "text", "text": "long"}], "structuredContent": {"metres": 7}}
    if name == "picture":
        return {"content": [{"type": "text", "text": "look"}, {"type": "image", "data": PIXEL, "mimeType": "image/png"}]}
    if name == "big":
        return text("x" * 20 * 1024 * 1024)
    if name == "die":
        sys.stderr.write("the last words of the server\n")
        sys.stderr.flush()
        os._exit(7)
    if name == "grow":
        grown = True
        note("notifications/tools/list_changed", {})
        return text("grown")
    if name == "flood":
        while True:
            note("notifications/message", {"level": "info", "data": "water"})
    return text("called " + name)


def answer(message):
    number, method, params = message["id"], message["method"], message.get("params") or {}
    if method == "initialize":
        if BEHAVIOUR == "refuses":
            raise LookupError("no licence " + "!" * 100_000)
        if BEHAVIOUR == "speechless":
            return {}
        capabilities = {"tools": {"listChanged": True}, "resources": {}}
        info = {"name": "scripted", "version": "1"}
        answer = {"protocolVersion": params["protocolVersion"], "capabilities": capabilities, "serverInfo": info}
        if BEHAVIOUR == "teaches":
            answer["instructions"] = "Measure twice before you cut."
        return answer
    if method == "tools/list":
        if BEHAVIOUR == "endless":
            return {"tools": [tool("t%s" % time.monotonic_ns())], "nextCursor": "more"}
        if BEHAVIOUR == "crowd":
            odd = [tool(""), tool("dup"), tool("dup"), tool("vast", {"a": {"description": "d" * 100_000}}), tool("a\nb"), tool("\u00e4" * 5000)]
            return {"tools": odd + [tool("t%d" % number, {"a": {"description": "d" * 10_000}}) for number in range(200)]}
        if BEHAVIOUR == "heavy":
            return {"tools": [tool("h%s" % time.monotonic_ns(), {"a": {"description": "d" * 8_000_000}})], "nextCursor": "more"}
        if BEHAVIOUR == "shapeless":
            return {"tools": [{"name": "x", "inputSchema": 7}]}
        # Two pages, so that pages are followed.
        every = tools()
        if params.get("cursor") == "second":
            return {"tools": every[3:]}
        return {"tools": every[:3], "nextCursor": "second"}
    if method == "tools/call":
        return call(number, params["name"], params.get("arguments") or {}, params.get("_meta") or {})
    if method == "resources/list":
        return {"resources": [{"uri": "memo:one", "name": "one", "mimeType": "text/plain"}]}
    if method == "resources/templates/list":
        return {"resourceTemplates": [{"uriTemplate": "memo:{name}", "name": "memos"}]}
    if method == "resources/read":
        if params["uri"] != "memo:one":
            raise LookupError("there is no " + params["uri"])
        return {"contents": [{"uri": "memo:one", "mimeType": "text/plain", "text": "the memo"}]}
    if method == "ping":
        return {}
    raise LookupError("unknown method " + method)


def work(message):
    try:
        send({"id": message["id"], "result": answer(message)})
    except Exception as error:
        send({"id": message["id"], "error": {"code": -32603, "message": str(error)}})


def main():
    if "STARTS" in os.environ:
        with open(os.environ["STARTS"], "a") as file:
            file.write("%d\n" % os.getpid())
    sys.stderr.write("hello from the server\n")
    sys.stderr.flush()
    if BEHAVIOUR == "dies":
        sys.stderr.write("no configuration was found\n")
        sys.exit(3)
    if BEHAVIOUR == "rubbish":
        while True:
            sys.stdout.write("Welcome! This is not what you expected.\n")
            sys.stdout.flush()
    if BEHAVIOUR == "banner":
        print("Welcome to the server!", flush=True)
    if BEHAVIOUR == "noisy":
        noise = threading.Thread(target=lambda: [sys.stderr.write("noise " * 10_000) for _ in iter(int, 1)], daemon=True)
        noise.start()
    if BEHAVIOUR == "sleepy":
        time.sleep(float(sys.argv[2]))
    for line in sys.stdin:
        message = json.loads(line)
        if BEHAVIOUR == "mute":
            continue
        if "method" not in message:
            waiting = answers.get(message.get("id"))
            if waiting:
                waiting[1] = message.get("result")
                waiting[0].set()
        elif "id" in message:
            threading.Thread(target=work, args=(message,), daemon=True).start()
    if BEHAVIOUR == "stays":
        time.sleep(3600)


main()
