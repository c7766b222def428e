// Shows the Mermaid diagrams of the documents as the SVG files that draw.js has drawn.
import { createHash } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'

const drawn = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../diagrams')

/** Returns the name of the file of a diagram: a checksum of its source, so that no old drawing is shown. */
export function nameOfDiagram(source) {
  return createHash('sha256').update(source.trim()).digest('hex').slice(0, 16) + '.svg'
}

/** A plugin of markdown-it that shows diagrams. */
export function diagramsPlugin(md) {
  const fence = md.renderer.rules.fence
  md.renderer.rules.fence = (tokens, i, options, env, self) => {
    if (tokens[i].info.trim() !== 'mermaid') return fence(tokens, i, options, env, self)
    const file = path.join(drawn, nameOfDiagram(tokens[i].content))
    if (!existsSync(file)) {
      throw new Error(`${env.relativePath} has a new diagram: run \`node draw.js\` in deploy/site`)
    }
    // A template of Vue may not hold the style of an SVG file, but v-html may.
    const svg = encodeURIComponent(readFileSync(file, 'utf8').trim()).replace(/'/g, '%27')
    return `<figure class="diagram" v-html="decodeURIComponent('${svg}')"></figure>\n`
  }
}
