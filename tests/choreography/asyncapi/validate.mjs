// Reads AsyncAPI documents as the official parser does: a line of JSON for each, with what it found and its complaints.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';

const [folder, ...files] = process.argv.slice(2);
const require = createRequire(folder + '/');
const { Parser } = require('@asyncapi/parser');
const { AvroSchemaParser } = require('@asyncapi/avro-schema-parser');

const parser = new Parser({ schemaParsers: [AvroSchemaParser()] });
for (const file of files) {
  const { document, diagnostics } = await parser.parse(readFileSync(file, 'utf8'));
  const operations = document ? document.operations().all() : [];
  const messages = document ? document.components().messages().all() : [];
  process.stdout.write(JSON.stringify({
    version: document ? document.version() : null,
    complaints: diagnostics
      .filter(({ code }) => code !== 'asyncapi-latest-version')
      .map(({ severity, message, path }) => ({ severity, message, path: path.join('/') })),
    channels: document ? document.channels().all().map((channel) => channel.address()) : [],
    operations: operations.map((operation) => ({
      id: operation.id(),
      action: operation.action(),
      channels: operation.channels().all().map((channel) => channel.address()),
      messages: operation.messages().all().map((message) => message.id()),
    })),
    payloads: Object.fromEntries(messages.map((message) => [message.id(), message.payload().json().schema])),
  }) + '\n');
}
