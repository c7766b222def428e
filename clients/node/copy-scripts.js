// Copies the scripts that the package calls from lua/generated of the repository into dist/lua, for the npm package.
import { copyFileSync, mkdirSync } from 'node:fs';

const scripts = ['ack', 'ack_result', 'cancel', 'drop_consumer', 'enqueue', 'enqueue_one', 'ensure_group', 'extend',
  'register', 'reschedule', 'retry', 'save_progress'];
const to = new URL('dist/lua/', import.meta.url);
mkdirSync(to, { recursive: true });
for (const script of scripts) {
  copyFileSync(new URL(`../../lua/generated/${script}.lua`, import.meta.url), new URL(`${script}.lua`, to));
}
