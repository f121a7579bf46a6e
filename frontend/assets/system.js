/* The System page: a page in the background looks at nothing. */
"use strict";

(function () {
  const functions = (window.dash_clientside = window.dash_clientside || {});
  functions.radt = Object.assign(functions.radt || {}, {
    systemTick: (n) => (document.hidden ? window.dash_clientside.no_update : n),
  });
})();
