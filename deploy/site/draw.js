// Draws the Mermaid diagrams of the documents as SVG files in diagrams/, by chromium. The pages show these files, so
// that readers need not load Mermaid, which is 3 MB. Run it after a change of a diagram: node draw.js
import { execFileSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { nameOfDiagram } from './lib/diagrams.js'
import { findPages } from './lib/pages.js'

const mermaid = 'mermaid@10.9.5'
const here = path.dirname(fileURLToPath(import.meta.url))

// Mermaid computes with its colours, so it gets plain ones, which become those of the site afterwards.
const colours = {
  '#010101': 'var(--vp-c-text-1)',
  '#020202': 'var(--vp-c-text-2)',
  '#030303': 'var(--vp-c-bg-soft)',
  '#040404': 'var(--vp-c-bg)',
}
const theme = {
  primaryColor: '#030303', primaryTextColor: '#010101', primaryBorderColor: '#020202', lineColor: '#020202',
  textColor: '#010101', edgeLabelBackground: '#040404', labelBackgroundColor: '#040404', stateBkg: '#030303',
  stateBorder: '#020202', transitionColor: '#020202', transitionLabelColor: '#010101', stateLabelColor: '#010101',
  specialStateColor: '#020202', innerEndBackground: '#040404', background: '#040404', compositeBackground: '#030303',
}

const work = mkdtempSync(path.join(tmpdir(), 'duestream-diagrams-'))
try {
  execFileSync('npm', ['install', '--prefix', work, '--no-save', '--ignore-scripts', mermaid], { stdio: 'inherit' })
  const out = path.join(here, 'diagrams')
  mkdirSync(out, { recursive: true })
  for (const old of readdirSync(out)) rmSync(path.join(out, old))
  for (const page of findPages(path.resolve(here, '../..'))) {
    for (const [, source] of page.text.matchAll(/^```mermaid\n([^]*?)^```$/gm)) {
      const file = path.join(out, nameOfDiagram(source))
      writeFileSync(file, drawn(source))
      console.log(`${page.source}: ${path.relative(here, file)}`)
    }
  }
} finally {
  rmSync(work, { recursive: true, force: true })
}

// A diagram is drawn from top to bottom: from left to right it would be wider than the column of the text.
function drawn(source) {
  const html = path.join(work, 'page.html')
  const config = { startOnLoad: false, securityLevel: 'strict', theme: 'base', themeVariables: theme, htmlLabels: false,
    deterministicIds: true, fontFamily: 'sans-serif' }
  writeFileSync(html, `<!doctype html><meta charset="utf-8"><body>
    <script src="node_modules/mermaid/dist/mermaid.min.js"></script><script>
    mermaid.initialize(${JSON.stringify(config)})
    mermaid.render('diagram', ${JSON.stringify(source.replace('direction LR', 'direction TB'))}).then(({ svg }) => {
      const text = document.createElement('textarea')
      text.textContent = svg
      document.body.replaceChildren(text)
    })
    </script>`)
  const page = execFileSync('chromium', ['--headless', '--no-sandbox', '--disable-gpu', '--virtual-time-budget=10000',
    '--dump-dom', 'file://' + html], { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] })
  const escaped = /<textarea>([^]*?)<\/textarea>/.exec(page)?.[1]
  if (!escaped) throw new Error('Mermaid drew nothing:\n' + page.slice(-2000))
  let svg = escaped.replace(/&lt;/g, '<').replace(/&gt;/g, '>').replace(/&quot;/g, '"').replace(/&amp;/g, '&')
  for (const [from, to] of Object.entries(colours)) svg = svg.replaceAll(from, to)
  return svg + '\n'
}
