// What is known of the thread that is open: its items in their order, and which of them changed. Nothing is drawn here.

/** The thread that is open, if there is one. */
export let open = null;

export function openFresh(id) {
  open = { id, items: new Map(), turn: null, tokens: null, outputs: new Map(), progress: new Map(), environments: [], ended: new Set(), background: [], older: null, isReading: false, version: 0 };
  return open;
}

export function close() { open = null; }
export const isOpen = (thread) => open?.id === thread;

const changed = (entry) => Object.assign(entry, { version: open.version += 1 });

export function put(turn, item) {
  const known = open.items.get(item.id);
  if (known?.item.status && known.item.status !== "inProgress" && item.status === "inProgress") return;
  open.items.set(item.id, changed({ kind: "item", turn, item }));
}

export function putPlan(turn, told) {
  open.items.set(`plan of ${turn}`, changed({ kind: "plan", turn, explanation: told.explanation, plan: told.plan }));
}

export function end(turn) {
  if (open.ended.has(turn.id)) return;
  open.ended.add(turn.id);
  if (open.turn === turn.id) open.turn = null;
  open.items.set(`end of ${turn.id}`, changed({ kind: "end", turn: turn.id, status: turn.status, error: turn.error?.message ?? null, durationMs: turn.durationMs }));
}

/** Adds to an item that is being made; tells whether there is one. */
export function grow(threadId, itemId, add) {
  const known = isOpen(threadId) && open.items.get(itemId);
  if (!known) return false;
  known.item = add(known.item);
  changed(known);
  return true;
}
