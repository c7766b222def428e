// Lets the clock of a recorded page stand at the time of the recording, so that "in 5 minutes" stays true.
'use strict';

(() => {
  const recorded = Number(document.documentElement.dataset.recorded);
  const Living = Date;
  globalThis.Date = class extends Living {
    constructor(...parts) {
      if (parts.length === 0) super(recorded);
      else super(...parts);
    }

    static now() {
      return recorded;
    }
  };
})();
