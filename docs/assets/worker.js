// Browsers give no workers to pages that were opened as files; the search runs in one. There it runs
// in a hidden frame of the page instead, which takes and sends the same messages.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      inner.document.open();
      inner.document.write("<!doctype html><title>search</title><body>");
      inner.document.close();
      inner.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        this.onmessage?.(event);
      };
      const script = inner.document.createElement("script");
      script.src = address;
      this.ready = new Promise((resolve, reject) => {
        script.onload = resolve;
        script.onerror = reject;
      });
      this.ready.catch((error) => this.onerror?.(error));
      inner.document.body.append(script);
    }

    postMessage(data) {
      this.ready.then(() => {
        const inner = this.frame.contentWindow;
        inner?.dispatchEvent(new inner.MessageEvent("message", { data: structuredClone(data) }));
      }, () => {});
    }

    terminate() {
      this.frame.remove();
    }
  };
}
