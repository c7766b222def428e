// The settings of VitePress. build.js tells the version and the pages.
import { diagramsPlugin } from '../lib/diagrams.js'
import { linksPlugin, slug } from '../lib/links.js'
import { namesPlugin } from '../lib/names.js'
import { navOf, sidebarOf } from '../lib/navigation.js'
import { rediscli } from '../lib/rediscli.js'
import { searchOptions } from '../lib/search.js'

const site = globalThis.duestreamSite

export default {
  srcDir: site.staged,
  outDir: site.out,
  base: site.base,
  lang: 'en',
  title: 'duestream',
  description: 'Messages at the time you choose, at least once, through Redis or Valkey',
  head: [['link', { rel: 'icon', href: `${site.base}icon.svg`, type: 'image/svg+xml' }]],
  appearance: true,
  lastUpdated: false,
  metaChunk: true,
  buildConcurrency: 1, // so that the index of the search has the pages in the same order each time
  markdown: {
    html: false, // so that "<queue>" stays text, as it is on a forge
    attrs: { disable: true }, // so that "{queue}" in a heading stays text
    anchor: { slugify: slug },
    toc: { slugify: slug },
    languages: [rediscli],
    languageAlias: { caddyfile: 'nginx' },
    config(md) {
      md.disable('emoji', true)
      md.linkify.set({ fuzzyLink: false, fuzzyEmail: false }) // so that "http.md" stays text
      md.renderer.rules.text = (tokens, i) => md.utils.escapeHtml(tokens[i].content).replace(/{{/g, '&#123;&#123;')
      linksPlugin(md, site)
      namesPlugin(md)
      diagramsPlugin(md)
    },
  },
  transformPageData(page) {
    const found = site.pages.find((p) => p.file === page.relativePath)
    if (found) page.description = found.sentence
  },
  vite: {
    publicDir: '../public',
    logLevel: 'warn',
    build: { chunkSizeWarningLimit: 8000 },
    define: { __VERSION__: JSON.stringify(site.version), __TOP__: JSON.stringify(site.top) },
  },
  themeConfig: {
    nav: navOf(site.demo),
    sidebar: sidebarOf(site.pages),
    outline: [2, 3],
    search: {
      provider: 'local',
      options: { detailedView: true, miniSearch: { searchOptions } },
    },
    socialLinks: [{ icon: 'github', link: site.repository }],
    docFooter: { prev: 'Before', next: 'Next' },
  },
}
