// Talks to `ropewalk dashboard`. The link's token stands in the fragment, which browsers do not send.

// What changes need beside the cookie. The storage of a window belongs to this port; cookies go to every port.
const PROOF = "ropewalk-proof";

/** Exchanges the token of the link for a cookie and a proof; nothing when the window has them. */
export async function begin() {
  const token = location.hash.slice(1);
  if (!token) return;
  // The token must not stay in the history of the browser.
  history.replaceState(null, "", location.pathname);
  const { proof } = await post("/session", { token });
  sessionStorage.setItem(PROOF, proof);
}

async function answer(response) {
  const value = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(value.error || `the dashboard answers ${response.status}`);
  return value;
}

export async function get(path) {
  return answer(await fetch(path, { credentials: "same-origin" }));
}

export async function post(path, body = {}) {
  const headers = { "content-type": "application/json", "x-ropewalk": sessionStorage.getItem(PROOF) ?? "" };
  return answer(await fetch(path, { method: "POST", headers, body: JSON.stringify(body), credentials: "same-origin" }));
}

/** Calls `onView` with each view, and `onGone` with the reason while there is none. Stops in a hidden window. */
export function watch(onView, onGone) {
  let source = null;
  const open = () => {
    source = new EventSource("/events");
    source.addEventListener("view", (event) => onView(JSON.parse(event.data)));
    source.addEventListener("gone", (event) => onGone(JSON.parse(event.data).error));
    source.onerror = () => {
      onGone("the dashboard does not answer: is `ropewalk dashboard` still running?");
      // A refused stream is not tried again by the browser.
      if (source?.readyState === EventSource.CLOSED) setTimeout(() => source && (source.close(), open()), 3000);
    };
  };
  const follow = () => {
    source?.close();
    source = null;
    if (!document.hidden) open();
  };
  document.addEventListener("visibilitychange", follow);
  follow();
}
