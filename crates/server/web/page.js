// The page of `outpost serve`: a plain client of the app protocol. Nothing is loaded from anywhere else.
//
// This file connects, hands on what the server tells, and says which view is shown: a thread (thread.js), a machine (machine.js) or the
// form of a new thread (new-thread.js), beside the lists of environments (environments.js) and of threads (threads.js).

import { $, show } from "/dom.js";
import "/keys.js";
import { environments, hear as hearEnvironments, listen as listenToEnvironments, loadEnvironments } from "/environments.js";
import { connect, link, session } from "/link.js";
import { close as closeMachine, drawMachine, openMachine } from "/machine.js";
import { choose, drawPlaces, loadModels } from "/new-thread.js";
import { asked, drawElsewhere, forget, listen as listenToQuestions, offerNotifications, resolved } from "/questions.js";
import { hear as hearThread, openThread } from "/thread.js";
import { drawAttached, drawThread, drawTitle } from "/thread-head.js";
import { drawItems } from "/thread-items.js";
import { close as closeThread, isOpen, open } from "/thread-open.js";
import { drawThreads, hear as hearThreads, heard, listen as listenToThreads, refresh, threads, title } from "/threads.js";

/** Whether the server can be asked. */
let isReady = false;

function tell(state, text) {
  isReady = state === "ready";
  document.querySelector("#link .dot").dataset.state = state;
  $("link-text").textContent = text;
}

async function begin() {
  await link.call("initialize", {
    clientInfo: { name: "outpost-page", title: "Outpost page", version: "1" },
    capabilities: { experimentalApi: true },
  });
  link.socket.send(JSON.stringify({ method: "initialized" }));
  link.wait = 500;
  forget();
  heard.clear();
  await loadEnvironments();
  // From here on the view follows the address; before, it would be opened twice.
  tell("ready", "connected");
  drawQuestions();
  loadModels();
  await Promise.all([refresh(), route()]);
}

/** Gives what the server tells to every part of the page that is about it. */
function hear(method, params) {
  for (const part of [hearEnvironments, hearThreads, hearThread]) part[method]?.(params);
  if (method === "serverRequest/resolved") resolved(params.requestId);
}

function drawQuestions() {
  drawElsewhere(open?.id);
  drawItems();
  drawTitle();
}

listenToEnvironments({ changed() { drawPlaces(); drawAttached(); drawMachine(); } });
listenToThreads({ changed() { drawThread(); drawQuestions(); } });
listenToQuestions({
  changed: drawQuestions,
  titleOf: (id) => title(threads.get(id) ?? { preview: "another thread" }),
  isInView: isOpen,
});

async function route() {
  const id = location.hash.match(/^#\/thread\/([\w-]+)$/)?.[1];
  const machine = location.hash.match(/^#\/machine\/(.+)$/)?.[1];
  const place = location.hash.match(/^#\/new\/(.+)$/)?.[1];
  const view = id ? "thread" : machine ? "machine" : location.hash === "#/new" || place ? "new" : "list";
  document.body.dataset.view = view;
  for (const one of ["thread", "machine", "new"]) show(one, view === one);
  show("nothing", view === "list");
  if (view !== "thread") closeThread();
  if (view !== "machine") closeMachine();
  drawThreads();
  if (place) choose(decodeURIComponent(place), true);
  document.querySelector('#threads [aria-current="page"]')?.scrollIntoView({ block: "nearest" });
  const opened = id ? openThread(id) : machine ? openMachine(decodeURIComponent(machine), environments) : null;
  drawTitle();
  await opened;
  drawQuestions();
}

/** Keyboard focus follows to where the user went. */
function arrive() {
  scrollTo(0, 0);
  const place = { new: "first", thread: "main", machine: "main" }[document.body.dataset.view];
  if (place) $(place).focus({ preventScroll: true });
}

// The way past the lists is no other part of the page.
document.querySelector(".skip").onclick = (event) => { event.preventDefault(); $("main").focus(); };

addEventListener("hashchange", () => {
  if (!isReady) return;
  route().catch((error) => console.warn(error.message));
  arrive();
});
// What other programs of this home do to threads is not told, so it is looked up now and then.
setInterval(() => { if (link.isOpen() && !document.hidden) refresh(); }, 10_000);

const state = await session();
if (state?.in) {
  show("app", true);
  show("keys-button", true);
  show("logout", !state.open);
  offerNotifications();
  connect({ begin, heard: hear, asked, tell });
} else {
  show("login", true);
  show("link", false);
  show("wrong", location.hash === "#wrong");
  $("token").focus();
}
