/** A grammar for transcripts of redis-cli: a line that begins with > is a command, and the others are replies. */
export const rediscli = {
  name: 'redis-cli',
  scopeName: 'source.redis-cli',
  patterns: [
    {
      match: '^(\\S*>) (\\S+)',
      captures: { 1: { name: 'comment' }, 2: { name: 'keyword' } },
    },
    { match: '"(?:[^"\\\\]|\\\\.)*"', name: 'string' },
    { match: '<[^>\\n]+>', name: 'variable.parameter' },
    { match: '^\\(?(?:integer|error|nil)\\)?.*$', name: 'constant.numeric' },
  ],
}
