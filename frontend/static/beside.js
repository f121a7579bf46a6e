/* Boxes that open beside a button, one at a time: panels, menus, notes. A press elsewhere, Escape
   and leaving them with Tab close them. */
"use strict";

(function () {
  const MARGIN_PX = 8;
  let shown = null;

  /* Open a box, or close it if this button has opened it. Return whether it is open now. */
  function open(button, element) {
    const isAgain = shown && shown.button === button;
    close();
    if (isAgain) return false;
    const { activeElement } = document;
    const stop = new AbortController();
    shown = { button, element, stop, back: activeElement === document.body ? button : activeElement };
    button.setAttribute("aria-expanded", "true");
    element.classList.add("beside");
    element.popover = "manual";
    document.body.append(element);
    element.showPopover();
    place();
    const on = (target, type, act) => target.addEventListener(type, act, { capture: true, signal: stop.signal });
    const leave = ({ target }) => !element.contains(target) && !button.contains(target) && close();
    on(document, "pointerdown", leave);
    on(document, "focusin", leave);
    on(document, "keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      close();
    });
    on(window, "popstate", close);
    on(window, "resize", place);
    on(window, "scroll", place);
    return true;
  }

  function close() {
    if (!shown) return;
    const { button, element, stop, back } = shown;
    shown = null;
    stop.abort();
    button.setAttribute("aria-expanded", "false");
    const active = document.activeElement;
    if (element.contains(active)) {
      active.blur(); // so that what is being typed is saved
      back.focus({ preventScroll: true });
    }
    element.remove();
  }

  function place() {
    const { button, element } = shown;
    if (!button.isConnected) return; // a table has drawn its row again
    const box = button.getBoundingClientRect();
    const below = window.innerHeight - box.bottom - 2 * MARGIN_PX;
    const above = box.top - 2 * MARGIN_PX;
    const isAbove = below < Math.min(element.scrollHeight, 320) && above > below;
    element.style.maxHeight = `${Math.max(160, isAbove ? above : below)}px`;
    const left = Math.min(box.left, window.innerWidth - element.offsetWidth - MARGIN_PX);
    element.style.left = `${Math.max(MARGIN_PX, left)}px`;
    const top = isAbove ? box.top - element.offsetHeight - 4 : box.bottom + 4;
    element.style.top = `${Math.max(MARGIN_PX, top)}px`;
  }

  window.radt.beside = { open, close, place: () => shown && place() };
})();
