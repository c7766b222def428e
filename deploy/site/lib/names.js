// Lets a browser break long names in tables, so that a name does not take the width from the column beside it.

/** A shorter name is never broken. */
const long = 20

/** A plugin of markdown-it that marks the places in a name where a line may end: after a sign, and before a capital. */
export function namesPlugin(md) {
  md.renderer.rules.code_inline = (tokens, i, options, env, self) => {
    const { content } = tokens[i]
    const parts = content.length < long ? [content] : content.split(/(?<=[._/:,-])(?=\w)|(?<=[a-z0-9])(?=[A-Z])/)
    return `<code v-pre${self.renderAttrs(tokens[i])}>${parts.map(md.utils.escapeHtml).join('<wbr>')}</code>`
  }
}
