// Leads links between documents to pages of the site, and links to other files to the repository.
import { existsSync, statSync } from 'node:fs'
import path from 'node:path'

/** The document that the site shows in place of a file that is no document. */
const shownAs = { 'bridge/gateway/openapi.json': 'docs/reference/http-operations.md' }

/**
 * Returns where a link of a document leads.
 * @param {object} site the repository at site.root, its address site.repository, its commit site.commit, and site.pages
 * @param {string} source path of the document in the repository
 * @param {string} href the link, as the document has it
 */
export function target(site, source, href) {
  if (/^[a-z][a-z0-9+.-]*:/i.test(href) || href.startsWith('#') || href.startsWith('//')) return href
  const [name, anchor] = href.split('#')
  const hash = anchor ? '#' + anchor : ''
  let file = path.posix.normalize(path.posix.join(path.posix.dirname(source), decodeURI(name))).replace(/\/$/, '')
  file = shownAs[file] ?? file
  const page = site.pages.find((p) => p.source === file)
    ?? site.pages.find((p) => p.source === path.posix.join(file, 'README.md'))
  if (page) return '/' + page.file + hash
  const onDisk = path.join(site.root, file)
  if (!existsSync(onDisk)) throw new Error(`${source} links to ${href}, which does not exist`)
  const kind = statSync(onDisk).isDirectory() ? 'tree' : 'blob'
  return `${site.repository}/${kind}/${site.commit}/${file}${hash}`
}

/** A plugin of markdown-it that changes the links of a page. Pictures keep their relative path. */
export function linksPlugin(md, site) {
  md.core.ruler.push('duestream_links', (state) => {
    const page = site.pages.find((p) => p.file === state.env.relativePath)
    if (!page) return
    for (const block of state.tokens) {
      for (const token of block.children ?? []) {
        if (token.type === 'link_open') token.attrSet('href', target(site, page.source, token.attrGet('href')))
      }
    }
  })
}

/** Returns the anchor of a heading as GitHub makes it. */
export function slug(heading) {
  return heading.toLowerCase().trim().replace(/[^\p{L}\p{N} _-]/gu, '').replace(/ /g, '-')
}
