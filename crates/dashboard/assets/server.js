// Talks to `ropewalk dashboard`. The link's token stands in the fragment, which browsers do not send.

// What changes need beside the cookie. The storage of a window belongs to this port; cookies go to every port.
const PROOF = "ropewalk-proof";

// Time between attempts, milliseconds. Longer: less work while nobody answers, later news.
const AGAIN_MS = 1000;
// Time without an answer or a message after which the page tries again, milliseconds. Longer than the dashboard waits
// for a gateway, or nobody hears why there is nothing.
const SILENCE_MS = 30000;
// Time after which a refused stream is tried again, milliseconds. Longer: less work, later news.
const REFUSED_MS = 3000;
// Time without a message after which the page says so, milliseconds. Longer than the pause between two messages.
const QUIET_MS = 8000;
const NO_ANSWER = "the dashboard does not answer, or its command has ended";

/** No answer came: to be asked again. */
class NoAnswerError extends Error {}

/** Exchanges the token of the link for a cookie and a proof; nothing when the window has them. */
export async function begin() {
  const token = location.hash.slice(1);
  if (!token) return;
  try {
    const { proof } = await post("/session", { token }, SILENCE_MS);
    sessionStorage.setItem(PROOF, proof);
  } catch (error) {
    // The next attempt needs the token.
    if (error instanceof NoAnswerError) throw error;
    clean();
    throw error;
  }
  clean();
}

// The token must not stay in the history of the browser.
const clean = () => history.replaceState(null, "", location.pathname);

/** Does something until it has an answer, and says why there is none yet. */
export async function insist(doing, onGone) {
  for (;;) {
    try {
      return await doing();
    } catch (error) {
      if (!(error instanceof NoAnswerError)) throw error;
      onGone(error.message);
      await new Promise((resolve) => { setTimeout(resolve, AGAIN_MS); });
    }
  }
}

async function ask(path, options, most) {
  const signal = most ? AbortSignal.timeout(most) : undefined;
  const response = await fetch(path, { credentials: "same-origin", signal, ...options }).catch(() => { throw new NoAnswerError(NO_ANSWER); });
  const value = await response.json().catch(() => null);
  if (!response.ok) throw new Error(value?.error || `the dashboard answers ${response.status}`);
  // Cut short.
  if (value === null) throw new NoAnswerError(NO_ANSWER);
  return value;
}

export const get = (path) => ask(path, {}, SILENCE_MS);

/** Asks for a change. It may take long; with `most`, milliseconds, no longer than that. */
export async function post(path, body = {}, most = 0) {
  const headers = { "content-type": "application/json", "x-ropewalk": sessionStorage.getItem(PROOF) ?? "" };
  return ask(path, { method: "POST", headers, body: JSON.stringify(body) }, most);
}

/** Calls `onView` with each view, and `onGone` with the reason while there is none, and whether the gateway is known not to answer. Stops in a hidden window. */
export function watch(onView, onGone) {
  let source = null;
  let heard = 0;
  let tried = 0;
  const open = () => {
    source?.close();
    source = new EventSource("/events");
    tried = Date.now();
    const on = (name, told) => source.addEventListener(name, (event) => { heard = tried = Date.now(); told(JSON.parse(event.data)); });
    on("view", onView);
    on("gone", (message) => onGone(message.error, true));
    source.onerror = () => { heard = Date.now(); onGone(NO_ANSWER); };
  };
  const follow = () => {
    source?.close();
    source = null;
    heard = Date.now();
    if (!document.hidden) open();
  };
  // A stream may die without a word, and a browser does not try again what was refused.
  setInterval(() => {
    if (!source) return;
    const now = Date.now();
    if (now - heard > QUIET_MS) onGone(`nothing has come for more than ${QUIET_MS / 1000} s: the gateway or the way to it is slow`);
    if (now - tried > (source.readyState === EventSource.CLOSED ? REFUSED_MS : SILENCE_MS)) open();
  }, AGAIN_MS);
  document.addEventListener("visibilitychange", follow);
  follow();
}
