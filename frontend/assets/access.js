/* Says on every page when the dashboard itself is gone, or does not let this browser in any longer:
   it was started again with another token, somebody logged out in another tab. What is shown stays,
   and the note goes when the dashboard answers again. */
"use strict";

(function () {
  const ask = window.fetch.bind(window);
  /* One request that is lost on the way is no news. */
  const TOLERATED = 1;
  let failures = 0;
  let leaving = false;
  let note = null;

  function say(cause, remedy, again) {
    if (leaving || !document.body) return;
    if (!note) {
      note = document.createElement("div");
      note.className = "gone";
      note.setAttribute("role", "alert");
      document.body.append(note);
    }
    if (note.dataset.cause === cause) return;
    note.dataset.cause = cause;
    const strong = document.createElement("strong");
    strong.textContent = cause;
    const span = document.createElement("span");
    span.textContent = remedy;
    note.replaceChildren(strong, span);
    if (again) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = "Load again";
      button.addEventListener("click", () => window.location.reload());
      note.append(button);
    }
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
          "What is shown stays, and goes on by itself when it answers again. " +
          "Is it still running, and the tunnel to it?", false);
      throw error;
    }
    if (response.headers.has("X-Radt-Refused") && [401, 403].includes(response.status))
      say("The dashboard does not let this browser in any longer.",
        "It was started again, or you logged out. Open the address that it printed.", true);
    else answered();
    return response;
  };
})();
