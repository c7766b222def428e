// The script of the dashboard: it keeps a page up to date, shows times and numbers in the viewer's language, and gives
// the keyboard its keys. Without it every page and form still works. Text from Redis reaches the page only as HTML that
// the server escaped.
'use strict';

(() => {
  // ---- times and numbers ------------------------------------------------------------------------------------------

  const dateTime = new Intl.DateTimeFormat(undefined, {dateStyle: 'medium', timeStyle: 'medium'});
  const clock = {hour: 'numeric', minute: '2-digit', second: '2-digit', fractionalSecondDigits: 3};
  const momentToday = new Intl.DateTimeFormat(undefined, clock);
  const momentEver = new Intl.DateTimeFormat(undefined, {year: 'numeric', month: 'short', day: 'numeric', ...clock});
  const relative = new Intl.RelativeTimeFormat(undefined, {numeric: 'auto'});
  const whole = new Intl.NumberFormat();
  const units = [
    ['year', 31536e6], ['month', 2592e6], ['day', 864e5], ['hour', 36e5], ['minute', 6e4], ['second', 1e3],
  ];

  function moment(time) {
    return (time.toDateString() === new Date().toDateString() ? momentToday : momentEver).format(time);
  }

  function distance(time) {
    const ms = time - Date.now();
    // A little less than a unit counts as the unit: "in 1 hour" and not "in 60 minutes".
    const [unit, length] = units.find(([, length]) => Math.abs(ms) >= 0.99 * length) ?? units.at(-1);
    return relative.format(Math.round(ms / length), unit);
  }

  // localize shows the times and numbers below an element in the viewer's language. The exact values stay in the title.
  function localize(root) {
    requestAnimationFrame(hintScroll); // after the texts below have their width
    for (const element of root.querySelectorAll('time[datetime]')) {
      const time = new Date(element.dateTime);
      if (Number.isNaN(time.valueOf())) continue;
      const {relative: isRelative, moment: isMoment} = element.dataset;
      const format = isRelative !== undefined ? distance : isMoment !== undefined ? moment : dateTime.format;
      const text = format(time);
      if (element.textContent !== text) element.textContent = text;
    }
    for (const element of root.querySelectorAll('data[value]')) {
      if (!/^-?\d+$/.test(element.value)) continue;
      const text = whole.format(BigInt(element.value));
      if (element.textContent !== text) element.textContent = text;
    }
  }

  // hintScroll marks the tables that go on to the right, which a phone shows with no scroll bar.
  function hintScroll() {
    for (const box of document.querySelectorAll('.scroll')) {
      const rest = box.scrollWidth - box.clientWidth - box.scrollLeft;
      box.classList.toggle('more', rest > 2);
    }
  }

  document.addEventListener('scroll', hintScroll, {capture: true, passive: true});
  addEventListener('resize', hintScroll);

  // ---- updates ----------------------------------------------------------------------------------------------------

  let stream = null;
  let updated = new Date(); // when the figures of the page were read
  let opened = 0; // when the stream was opened
  let failures = 0; // failed connections since a stream last stayed open for longestPause

  const longestPause = 30_000;

  // later calls next after a pause of about least milliseconds. The pause doubles with each failure, up to
  // longestPause. It varies by a quarter, so that the viewers of a restarted process do not all come back at once.
  function later(least, failures, next) {
    const pause = Math.max(least, Math.min(least * 2 ** failures, longestPause));
    setTimeout(next, pause * (0.75 + Math.random() / 2));
  }

  // reload loads the page again as soon as it is visible. If the page was loaded again lately, reload waits first,
  // longer each time, because another load may not help.
  function reload(least = 0) {
    const key = 'duestream-reloads';
    let last = {n: 1, at: Date.now()}; // without the storage each reload waits
    try {
      last = JSON.parse(sessionStorage.getItem(key)) ?? {n: 0, at: 0};
      if (Date.now() - last.at > 3 * longestPause) last = {n: 0, at: 0};
      sessionStorage.setItem(key, JSON.stringify({n: last.n + 1, at: Date.now()}));
    } catch {
      // The browser has no storage for this page.
    }
    const load = () => {
      if (!document.hidden) location.reload();
      else document.addEventListener('visibilitychange', load, {once: true});
    };
    if (last.n === 0 && least === 0) load();
    else later(Math.max(least, 1000), last.n, load);
  }

  function showAway(text) {
    const banner = document.getElementById('away');
    if (!banner) return;
    banner.hidden = !text;
    banner.textContent = text && `${text} The figures are of ${dateTime.format(updated)}.`;
    document.body.classList.toggle('stale', Boolean(text));
  }

  // watch opens the stream of updates of the page, while the page is visible.
  function watch() {
    const address = document.body.dataset.live;
    if (!address || stream || document.hidden) return;
    stream = new EventSource(address);
    opened = Date.now();
    stream.addEventListener('update', async (message) => {
      updated = new Date();
      showAway('');
      // The update is HTML that the server rendered, and it replaces a part of the page.
      await htmx.swap({sourceElement: document.body, target: document.body, text: message.data, swap: 'none'});
      localize(document);
      if (document.querySelector('[data-rest]')) { // nothing will change by itself any more
        unwatch();
        delete document.body.dataset.live;
      }
      document.dispatchEvent(new CustomEvent('dashboard:updated'));
    });
    stream.addEventListener('away', (message) => showAway(message.data));
    stream.addEventListener('gone', () => {
      unwatch();
      reload();
    });
    stream.addEventListener('stop', (message) => {
      unwatch();
      showAway(`${message.data} It tries again in a minute.`);
      later(60_000, 0, reconnect);
    });
    stream.onerror = () => {
      unwatch(); // else the browser would reconnect by itself, without end
      showAway('This page has lost its connection, and tries again.');
      if (Date.now() - opened > longestPause) failures = 0;
      later(5000, failures, reconnect);
      failures += 1;
    };
    stream.onopen = () => showAway('');
  }

  // reconnect watches again. If the viewer is not logged in any more, the page leads to the login.
  async function reconnect() {
    if (document.hidden || stream) return; // the page watches again when it is visible
    try {
      const answer = await fetch('session', {method: 'HEAD', redirect: 'manual'});
      if (answer.type === 'opaqueredirect') {
        reload();
        return;
      }
    } catch {
      // The server is away, and the stream fails again.
    }
    watch();
  }

  function unwatch() {
    stream?.close();
    stream = null;
  }

  document.addEventListener('visibilitychange', () => (document.hidden ? unwatch() : watch()));
  addEventListener('pagehide', unwatch);
  addEventListener('pageshow', watch);

  // ---- search -----------------------------------------------------------------------------------------------------

  let search = null; // the stream of hits
  let swapped = Promise.resolve();

  // startSearch opens the stream of hits. It goes on while the page is hidden, because a search ends by itself.
  function startSearch(more = '') {
    const result = document.querySelector('[data-search]');
    if (!result) return;
    const take = (message) => {
      swapped = swapped.then(async () => {
        await htmx.swap({sourceElement: document.body, target: document.body, text: message.data, swap: 'none'});
        localize(result);
        countSelected();
      });
    };
    search = new EventSource(result.dataset.search + more);
    search.addEventListener('update', take);
    search.addEventListener('end', (message) => {
      endSearch();
      take(message);
    });
    search.addEventListener('gone', () => {
      endSearch();
      reload();
    });
    search.onerror = () => interruptSearch('search-lost'); // a browser would repeat the search
  }

  function endSearch() {
    search?.close();
    search = null;
  }

  // interruptSearch ends the search, and shows a template instead of its progress.
  function interruptSearch(template) {
    endSearch();
    const progress = document.getElementById('search-progress');
    const phase = progress.querySelector('input');
    progress.replaceChildren(phase, document.getElementById(template).content.cloneNode(true));
  }

  // goOn searches from the queue on in which the search was interrupted.
  function goOn() {
    const {queue, phase} = document.getElementById('search-progress').dataset;
    for (const row of document.querySelectorAll('#hits tr')) {
      if (!queue || row.dataset.queue >= queue) row.remove(); // an exact ID was found before its turn
    }
    const shown = document.querySelectorAll('#hits tr').length;
    startSearch(`&${new URLSearchParams({begin: queue, shown, as: phase})}`);
  }

  // countSelected shows how many hits are selected.
  function countSelected() {
    for (const output of document.querySelectorAll('[data-selected]')) {
      const boxes = output.closest('form').querySelectorAll(`input[name="${output.dataset.selected}"]:checked`);
      output.value = whole.format(boxes.length);
      const needBoxes = 'button[value="chosen"], button[value="selected"]';
      for (const button of output.form.querySelectorAll(needBoxes)) button.disabled = boxes.length === 0;
    }
  }

  document.addEventListener('click', (event) => {
    if (event.target.closest('[data-stop]')) interruptSearch('search-stopped');
    if (event.target.closest('[data-go-on]')) goOn();
  });

  document.addEventListener('change', (event) => {
    const name = event.target.dataset.selects;
    if (name) {
      for (const box of event.target.form.querySelectorAll(`input[name="${name}"]`)) box.checked = event.target.checked;
    }
    countSelected();
  });

  // ---- keyboard ---------------------------------------------------------------------------------------------------

  const rows = () => [...document.querySelectorAll('table.rows tbody tr')];

  function moveTo(step) {
    const all = rows();
    if (all.length === 0) return;
    const at = all.findIndex((row) => row.classList.contains('at'));
    const next = at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + step, 0), all.length - 1);
    all[at]?.classList.remove('at');
    all[next].classList.add('at');
    (all[next].querySelector('a, input, button') ?? all[next]).focus({preventScroll: true});
    all[next].scrollIntoView({block: 'nearest'});
  }

  let afterG = false;

  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const field = event.target.closest('input:not([type="checkbox"]), textarea, select, [contenteditable]');
    if (field) {
      if (event.key === 'Escape') field.blur();
      return;
    }
    if (document.querySelector('dialog[open]')) return;
    if (afterG) {
      afterG = false;
      const link = document.querySelector(`.side a[data-key="${CSS.escape(event.key)}"]`);
      if (link) link.click();
      return;
    }
    if (event.key === 'Enter' && event.target.matches('tr input[type="checkbox"]')) {
      event.preventDefault(); // a browser would send the form
      event.target.closest('tr').querySelector('a')?.click();
      return;
    }
    const keys = {
      '/': () => document.querySelector('[data-focus-key="/"]')?.focus(),
      '?': () => document.getElementById('keys')?.showModal(),
      j: () => moveTo(1),
      k: () => moveTo(-1),
      a: () => document.querySelector('[data-focus-key="a"]')?.focus(),
      x: () => document.querySelector('tr.at input[type="checkbox"]')?.click(),
      g: () => { afterG = true; setTimeout(() => { afterG = false; }, 1500); },
    };
    const action = keys[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  document.addEventListener('keydown', onKey);

  // ---- small behaviours -------------------------------------------------------------------------------------------

  document.addEventListener('click', async (event) => {
    const opener = event.target.closest('[data-opens]');
    if (opener) document.getElementById(opener.dataset.opens)?.showModal();
    const closer = event.target.closest('[data-closes]');
    if (closer) closer.closest('dialog')?.close();
    const copier = event.target.closest('[data-copies], [data-copies-from]');
    if (copier) {
      const label = copier.textContent;
      copier.textContent = await copy(copier.dataset).then(() => 'Copied', () => 'Not copied');
      setTimeout(() => { copier.textContent = label; }, 1500);
    }
  });

  // An update may name a payload that the page does not show, because the message was replaced.
  document.addEventListener('dashboard:updated', () => {
    const banner = document.getElementById('payload-changed');
    const named = [...document.querySelectorAll('a[data-payload]')];
    if (banner) banner.hidden = named.every((link) => document.getElementById(link.hash.slice(1)));
  });

  // copy puts the text of an element, or of a file of the server, into the clipboard.
  async function copy({copies, copiesFrom}) {
    if (copies) return navigator.clipboard.writeText(document.getElementById(copies).textContent);
    const text = fetch(copiesFrom).then(async (answer) => {
      if (!answer.ok) throw new Error(answer.statusText);
      return new Blob([await answer.text()], {type: 'text/plain'});
    });
    return navigator.clipboard.write([new ClipboardItem({'text/plain': text})]);
  }

  // A field for a date and time is in the viewer's zone. Its form has a hidden field "at", which gets the exact time.
  // Without this script the server reads the field as UTC, and the page says so.
  function useZone() {
    const pad = (number, length = 2) => String(number).padStart(length, '0');
    for (const field of document.querySelectorAll('input[type="datetime-local"][data-at]')) {
      const exact = field.form.elements.at;
      const set = (time) => { exact.value = Number.isNaN(time.valueOf()) ? '' : time.toISOString(); };
      const time = new Date(field.dataset.at);
      if (!Number.isNaN(time.valueOf())) {
        field.value = `${pad(time.getFullYear(), 4)}-${pad(time.getMonth() + 1)}-${pad(time.getDate())}` +
          `T${pad(time.getHours())}:${pad(time.getMinutes())}:${pad(time.getSeconds())}`;
      }
      set(new Date(field.value));
      field.addEventListener('input', () => set(new Date(field.value)));
    }
    const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
    for (const element of document.querySelectorAll('[data-zone]')) element.textContent = zone;
  }

  // A button whose dialog asks for a typed text works only when the text is right.
  document.addEventListener('input', (event) => {
    const wanted = event.target.dataset.confirms;
    if (wanted === undefined) return;
    const button = event.target.form.querySelector('button[type="submit"], button:not([type])');
    button.disabled = event.target.value !== wanted;
  });

  // A form is sent once, however often its button is pressed, unless the answer is a file.
  document.addEventListener('submit', (event) => {
    if (event.submitter?.dataset.download !== undefined) return;
    for (const button of event.target.querySelectorAll('button')) setTimeout(() => { button.disabled = true; });
  });

  // The server shows times in the zone of this cookie. Each form tells the zone in which it shows its times.
  function tellZone() {
    const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
    const secure = location.protocol === 'https:' ? '; Secure' : '';
    if (zone) document.cookie = `duestream_zone=${zone}; Max-Age=31536000; SameSite=Strict${secure}`;
  }

  // An address holds no empty parameters, and without a time no zone.
  document.addEventListener('formdata', ({target, formData}) => {
    if (target.dataset.tidy === undefined) return;
    for (const name of new Set(formData.keys())) {
      const values = formData.getAll(name).filter((value) => value !== '');
      formData.delete(name);
      for (const value of values) formData.append(name, value);
    }
    const times = [...target.querySelectorAll('input[type="datetime-local"]')];
    if (times.every((field) => !field.value)) formData.delete('times_in');
  });

  function start() {
    tellZone();
    localize(document);
    document.querySelector('.tabs [aria-current]')?.scrollIntoView({block: 'nearest', inline: 'center'});
    countSelected();
    startSearch();
    useZone();
    for (const field of document.querySelectorAll('[data-confirms]')) {
      field.dispatchEvent(new Event('input', {bubbles: true}));
    }
    watch();
    setInterval(() => { if (!document.hidden) localize(document); }, 1000);
    const secret = location.hash.slice(1);
    const login = document.getElementById('login');
    if (login && secret) { // "duestream dev" prints an address with the token behind #, which no server sees
      history.replaceState(null, '', location.pathname + location.search);
      login.elements.token.value = secret;
      // Elsewhere, the address may be a link of somebody who wants the viewer to act with their token.
      const isOwn = ['127.0.0.1', '[::1]', 'localhost'].includes(location.hostname);
      if (isOwn && 'byAddress' in login.dataset) login.requestSubmit();
    }
    if (document.querySelector('[data-retry]')) reload(3000);
  }

  start();
  document.documentElement.dataset.script = 'runs'; // from now on the keyboard works
})();
