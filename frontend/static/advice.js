/* The Advice page (frontend/pages/advice.py): the choice of the experiment. */
"use strict";

document.addEventListener("choice", ({ target, detail }) => {
  if (target.id !== "advice-experiment" || detail === window.radt.view.experiment) return;
  window.radt.change((view) => {
    view.experiment = detail;
  });
});
