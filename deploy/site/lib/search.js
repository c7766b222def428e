/** How the search in the browser finds pages: by the beginning of a word, and by a word with a small mistake. */
export const searchOptions = {
  fuzzy: 0.2,
  prefix: true,
  boost: { title: 6, titles: 2, text: 1 },
  // Pages about faults of the past and about the code come after those for users. VitePress copies the text of this
  // function into the page, so it uses nothing from outside.
  boostDocument: (id) => (/\/docs\/history\/|\/CHANGELOG/.test(id) ? 0.2 : /\/docs\/design\//.test(id) ? 0.3 : 1),
}
