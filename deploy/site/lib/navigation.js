// Orders the pages for the navigation at the side. The order is that of the links in the index pages of the documents,
// so that no second list has to be kept.
import path from 'node:path'
import { addressOf } from './pages.js'

/** Returns the links of a text to pages, in order: pairs of the heading above the link, and the page. */
function linked(index, pages) {
  const found = []
  let heading = ''
  let fenced = false
  for (const line of index.text.split('\n')) {
    if (line.startsWith('```')) fenced = !fenced
    if (fenced) continue
    heading = /^#+ (.+)$/.exec(line)?.[1] ?? /^\*\*([^*]+)\*\*$/.exec(line)?.[1] ?? heading
    for (const [, href] of line.matchAll(/\]\(([^)#\s]+\.md)[^)]*\)/g)) {
      const source = path.posix.join(path.posix.dirname(index.source), href)
      const page = pages.find((p) => p.source === source)
      if (page && !found.some((f) => f.page === page)) found.push({ heading, page })
    }
  }
  return found
}

/** Returns the title of a page in the navigation. */
function item(page) {
  return { text: page.title.replace(/^duestream (?=[a-z])/, ''), link: '/' + addressOf(page) }
}

/** Returns the sidebar of VitePress. */
export function sidebarOf(pages) {
  const by = (source) => pages.find((p) => p.source === source)
  const inDirectory = (dir) => pages.filter((p) =>
    path.posix.dirname(p.source) === dir && !p.source.endsWith('README.md'))
  const contents = by('docs/README.md')
  const named = linked(contents, pages)

  // The pages of a directory: first those that an index names, then the others by title.
  const ordered = (dir, index) => {
    const all = inDirectory(dir)
    const links = index ? [...linked(index, pages), ...named] : named
    const first = links.map((l) => l.page).filter((p) => all.includes(p))
    return [...new Set([...first, ...all.sort((a, b) => (a.title < b.title ? -1 : 1))])]
  }
  const group = (text, items, collapsed = true) => ({ text, items, collapsed })

  const guides = by('docs/guides/README.md')
  const ofGuides = linked(guides, pages)
  const underHeading = (heading) => ofGuides.filter((l) => l.heading === heading).map((l) => l.page)
  const recipes = underHeading('Recipes')
  const tasks = ordered('docs/guides', guides).filter((p) => !recipes.includes(p))

  const history = by('docs/history/README.md')
  const others = ['clients/python/README.md', 'clients/node/README.md', 'examples/README.md',
    'deploy/helm/duestream/README.md'].map(by).filter(Boolean)
  const groups = [
    group('Begin', [
      { text: 'What duestream is', link: '/' },
      item(by('docs/start.md')),
      { text: 'All documents', link: '/' + addressOf(contents) },
    ], false),
    group('Recipes', recipes.map(item), false),
    group('Guides', [{ text: 'About the guides', link: '/' + addressOf(guides) }, ...tasks.map(item)], false),
    group('Clients, examples, chart', others.map(item)),
    group('Operations', ordered('docs/operations').map(item)),
    group('Reference', [
      ...ordered('docs/reference').map(item),
      group('Commands', ordered('docs/reference/command', by('docs/reference/command.md')).map(item)),
    ]),
    group('Design', ordered('docs/design').map(item)),
    group('History', [
      { text: 'About the history', link: '/' + addressOf(history) },
      ...ordered('docs/history', history).map(item),
    ]),
  ]
  const placed = JSON.stringify(groups)
  const left = pages.filter((p) => !placed.includes(`"/${addressOf(p)}"`))
  return [...groups, group('Project', left.map(item))]
}

/** Returns the bar at the top. */
export function navOf(demo) {
  return [
    { text: 'Start', link: '/docs/start.html' },
    { text: 'Guides', link: '/docs/guides/', activeMatch: '/docs/guides/' },
    { text: 'Operations', link: '/docs/operations/deploy.html', activeMatch: '/docs/operations/' },
    { text: 'Reference', link: '/docs/reference/command.html', activeMatch: '/docs/reference/' },
    ...(demo ? [{ text: 'Demo', link: '/demo/', target: '_self' }] : []),
  ]
}
