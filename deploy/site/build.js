// Builds the site of one version; README.md beside this file describes its variables.
import { cpSync, existsSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { execFileSync } from 'node:child_process'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { build } from 'vitepress'
import { sidebarOf } from './lib/navigation.js'
import { operationsPage } from './lib/openapi.js'
import { writeSitemap, writeTextsForModels, writeTop } from './lib/outputs.js'
import { findPages, pageOf } from './lib/pages.js'

const here = path.dirname(fileURLToPath(import.meta.url))
const root = path.resolve(here, '../..')

/** Returns what git says of the repository. A copy without its history has other, which may be undefined. */
function git(args, other) {
  try {
    return execFileSync('git', ['-C', root, ...args], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }).trim()
  } catch {
    return other
  }
}

const version = process.env.VERSION || git(['describe', '--tags', '--always', '--dirty'], 'devel')
const base = process.env.SITE_BASE || '/'
const host = process.env.SITE_URL?.replace(/\/$/, '')
const site = path.resolve(root, process.env.SITE || 'dist/site')
if (!/^[A-Za-z0-9][A-Za-z0-9._-]*$/.test(version)) {
  throw new Error(`VERSION ${JSON.stringify(version)}: must begin with a letter or digit, and hold only A-Z a-z 0-9 . _`
    + ' -')
}
if (!/^\/([^/].*\/)?$/.test(base)) throw new Error(`SITE_BASE ${JSON.stringify(base)}: must begin and end with a slash`)
if (host && !/^https?:\/\/[^/]+$/.test(host)) {
  throw new Error(`SITE_URL ${JSON.stringify(host)}: must be a scheme and a host, such as https://duestream.example`)
}

const module = /^module (.+)$/m.exec(readFileSync(path.join(root, 'go.mod'), 'utf8'))[1]
const openapi = readFileSync(path.join(root, 'bridge/gateway/openapi.json'), 'utf8')
const pages = findPages(root)
pages.push(pageOf('docs/reference/http-operations.md', operationsPage(JSON.parse(openapi))))

// VitePress reads the pages from a directory that holds nothing else.
const staged = path.join(here, '.pages')
rmSync(staged, { recursive: true, force: true })
for (const page of pages) {
  mkdirSync(path.dirname(path.join(staged, page.file)), { recursive: true })
  writeFileSync(path.join(staged, page.file), page.text)
}
for (const name of readdirSync(path.join(root, 'docs'), { recursive: true })) {
  if (/\.(webp|svg|png)$/.test(name)) cpSync(path.join(root, 'docs', name), path.join(staged, 'docs', name))
}
const demo = process.env.SITE_DEMO ? path.resolve(root, process.env.SITE_DEMO) : undefined
const out = path.join(site, version)
rmSync(out, { recursive: true, force: true })
mkdirSync(site, { recursive: true })

process.env.TZ = 'UTC' // for the date of the commit
const commit = git(['rev-parse', 'HEAD'], 'main')
globalThis.duestreamSite = {
  root, pages, version, commit, out, staged, base: `${base}${version}/`, top: base, repository: `https://${module}`,
  demo: demo !== undefined,
}
await build(here)

for (const page of pages) {
  mkdirSync(path.dirname(path.join(out, page.file)), { recursive: true })
  writeFileSync(path.join(out, page.file), page.text)
}
writeFileSync(path.join(out, 'openapi.json'), openapi)
const date = git(['log', '-1', '--format=%cd', '--date=format-local:%Y-%m-%dT%H:%M:%SZ'], '')
writeFileSync(path.join(out, 'version.json'), JSON.stringify({ version, date }) + '\n')
writeTextsForModels(out, pages, sidebarOf(pages))
writeSitemap(path.join(out, 'sitemap.xml'), pages, `${base}${version}/`, host)
if (demo) {
  if (!existsSync(path.join(demo, 'index.html'))) throw new Error(`SITE_DEMO ${demo}: has no index.html`)
  cpSync(demo, path.join(out, 'demo'), { recursive: true })
}
const { versions } = writeTop(site, base)
rmSync(staged, { recursive: true, force: true })
console.log(`${pages.length} pages of ${version} in ${path.relative(root, out) || out}; ${versions.length} versions`)
