// Writes the files beside the pages: for programs that read the documents, for search engines, and for the versions.
import { existsSync, readFileSync, readdirSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { addressOf } from './pages.js'

const escape = (text) => text.replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/"/g, '&quot;')

/** Writes llms.txt and llms-full.txt: https://llmstxt.org. groups is the sidebar. */
export function writeTextsForModels(dir, pages, groups) {
  const byLink = new Map(pages.map((p) => ['/' + addressOf(p), p]))
  const inOrder = []
  const collect = (items) => items.flatMap((i) => (i.items ? collect(i.items) : [byLink.get(i.link)]))
  const home = byLink.get('/')
  const lines = [`# ${home.title}`, '', `> ${home.sentence}`]
  for (const group of groups) {
    lines.push('', `## ${group.text}`, '')
    for (const page of collect(group.items)) {
      inOrder.push(page)
      lines.push(`- [${page.title}](${page.file}): ${page.sentence}`)
    }
  }
  const left = pages.filter((p) => !inOrder.includes(p))
  if (left.length) throw new Error(`no place in the navigation: ${left.map((p) => p.source).join(', ')}`)
  writeFileSync(path.join(dir, 'llms.txt'), lines.join('\n') + '\n')
  const full = inOrder.map((page) => `<!-- ${page.file} -->\n\n${page.text.trim()}\n`)
  writeFileSync(path.join(dir, 'llms-full.txt'), full.join('\n'))
}

/** Writes the sitemap. Without host, its addresses are paths, because the host is not known. */
export function writeSitemap(file, pages, base, host) {
  const lines = pages.map((p) => `  <url><loc>${escape((host ?? '') + base + addressOf(p))}</loc></url>`)
  writeFileSync(file, ['<?xml version="1.0" encoding="UTF-8"?>',
    '<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">', ...lines, '</urlset>', ''].join('\n'))
}

/** Returns the versions in the folders of a site, the newest commit first. Each folder has its version.json. */
export function versionsIn(site) {
  return readdirSync(site, { withFileTypes: true })
    .filter((e) => e.isDirectory() && existsSync(path.join(site, e.name, 'version.json')))
    .map((e) => JSON.parse(readFileSync(path.join(site, e.name, 'version.json'), 'utf8')))
    .sort((a, b) => (a.date < b.date ? 1 : a.date > b.date ? -1 : a.version < b.version ? 1 : -1))
}

/** Writes the files at the top of a site, which lead to the newest version. */
export function writeTop(site, base) {
  const versions = versionsIn(site)
  writeFileSync(path.join(site, 'versions.json'), JSON.stringify(versions, null, 2) + '\n')
  const newest = versions[0].version
  const read = (name) => readFileSync(path.join(site, newest, name), 'utf8')
  // 404.html names its files by absolute paths, so a host may answer with it at any path.
  for (const name of ['404.html', 'sitemap.xml']) writeFileSync(path.join(site, name), read(name))
  for (const name of ['llms.txt', 'llms-full.txt']) {
    writeFileSync(path.join(site, name), read(name).replace(/\]\((?=[^)\s]+\.md\): )/g, `](${newest}/`))
  }
  writeFileSync(path.join(site, 'index.html'), `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>duestream</title>
<meta http-equiv="refresh" content="0; url=${escape(newest)}/">
<link rel="canonical" href="${escape(newest)}/">
</head>
<body><p><a href="${escape(newest)}/">duestream ${escape(newest)}</a></p></body>
</html>
`)
  return { versions, base }
}
