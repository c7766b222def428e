// Lists the documents that become pages of the site.
import { existsSync, readFileSync, readdirSync } from 'node:fs'
import path from 'node:path'

/** The directories whose Markdown files become pages, with all directories in them. */
const trees = ['docs']

/** The single documents that become pages, if they exist. */
const single = ['README.md', 'CHANGELOG.md', 'CONTRIBUTING.md', 'SECURITY.md', 'clients/python/README.md',
  'clients/node/README.md', 'examples/README.md', 'deploy/helm/duestream/README.md']

/**
 * A page of the site.
 * @typedef {object} Page
 * @property {string} source path of the document in the repository
 * @property {string} file path of the document among the pages: README.md becomes index.md
 * @property {string} title the first heading
 * @property {string} sentence the first sentence below the first heading
 * @property {string} text the Markdown
 */

/** Returns all pages of the repository at root. */
export function findPages(root) {
  const sources = single.filter((name) => existsSync(path.join(root, name)))
  for (const tree of trees) {
    for (const name of readdirSync(path.join(root, tree), { recursive: true })) {
      if (name.endsWith('.md')) sources.push(path.posix.join(tree, name.split(path.sep).join('/')))
    }
  }
  return sources.sort().map((source) => pageOf(source, readFileSync(path.join(root, source), 'utf8')))
}

/** Returns the page of a document. */
export function pageOf(source, text) {
  return {
    source,
    file: source.replace(/(^|\/)README\.md$/, '$1index.md'),
    title: plain(/^# (.+)$/m.exec(text)?.[1] ?? source),
    sentence: firstSentence(text),
    text: withoutComments(text),
  }
}

/** Returns the address of a page, relative to the folder of the version. */
export function addressOf(page) {
  return page.file.replace(/(^|\/)index\.md$/, '$1').replace(/\.md$/, '.html')
}

/** Returns Markdown without links, code marks and emphasis. */
export function plain(markdown) {
  return markdown.replace(/!?\[([^\]]*)\]\([^)]*\)/g, '$1').replace(/`|\*\*/g, '').trim()
}

// A comment names the program that wrote the page. It is for those who edit the file.
function withoutComments(text) {
  return text.replace(/^<!--[^]*?-->\n\n?/gm, '')
}

function firstSentence(text) {
  const paragraphs = withoutComments(text).replace(/^```[^]*?^```$/gm, '').split(/\n{2,}/)
  const first = paragraphs.find((p) => /^[\p{L}`\[*]/u.test(p))
  if (!first) return ''
  const line = plain(first.replace(/\n/g, ' '))
  return /^.*?[.:](?= |$)/.exec(line)?.[0].replace(/:$/, '.') ?? line
}
