// Searches the built site as a browser does, and fails if a word that readers look for does not lead to its page.
import { readFileSync, readdirSync } from 'node:fs'
import path from 'node:path'
import MiniSearch from 'minisearch'
import { searchOptions } from './lib/search.js'

/** Words, and the page that must be among the first results for them. */
const expected = {
  'dead letter': 'docs/guides/retries-and-dead-letters.html',
  XAUTOCLAIM: 'docs/guides/worker-in-any-language.html',
  lease: 'docs/reference/protocol.html',
  'visibility timeout': 'docs/operations/workers.html',
  retry_delays_ms: 'docs/reference/http-operations.html',
  cron: 'docs/guides/nightly-report.html',
}

/** A reader sees so many results without scrolling. */
const seen = 10

const [dir, base] = process.argv.slice(2)
const chunks = path.join(dir, 'assets/chunks')
const chunk = readdirSync(chunks).find((name) => name.startsWith('@localSearchIndex'))
const source = readFileSync(path.join(chunks, chunk), 'utf8')
const { default: index } = await import('data:text/javascript;base64,' + Buffer.from(source).toString('base64'))
const search = MiniSearch.loadJSON(index, { fields: ['title', 'titles', 'text'], storeFields: ['title', 'titles'],
  searchOptions })

let failed = false
for (const [words, page] of Object.entries(expected)) {
  const found = search.search(words).slice(0, seen).map((r) => r.id)
  if (found.some((id) => id.split('#')[0] === base + page)) continue
  failed = true
  console.log(`search for "${words}": ${page} is not among the first ${seen}:\n  ${found.join('\n  ')}`)
}
console.log(`${Object.keys(expected).length} searches, ${Math.round(source.length / 1024)} KiB of index`)
process.exitCode = failed ? 1 : 0
