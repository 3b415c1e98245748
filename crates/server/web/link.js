// The connection to the server, and the server's clock.

export const link = {
  socket: null, next: 1, pending: new Map(), wait: 500,
  call(method, params = {}) {
    return new Promise((resolve, reject) => {
      if (this.socket?.readyState !== WebSocket.OPEN) return reject(new Error("there is no connection"));
      const id = this.next++;
      this.pending.set(id, { resolve, reject });
      this.socket.send(JSON.stringify({ id, method, params }));
    });
  },
  answer(id, result) { this.socket?.send(JSON.stringify({ id, result })); },
  refuse(id, message) { this.socket?.send(JSON.stringify({ id, error: { code: -32601, message } })); },
  isOpen() { return this.socket?.readyState === WebSocket.OPEN; },
};

/** How far the server's clock is ahead of this one: a browser's may be wrong, and every age would be with it. */
let ahead = 0;
/** The server's time, in milliseconds since 1970. */
export const now = () => Date.now() + ahead;
export function itIs(serverMs) { if (serverMs > 0) ahead = serverMs - Date.now(); }

export async function session() {
  const state = await fetch("/session").then((answer) => answer.json()).catch(() => null);
  itIs(state?.nowMs);
  return state;
}

/** Connects, and again whenever the connection is lost. */
export function connect({ begin, heard, asked, tell }) {
  const scheme = location.protocol === "https:" ? "wss://" : "ws://";
  const socket = new WebSocket(`${scheme}${location.host}/`);
  link.socket = socket;
  socket.onopen = () => begin().catch((error) => { console.warn(error.message); socket.close(); });
  socket.onmessage = (event) => {
    const message = JSON.parse(event.data);
    if (message.emittedAtMs) itIs(message.emittedAtMs);
    if (message.method && message.id !== undefined) return asked(message);
    if (message.method) return heard(message.method, message.params);
    const pending = link.pending.get(message.id);
    link.pending.delete(message.id);
    if (message.error) pending?.reject(new Error(message.error.message));
    else pending?.resolve(message.result);
  };
  socket.onclose = async () => {
    for (const { reject } of link.pending.values()) reject(new Error("the connection was lost"));
    link.pending.clear();
    tell("failed", "not connected; trying again");
    // A user who was logged out meanwhile is asked for a token again.
    setTimeout(() => session().then((state) => (state?.in === false ? location.reload() : connect({ begin, heard, asked, tell }))), link.wait);
    link.wait = Math.min(link.wait * 2, 10_000);
  };
}

/** How long ago something was, in one unit. */
export function ago(seconds) {
  const past = Math.max(0, now() / 1000 - seconds);
  if (past < 60) return "just now";
  if (past < 3600) return `${Math.floor(past / 60)} min ago`;
  return past < 86_400 ? `${Math.floor(past / 3600)} h ago` : `${Math.floor(past / 86_400)} d ago`;
}

export function took(ms) {
  if (ms === null || ms === undefined) return "";
  return ms < 1000 ? `${ms} ms` : `${(ms / 1000).toFixed(1)} s`;
}
