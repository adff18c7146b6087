// Calls a server with the official Node client, as clients.py does with Python's: node clients.mjs BASE_URL MODEL
import { randomUUID } from 'node:crypto'
import { readFileSync } from 'node:fs'
import OpenAI from 'openai'

const [base, model] = process.argv.slice(2)
const version = JSON.parse(readFileSync('node_modules/openai/package.json')).version
const name = `openai (Node) ${version}`
const client = new OpenAI({ baseURL: base + '/v1', apiKey: 'none', maxRetries: 0 })
const text = 'Count from one to ten and say each number in a sentence of its own.'
const turns = [{ role: 'system', content: 'You are brief.' }, { role: 'user', content: 'Hello there.' }, { role: 'assistant', content: 'Hello.' }, { role: 'user', content: text }]
const parameters = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'], additionalProperties: false }
const tool = { type: 'function', function: { name: 'weather', description: 'The weather of a city', parameters } }
const max = 24
const now = () => Math.round((performance.timeOrigin + performance.now()) * 1e6) // to some 0.3 us, what a double holds of it

async function call(what, sent, act) {
  const id = 'interop-' + randomUUID().replaceAll('-', '')
  const w = { events: 0, first: null, seen: { status: 200 } }
  let problem = null
  try {
    await act({ headers: { 'x-request-id': id } }, w)
  } catch (e) {
    if (typeof e.status !== 'number') problem = String(e).slice(0, 200)
    w.seen = typeof e.status === 'number' ? { status: e.status } : {}
    w.events = 0
    w.first = null
  }
  console.log(JSON.stringify({ client: name, call: what, id, sent, seen: w.seen, events: w.events, first_unix_ns: w.first, end_unix_ns: now(), problem }))
}

function token(w) {
  w.events++
  w.first ??= now()
}

function usage(w, u, input = 'prompt_tokens', output = 'completion_tokens') {
  if (!u) return
  w.seen.input_tokens = u[input]
  w.seen.output_tokens = u[output]
}

async function chat(what, sent, options, stopAfter) {
  await call(what, { endpoint: 'chat_completions', request_model: model, message_count: 4, max_tokens: max, stream: !!options.stream, ...sent }, async (o, w) => {
    const a = await client.chat.completions.create({ model, messages: turns, max_tokens: max, ...options }, o)
    if (!options.stream) {
      usage(w, a.usage)
      w.seen.finish_reason = a.choices[0].finish_reason
      return
    }
    for await (const chunk of a) {
      if (chunk.choices.some(c => c.delta.content || c.delta.reasoning_content || c.delta.reasoning || c.delta.refusal || c.delta.tool_calls?.length)) token(w)
      for (const c of chunk.choices) if (c.finish_reason) w.seen.finish_reason = c.finish_reason
      usage(w, chunk.usage)
      if (stopAfter && w.events >= stopAfter) {
        a.controller.abort()
        w.seen = { status: 200, end_reason: 'client_abort' }
        w.events = null
        break
      }
    }
  })
}

async function responses(what, sent, options) {
  await call(what, { endpoint: 'responses', request_model: model, max_tokens: max, stream: !!options.stream, ...sent }, async (o, w) => {
    const a = await client.responses.create({ model, input: turns.slice(3), instructions: 'You are brief.', max_output_tokens: max, ...options }, o)
    if (!options.stream) return usage(w, a.usage, 'input_tokens', 'output_tokens')
    for await (const e of a) {
      if (e.type.endsWith('.delta') && e.delta) token(w)
      if (e.type === 'response.completed' || e.type === 'response.incomplete') usage(w, e.response.usage, 'input_tokens', 'output_tokens')
    }
  })
}

const include = { stream_options: { include_usage: true } }
await chat('chat', {}, {})
await chat('chat, streamed, usage', {}, { stream: true, ...include })
await chat('chat, streamed, n=2', { n: 2 }, { stream: true, n: 2, ...include })
await chat('chat, streamed, logprobs', { logprobs: 3 }, { stream: true, logprobs: true, top_logprobs: 3, ...include })
await chat('chat, streamed, tool required', { tool_count: 1 }, { stream: true, tools: [tool], tool_choice: 'required', ...include })
await chat('chat, structured output', { response_format: 'json_schema' }, { response_format: { type: 'json_schema', json_schema: { name: 'place', strict: true, schema: parameters } } })
await chat('chat, streamed, closed after 3 events', {}, { stream: true, ignore_eos: true }, 3)
await responses('responses', {}, {})
await responses('responses, streamed', {}, { stream: true })
await call('embeddings', { endpoint: 'embeddings', request_model: model, prompt_count: 2 }, async (o, w) => {
  const u = (await client.embeddings.create({ model, input: ['one', 'two words'] }, o)).usage
  w.seen.input_tokens = u.prompt_tokens
})
