/* Shows on every page that the dashboard is unreachable or no longer accepts this browser: it
   was restarted with another token, or the user logged out in another tab. The page keeps its
   content, and the note disappears when the dashboard answers again. */
"use strict";

(function () {
  const { h } = window.radt;
  const ask = window.fetch.bind(window);
  /* A single failed request is not reported. */
  const TOLERATED = 1;
  let failures = 0;
  let leaving = false;
  let note = null;

  function say(cause, remedy, again) {
    if (leaving || !document.body) return;
    if (!note) {
      note = h("div", { class: "gone", role: "alert" });
      document.body.append(note);
    }
    if (note.dataset.cause === cause) return;
    note.dataset.cause = cause;
    note.replaceChildren(h("strong", {}, cause), h("span", {}, remedy), again ? h("button", {
      class: "button", onclick: () => window.location.reload(),
    }, "Reload") : "");
  }

  function answered() {
    failures = 0;
    if (note) note.remove();
    note = null;
  }

  window.addEventListener("pagehide", () => { leaving = true; });
  window.addEventListener("pageshow", () => { leaving = false; });

  window.fetch = async (...request) => {
    let response;
    try {
      response = await ask(...request);
    } catch (error) {
      if (error && error.name !== "AbortError") failures += 1;
      if (failures > TOLERATED)
        say("The dashboard does not answer.",
          "The page stays as it is and continues when the dashboard answers again. " +
          "Check that it runs, and the tunnel to it.", false);
      throw error;
    }
    if (response.headers.has("X-Radt-Refused") && [401, 403].includes(response.status))
      say("The dashboard no longer accepts this browser.",
        "It was restarted, or you logged out. Reload the page to log in again.", true);
    else answered();
    return response;
  };
})();
