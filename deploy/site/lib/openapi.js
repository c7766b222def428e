// Writes the page of the HTTP operations from the OpenAPI document of the gateway.

const cell = (text) => String(text ?? '').replace(/\|/g, '\\|').replace(/\n/g, ' ').replace(/</g, '&lt;')
const code = (text) => '`' + String(text).replace(/\|/g, '\\|') + '`'
const nameOf = (ref) => ref.split('/').pop()
const linkTo = (name) => `[${name}](#type-${name.toLowerCase()})`

/** Returns a schema in a few words. */
function words(schema) {
  if (!schema || Object.keys(schema).length === 0) return 'any JSON'
  if (schema.$ref) return linkTo(nameOf(schema.$ref))
  for (const word of ['oneOf', 'anyOf']) {
    if (schema[word]) return schema[word].map(words).join(' or ')
  }
  if (schema.allOf) return schema.allOf.map(words).join(' and ')
  if (schema.type === 'array') return 'array of ' + words(schema.items)
  if (schema.const !== undefined) return code(JSON.stringify(schema.const))
  if (schema.enum) return schema.enum.map((value) => code(value)).join(', ')
  let text = [schema.type].flat().filter(Boolean).join(' or ') || cell(schema.description) || 'any JSON'
  if (schema.type === 'object' && schema.properties) {
    text += ' with ' + Object.keys(schema.properties).map(code).join(', ')
  }
  const bounds = []
  if (schema.minimum !== undefined) bounds.push(`from ${schema.minimum}`)
  if (schema.maximum !== undefined) bounds.push(`to ${schema.maximum}`)
  if (schema.maxLength !== undefined) bounds.push(`at most ${schema.maxLength} characters`)
  return bounds.length ? `${text}, ${bounds.join(' ')}` : text
}

function table(head, rows) {
  if (rows.length === 0) return []
  const line = (cells) => `| ${cells.join(' | ')} |`
  return ['', line(head), line(head.map(() => '---')), ...rows.map(line)]
}

function contents(content) {
  return Object.entries(content ?? {}).map(([type, { schema }]) => `${code(type)}: ${words(schema)}`)
}

function operation(method, path, op) {
  const lines = ['', `### ${op.summary}`, '', '```text', `${method.toUpperCase()} ${path}`, '```']
  if (op.description) lines.push('', op.description)
  lines.push(...table(['Parameter', 'In', 'Type', 'Meaning'], (op.parameters ?? []).map((p) =>
    [code(p.name), p.in + (p.required ? ', required' : ''), words(p.schema), cell(p.description)])))
  const body = contents(op.requestBody?.content)
  if (body.length) lines.push('', `Body: ${body.join('; ')}.`)
  lines.push(...table(['Answer', 'Meaning', 'Body'], Object.entries(op.responses).map(([status, r]) => {
    const answer = r.$ref ? { description: 'A problem.', content: { 'application/problem+json': {
      schema: { $ref: '#/components/schemas/' + nameOf(r.$ref) } } } } : r
    const about = status === 'default' ? 'other' : code(status)
    return [about, cell(answer.description), contents(answer.content).join('; ')]
  })))
  return lines
}

function schemaSection(name, schema) {
  const lines = ['', `### Type ${name}`]
  if (schema.description) lines.push('', schema.description)
  if (!schema.properties) return [...lines, '', words(schema)]
  const required = schema.required ?? []
  lines.push(...table(['Field', 'Type', 'Meaning'], Object.entries(schema.properties).map(([field, s]) =>
    [code(field) + (required.includes(field) ? ', required' : ''), words(s), s.$ref ? '' : cell(s.description)])))
  return lines
}

/** Returns the Markdown of the page. */
export function operationsPage(document) {
  const lines = ['# HTTP operations', '',
    'This page lists every operation of the HTTP gateway with its parameters and answers. It is made from the OpenAPI',
    'document that a gateway serves at `/v1/openapi.json`. [HTTP](http.md) explains the operations with examples.']
  const groups = new Map()
  for (const [path, methods] of Object.entries(document.paths)) {
    for (const [method, op] of Object.entries(methods)) {
      if (!op.responses) continue
      const tag = op.tags?.[0] ?? 'other'
      if (!groups.has(tag)) groups.set(tag, [])
      groups.get(tag).push(operation(method, path, op))
    }
  }
  for (const [tag, operations] of groups) {
    const heading = tag === 'open' ? 'Without a token' : `Verb ${tag}`
    lines.push('', '## ' + heading, ...operations.flat())
  }
  lines.push('', '## Types', ...Object.entries(document.components.schemas).flatMap(([n, s]) => schemaSection(n, s)))
  return lines.join('\n') + '\n'
}
