// The program: an HTTP server and a worker in one process. See README.md.
import { createServer } from 'node:http';
import { Client, Worker } from 'duestream';
import { PartnerRefused, Shop } from './shop.js';

const redis = process.env.SHOP_REDIS ?? 'redis://127.0.0.1:6379';
const partner = process.env.SHOP_PARTNER ?? 'http://127.0.0.1:8081/orders/';
const port = Number(process.env.SHOP_PORT ?? 8080);

async function callPartner(order, signal) {
  const answer = await fetch(partner + encodeURIComponent(order), { method: 'POST', signal });
  if (answer.ok) return;
  const isFinal = answer.status < 500 && ![408, 429].includes(answer.status);
  throw new (isFinal ? PartnerRefused : Error)(`the partner answered ${answer.status}`);
}

const client = new Client(redis);
const mail = (order, text) => console.log(`mail for order ${order} - ${text}`);
const shop = new Shop({ client, mail, callPartner });

async function answer(request) {
  const [, order, pay] = /^\/orders\/([\w-]{1,64})(\/pay)?$/.exec(request.url) ?? [];
  if (!order) return [404, 'no such page'];
  if (request.method === 'GET' && !pay) return [200, shop.state(order) ?? 'unknown'];
  if (request.method !== 'POST') return [405, 'use POST'];
  if (pay) return await shop.pay(order) ? [200, 'paid'] : [409, 'there is no such order, or it was closed'];
  await shop.place(order);
  return [201, 'unpaid'];
}

const server = createServer(async (request, response) => {
  const [status, text] = await answer(request).catch((error) => {
    console.error(error);
    return [503, 'try again'];
  });
  response.writeHead(status).end(`${text}\n`);
}).listen(port, '127.0.0.1');

await new Worker(redis, { group: 'shop', mux: shop.mux(), handlerTimeoutMs: 30_000 }).run();
server.close();
await client.close();
