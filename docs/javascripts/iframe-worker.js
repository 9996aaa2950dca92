// The search in pages that are opened from the disk. Browsers start no Worker there, so its script runs in a hidden frame.
// After iframe-worker by Martin Donath (MIT), which Material's plugin "offline" would fetch from another server.
"use strict";

class FrameWorker extends EventTarget {
  constructor(url) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.append(frame);
    this.inside = frame.contentWindow;
    addEventListener("message", (event) => {
      if (event.source === this.inside) this.dispatchEvent(new MessageEvent("message", { data: event.data }));
    });
    this.inside.document.open();
    this.inside.document.write(`<script>(${FrameWorker.prepare})();</script><script src="${url}"></script>`);
    this.inside.document.close();
    this.ready = new Promise((done) => { this.inside.onload = done; });
  }

  // Runs in the frame: the two functions that a Worker has and a page has not.
  static prepare = () => {
    self.postMessage = (data) => parent.postMessage(data, "*");
    self.importScripts = async (...urls) => {
      for (const src of urls) {
        await new Promise((done) => {
          const script = Object.assign(document.createElement("script"), { src, onload: done });
          document.body.append(script);
        });
      }
    };
  };

  postMessage(data) {
    this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
  }
}

if (location.protocol === "file:") window.Worker = FrameWorker;
