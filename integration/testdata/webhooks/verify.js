// Verifies each request twice: with the library of the specification, and with the function in
// docs/guides/callbacks.md. Arguments: the module with that function, and the key. Standard input: a JSON array of
// {"headers":{…},"body":"base64"}.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { Webhook } from "standardwebhooks";

const { verify } = await import(pathToFileURL(process.argv[2]));
const key = process.argv[3];
const byLibrary = (headers, body) => {
  try {
    new Webhook(key).verify(body, headers, { jsonParse: false });
    return true;
  } catch {
    return false;
  }
};
for (const { headers, body } of JSON.parse(readFileSync(0, "utf8"))) {
  const bytes = Buffer.from(body, "base64");
  const changed = Buffer.concat([bytes, Buffer.from(" ")]);
  console.log(byLibrary(headers, bytes), verify(key, headers, bytes), byLibrary(headers, changed), verify(key, headers, changed),
    verify(key, headers, bytes, Number(headers["webhook-timestamp"]) + 301));
}
